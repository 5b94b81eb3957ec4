"""Ladders for the paged cache: memory of blocks, prefix lookup, and the copy in copy-on-write."""

import functools

import numpy as np

from minllm.costs import AllocationPolicy
from minllm.course.checks.arithmetic import expect_number
from minllm.course.checks.evidence import note
from minllm.course.checks.mismatch import Mismatch, expect
from minllm.course.checks.traffic import expect_bytes
from minllm.course.exercise import Exercise, Rung
from minllm.kernels.arguments import ceil_div
from minllm.kernels.kv.copy_blocks import PIECE, THREADS

BLOCK_SIZE = 4
TEXT = [5, 6, 7, 8, 1, 2, 3, 4, 9, 9]  # two full blocks of 4, and half a block


def set_aside(batch_bytes, lengths, shared=0):
    """Check the bytes of a paged cache for sequences of these lengths."""
    block_size, token_bytes = 16, 10
    policy = AllocationPolicy("paged", block_size)
    blocks = [-(-length // block_size) for length in lengths]
    common = min(shared, *lengths) // block_size if len(lengths) > 1 else 0
    unit = block_size * token_bytes
    right = (sum(blocks) - (len(lengths) - 1) * common) * unit
    suspects = [
        ("these are the tokens; blocks are taken whole, the last one too.", sum(lengths) * token_bytes),
        ("the common beginning was not shared: its full blocks are stored once.", sum(blocks) * unit),
        ("the shared blocks are stored once, not never: one sequence of them brings them.", (sum(blocks) - len(lengths) * common) * unit),
        ("only full blocks of the beginning are shared: the block in which the texts part belongs to each.",
         (sum(blocks) - (len(lengths) - 1) * -(-min(shared, *lengths, 10**9) // block_size)) * unit),
        ("tokens of the beginning were subtracted; what is shared is whole blocks.",
         sum(blocks) * unit - (len(lengths) - 1) * shared * token_bytes),
        ("the beginning is no longer than the shortest of the texts.",
         (sum(blocks) - (len(lengths) - 1) * (shared // block_size)) * unit),
    ]  # fmt: skip
    expect_number("bytes set aside", batch_bytes(policy, lengths, token_bytes, shared), right, suspects, " bytes")


def other_policy(batch_bytes):
    """Check a contiguous cache, which shares nothing."""
    policy = AllocationPolicy("contiguous", max_model_len=100)
    suspects = [("only paged caches share; a contiguous one keeps each sequence apart.", 3000 - 2 * 48 * 10)]
    expect_number("bytes set aside", batch_bytes(policy, [50, 60, 70], 10, 48), 3000, suspects, " bytes")


def known(chain_class):
    """An index that holds the two full blocks of TEXT as blocks 7 and 3."""
    chain = chain_class(BLOCK_SIZE)
    chain.insert(TEXT[:8], "", [7, 3])
    return chain


def found(chain_class, asked, right, tenant="", suspects=(), prepare=lambda chain: None):
    """Check the result of `find` for these tokens."""
    chain = known(chain_class)
    prepare(chain)
    got = chain.find(asked, tenant)
    if got is None:
        raise Mismatch("find returned None.\nLikely cause: nothing is returned; write `return`.")
    got = list(got)
    note("blocks", [int(block) for block in got])
    if got != right:
        cause = next((mistake for mistake, blocks in suspects if got == blocks), "")
        told = f"find({asked}) gave the blocks {got}; expected {right}"
        raise Mismatch(told + (f"\nLikely cause: {cause}" if cause else ""))


def a_hole(chain_class):
    """Check an index without the first block that still holds the second."""
    suspects = [("a block is of use only if all before it are there: stop at the first that is unknown.", [3])]
    found(chain_class, TEXT, [], suspects=suspects, prepare=lambda chain: chain.remove(7))


def same_block_later(chain_class):
    """Check a text that begins with the tokens of the second block."""
    suspects = [("a block is found by its own tokens alone; its hash must stand for all before it too.", [3])]
    found(chain_class, [1, 2, 3, 4, 9], [], suspects=suspects)


def copied(copy_blocks, copies, shape=(1, 6, 3, 5)):
    """Copy blocks [layers, blocks, ...] and compare; their size is not a whole number of vectors, to select the exercise's kernel."""
    cache = np.random.default_rng(0).integers(0, 200, shape).astype(np.uint8).reshape(*shape[:2], -1)
    before, expected, backwards, shifted, only_first, first_layer = (cache.copy() for _ in range(6))
    copy_blocks(cache, np.int32(copies))
    for source, destination in copies:
        expected[:, destination] = before[:, source]
        backwards[:, source] = before[:, destination]
        for start in range(0, cache.shape[2], PIECE):
            first_turn = slice(start, start + THREADS)
            shifted[:, destination, first_turn] = before[:, source, first_turn]
        first_layer[0, destination] = before[0, source]
    only_first[:, copies[0][1]] = before[:, copies[0][0]]
    suspects = [
        ("nothing was copied.", before),
        ("source and destination are exchanged: a pair is (source, destination).", backwards),
        ("all blocks of threads copied the first pair: this one's is copies[blockIdx.y].", only_first),
        ("all blocks of threads copied in the first layer: this one's is blockIdx.z.", first_layer),
        ("each thread copied one byte; a thread takes every 128th byte of its piece.", shifted),
    ]
    expect("cache", cache, expected, ("layer", "block", "byte"), suspects)


def copy_budget(copy_blocks):
    """Check that each byte is read once and written once."""
    cache = np.ones((2, 4, 1029), np.uint8)
    run = functools.partial(copy_blocks, cache, np.int32([(0, 2), (1, 3)]))
    expect_bytes(run, {"cache": 2 * 2 * 1029}, {"to": 2 * 2 * 1029}, "each byte of a block is copied by one thread.")


def blocks(blocks_needed, lengths, block_size=16):
    """Check the number of blocks for texts of these lengths."""
    for length in lengths:
        right = ceil_div(length, block_size)
        suspects = [
            ("the last block is taken whole: round up.", length // block_size),
            ("that is one too many if the last block is full.", length // block_size + 1),
            ("these are tokens, not blocks.", length),
        ]
        expect_number(f"blocks for {length} tokens", blocks_needed(length, block_size), right, suspects)


EXERCISES = (
    Exercise(
        name="cache.blocks_needed",
        lesson=11,
        title="how many blocks a text takes",
        module="minllm.cache.block_pool",
        entry="blocks_needed",
        task="Return the number of blocks of block_size tokens that hold num_tokens tokens. The last one may be partly filled.",
        hints=("Round up. `//` rounds down, and of a negative number away from zero: -17 // 16 is -2.",),
        rungs=(
            Rung("a part of a block", "17 tokens take two blocks of 16.", lambda f: blocks(f, [17, 1, 100])),
            Rung("whole blocks", "32 tokens take two blocks, not three.", lambda f: blocks(f, [32, 16, 160])),
            Rung("no token", "an empty text takes no block.", lambda f: blocks(f, [0])),
            Rung("another size", "blocks of 5 tokens.", lambda f: blocks(f, [4, 5, 6, 11], 5)),
        ),
    ),
    Exercise(
        name="costs.batch_bytes",
        lesson=12,
        title="bytes of a batch in a paged cache, where all texts begin alike",
        module="minllm.costs.cache_policies",
        entry="batch_bytes",
        task="Return the bytes that the policy sets aside for all sequences (policy.allocated_bytes of each), less what a paged cache "
        "saves: the full blocks of the first shared_prefix tokens, policy.block_size each, are stored once, not once per sequence. Other "
        "policies save nothing, and neither does an empty batch.",
        hints=(
            "The block in which two texts part cannot be shared: count full blocks, and round down.",
            "N sequences that share B blocks save (N - 1) * B of them.",
        ),
        rungs=(
            Rung("nothing shared", "blocks are taken whole.", lambda f: set_aside(f, [1, 16, 17])),
            Rung("a beginning of whole blocks", "stored once, whatever the number of sequences.", lambda f: set_aside(f, [40, 50, 60], 32)),
            Rung("a beginning that ends in a block", "the block in which texts part belongs to each.",
                 lambda f: set_aside(f, [40, 50, 60, 70], 39)),
            Rung("a short text", "no text shares more than it has.", lambda f: set_aside(f, [20, 90], 70)),
            Rung("one sequence", "there is nobody to share with.", lambda f: set_aside(f, [100], 64)),
            Rung("another policy", "contiguous caches share nothing.", other_policy),
        ),
    ),
    Exercise(
        name="cache.find_prefix",
        lesson=11,
        title="the blocks that hold the beginning of a prompt already",
        module="minllm.cache.hash_chain",
        entry="HashChain",
        task="Go along the prompt's chain of hashes, self._chain(token_ids, chain_root(tenant)), one hash for each full block, and collect "
        "the block of each, self._block_of[hash], until a hash is unknown. Return the list.",
        hints=(
            "A dictionary says with `in` whether it knows a key.",
            "What comes after the first unknown block is of no use: attention needs every key before it.",
        ),
        rungs=(
            Rung("the whole text", "two full blocks, in the order of the text.", lambda c: found(c, TEXT, [7, 3], suspects=[
                ("the blocks are in the order of the text, not of their numbers.", [3, 7]), ("only the first one was taken.", [7])])),
            Rung("half of it", "the search ends where the texts part.", lambda c: found(c, [5, 6, 7, 8, 1, 2, 0, 4, 9], [7])),
            Rung("another text", "nothing is known of it.", lambda c: found(c, [9, 6, 7, 8, 1, 2, 3, 4], [])),
            Rung("less than a block", "only full blocks are shared.", lambda c: found(c, [5, 6, 7], [])),
            Rung("the same tokens elsewhere", "a block stands for all tokens before it too.", same_block_later),
            Rung("a hole", "a block whose predecessor is gone is of no use.", a_hole),
            Rung("another tenant", "no tenant learns what another asked.", lambda c: found(c, TEXT, [], tenant="somebody else", suspects=[
                ("the chain begins with the tenant: chain_root(tenant).", [7, 3])])),
        ),
    ),
    Exercise(
        name="kv.copy_blocks",
        lesson=11,
        title="copy on write: copy whole blocks of the cache",
        module="minllm.kernels.kv.copy_blocks",
        entry="copy_blocks_of_layers",
        task="This block of threads belongs to the layer blockIdx.z, to the pair copies[blockIdx.y], (source, destination), and to the "
        "bytes of a row from blockIdx.x * PIECE to the next piece or the end of the row, cache.shape[2]. Thread t copies bytes t, "
        "t + THREADS, ... of it, from cache[layer, source] to to[layer, destination]; `to` may be the cache itself.",
        hints=(
            "The last piece of a row is shorter than the others: min(row, (blockIdx.x + 1) * PIECE) ends it.",
            "range(start, stop, step) does in a kernel what it does in Python.",
        ),
        rungs=(
            Rung("one block", "destination becomes source, nothing else changes.", lambda f: copied(f, [(1, 4)])),
            Rung("several pairs", "the pair is blockIdx.y's.", lambda f: copied(f, [(1, 4), (0, 5), (1, 2)])),
            Rung("more bytes than threads", "a thread takes every 128th byte.", lambda f: copied(f, [(2, 0)], (1, 4, 3, 101))),
            Rung("several layers", "the layer is blockIdx.z's.", lambda f: copied(f, [(1, 4), (0, 2)], (3, 6, 3, 5))),
            Rung("around a piece", "the grid has a block of threads for each piece of a row.",
                 lambda f: [copied(f, [(2, 0), (3, 1)], (1, 4, size)) for size in (511, 513, 1031)]),
            Rung("byte budget", "each byte is read once and written once.", copy_budget),
        ),
    ),
)  # fmt: skip
