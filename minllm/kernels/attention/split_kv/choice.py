"""How split_kv.py divides a decode step into blocks: over query heads that share a KV head, and over the context."""

import functools
import math

MAX_SPLITS = 256
HEADS_PER_BLOCK = 8  # the most query heads of one KV head in a block; more are spread over several blocks
BLOCKS_PER_SM = 3  # resident blocks per SM (streaming multiprocessor) that the registers of split_kv allow


def head_tiles_of(group):
    """(blocks that share the query heads of a KV head, query heads per block)."""
    tiles = -(-group // HEADS_PER_BLOCK)
    return tiles, -(-group // tiles)


@functools.cache
def choose_splits(sequences, kv_heads, group, max_context_len, sm_count):
    """Number of splits per context: the fewest that use the GPU's block slots within 15 % of the best.

    `blocks` blocks on `slots` slots run in ceil(blocks / slots) waves; the last wave is rarely full. Splits shorter than 64 keys do not
    pay. (The rule is that of FlashAttention's num_splits_heuristic.)
    """
    slots = BLOCKS_PER_SM * sm_count
    blocks = max(1, sequences * kv_heads * head_tiles_of(group)[0])
    limit = max(1, min(MAX_SPLITS, -(-max_context_len // 64), -(-slots // blocks)))

    def use_of_slots(splits):
        waves = splits * blocks / slots
        return waves / math.ceil(waves)

    best = max(use_of_slots(splits) for splits in range(1, limit + 1))
    return next(splits for splits in range(1, limit + 1) if use_of_slots(splits) >= 0.85 * best)
