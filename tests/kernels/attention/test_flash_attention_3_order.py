"""The order of FlashAttention-3's work items: every query tile of every head once, from the longest to the shortest."""

import functools
import itertools

import numpy as np
import pytest
from numba import cuda, int32

from minllm.kernels.attention.flash_attention_3.work import make_order
from minllm.runtime.kernel import kernel, launch

TILE, HEADS = 16, 3
SEQUENCE, HEAD, FIRST_ROW = range(3)


@functools.cache
def listing_kernel():
    """A kernel whose blocks, of one warp, write their items: out int32 [blocks, rounds, 3], -1 beyond the last."""
    order = make_order(TILE)

    @kernel
    def list_items_kernel(query_start, context_lens, heads, out):
        round_number, goes_on = int32(0), True
        items = order.begin(query_start, context_lens)
        while goes_on:
            items, item = order.find(items, round_number, query_start, context_lens, heads)
            goes_on = item.sequence >= 0
            if goes_on and cuda.threadIdx.x == round_number % 32:  # any lane has the item
                out[cuda.blockIdx.x, round_number, SEQUENCE] = item.sequence
                out[cuda.blockIdx.x, round_number, HEAD] = item.head
                out[cuda.blockIdx.x, round_number, FIRST_ROW] = item.first_row
            round_number += 1

    return list_items_kernel


def items_of_blocks(query_lens, context_lens, blocks):
    """[(sequence, head, first row), ...] of every block."""
    starts = np.concatenate([[0], np.cumsum(query_lens)]).astype(np.int32)
    tiles = sum(-(-length // TILE) for length in query_lens) * HEADS
    out = np.full((blocks, -(-tiles // blocks) + 1, 3), -1, np.int32)
    launch(listing_kernel(), blocks, 32, (starts, np.array(context_lens, np.int32), HEADS, out))
    return [[tuple(map(int, item)) for item in block if item[0] >= 0] for block in out]


def keys_seen(item, query_lens, context_lens):
    """Keys that the last row of an item's tile sees."""
    sequence, _, first_row = item
    return min(context_lens[sequence], context_lens[sequence] - query_lens[sequence] + first_row + TILE)


BATCHES = {
    "one prompt": ([100], [100]),
    "a part of a prompt": ([7], [1000]),
    "beside empty ones": ([0, 45, 0, 0, 33, 0], [0, 45, 0, 0, 300, 0]),
    "only empty ones": ([0, 0], [0, 0]),
    "more than the lanes of a warp": ([1 + 5 * i % 40 for i in range(71)], [1 + 5 * i % 40 + 11 * i % 90 for i in range(71)]),
    "levels without tiles": ([20, 17], [5000, 17]),
}


@pytest.mark.parametrize("blocks", [1, 5])
@pytest.mark.parametrize("name", BATCHES)
def test_every_tile_of_every_head_is_one_item(name, blocks):
    query_lens, context_lens = BATCHES[name]
    found = items_of_blocks(query_lens, context_lens, blocks)
    wanted = [(s, head, row) for s, length in enumerate(query_lens) for head in range(HEADS) for row in range(0, length, TILE)]
    assert sorted(item for block in found for item in block) == wanted


@pytest.mark.parametrize("name", BATCHES)
def test_longer_items_come_first(name):
    query_lens, context_lens = BATCHES[name]
    (found,) = items_of_blocks(query_lens, context_lens, blocks=1)
    positions = [context_lens[sequence] - query_lens[sequence] + row for sequence, _, row in found]  # of first rows
    assert all(later < earlier + TILE for earlier, later in itertools.pairwise(positions))


def test_blocks_have_equal_work_beside_empty_sequences():
    """The end of one prompt, the beginning of another, and 30 sequences without rows, as a CUDA graph has them: 12 blocks."""
    query_lens, context_lens = [5 * TILE, 8 * TILE, *[0] * 30], [16 * TILE, 8 * TILE, *[0] * 30]
    found = items_of_blocks(query_lens, context_lens, blocks=12)
    work = [sum(keys_seen(item, query_lens, context_lens) for item in block) for block in found]
    assert max(work) <= 1.25 * np.mean(work)
