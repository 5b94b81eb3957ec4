"""The invariants of paged blocks: a policy's counters must agree with its block tables."""

from collections import Counter, defaultdict

from minllm.cache.block_pool import BlockPool, blocks_needed
from minllm.errors import CacheError


def require(condition: bool, broken: str) -> None:
    """Raise CacheError unless `condition` is true; `broken` describes the violation."""
    if not condition:
        raise CacheError(f"the KV cache's books are wrong: {broken}")


def check_paged(pool: BlockPool, block_size: int, held: dict, filled: list[int], tokens_held: int) -> None:
    """Raises CacheError unless

    - every table entry is a block of the cache, in a table once, and every sequence has room for its tokens;
    - the holders of each block are the sequences with the block in their tables, and free + idle + held = all;
    - sequences share a block only if they have the same tokens up to its end: no block has two writers;
    - the counts of tokens in the blocks agree with the tokens of the sequences.

    held: sequence -> its Holding (token_ids, blocks, tenant); filled: tokens in each block; tokens_held: their sum.
    """
    holders: Counter[int] = Counter()
    contents: defaultdict[int, set[tuple[int, str, tuple[int, ...]]]] = defaultdict(set)
    for name, holding in held.items():
        blocks, length = holding.blocks, len(holding.token_ids)
        require(all(0 <= block < pool.num_blocks for block in blocks), f"{name!r} has a block that does not exist in {blocks}")
        require(len(set(blocks)) == len(blocks), f"{name!r} has a block twice in {blocks}")
        require(len(blocks) >= blocks_needed(length, block_size), f"{name!r} has {length} tokens in {len(blocks)} blocks")
        holders.update(blocks)
        for index, block in enumerate(blocks):
            end = min(length, (index + 1) * block_size)
            contents[block].add((index, holding.tenant, tuple(holding.token_ids[:end])))
    for block in range(pool.num_blocks):
        counted = pool.holders(block)
        require(counted == holders[block], f"block {block} is counted {counted} times and held {holders[block]} times")
        require(counted == 0 or not pool.is_free(block), f"block {block} is free and held")
        require(len(contents[block]) <= 1, f"block {block} holds different tokens for different sequences")
        inside = 0
        for index, _, token_ids in contents[block]:
            inside = max(0, len(token_ids) - index * block_size)
            require(inside > 0 or counted == 1, f"block {block} has {counted} writers")
        require(filled[block] == inside, f"block {block} is counted with {filled[block]} tokens and has {inside}")
    require(pool.num_held == len(holders), f"{pool.num_held} blocks are counted as held and {len(holders)} are")
    require(pool.num_free + pool.num_held + pool.num_idle == pool.num_blocks, "free, idle and held blocks are not all blocks")
    require(pool.num_idle >= 0, "more blocks are free and held than there are")
    require(tokens_held == sum(filled), f"{tokens_held} tokens are counted and the blocks hold {sum(filled)}")
