"""The state of a consumer's 64 rows between GEMMs, and the mask of a tile of scores, for keys in 16 bits and in fp8.

The rows' state is in registers, for both rows of a thread (tiles/rows.py): maxima, sums of weights, and origins, which are subtracted from
huge scores. A thread's sums are also stored in shared memory, from which the row's other lanes read them at the end.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, float32, int32

from minllm.kernels.attention.common.online_softmax import MINUS_INFINITY
from minllm.kernels.attention.flash_attention_3.work import FIRST_POSITION
from minllm.tiles.warp import ALL_LANES


class Rows(NamedTuple):
    """The softmax of a thread's two rows, in arrays of two registers."""

    maxima: Any
    sums: Any  # partial sums of weights over this thread's columns
    factors: Any  # by which sums and output of the tiles before are multiplied
    origins: Any  # subtracted from the scores if they are huge, else 0
    scales: Any  # factors of the scores, if queries are quantised


def sum_count(shape):
    """Length of the array of sums in shared memory: two per thread for the current work item and two for the one being stored."""
    return 4 * 128 * shape.consumers


@functools.cache
def make_state(shape, out_rows):
    """(start_rows, leave_sums, total, rescale): device functions on the state of a consumer's rows."""
    threads = 128 * shape.consumers

    @cuda.jit(device=True)
    def start_rows(rows):
        """Set the state to that of no keys."""
        for half in range(2):
            rows.maxima[half] = float32(MINUS_INFINITY)
            rows.sums[half] = float32(0.0)
            rows.origins[half] = float32(0.0)

    @cuda.jit(device=True)
    def leave_sums(rows, shared, item, own):
        """Store a thread's sums in shared memory.

        This is done after every tile, before the wait for the GEMM in flight: ptxas keeps a store before a wait, and so must compute the
        weights that the sums depend on before it. Otherwise it would move all exponentials behind the wait, and nothing would overlap.
        """
        for half in range(2):
            shared.sums[(2 * (item & 1) + half) * threads + own] = rows.sums[half]

    @cuda.jit(device=True)
    def total(shared, item, half, own):
        """The sum of a row's weights, after all lanes have left theirs."""
        lanes, sums = (2 * (item & 1) + half) * threads + own // 4 * 4, shared.sums  # the first of four that share the row
        return (sums[lanes] + sums[lanes + 1]) + (sums[lanes + 2] + sums[lanes + 3])

    @cuda.jit(device=True)
    def rescale(acc, rows):
        """Multiply the rows of the accumulator by their factors, unless those of the whole warp are 1."""
        if cuda.any_sync(ALL_LANES, rows.factors[0] != float32(1.0) or rows.factors[1] != float32(1.0)):
            for half in range(2):
                out_rows.scale(acc, half, rows.factors[half])

    return start_rows, leave_sums, total, rescale


@functools.cache
def make_mask(key_tile, score_rows):
    """(is_masked, mask): device functions for a tile of scores of the keys from first_key on."""

    @cuda.jit(device=True)
    def is_masked(shared, at, first_key, consumer, window):
        """Whether any of the 64 rows does not see all keys. Most tiles of keys are visible to all, and need no mask."""
        last_seen_by_all = int32(shared.work[at + FIRST_POSITION] + consumer * 64)
        first_seen_by_all = int32(last_seen_by_all + 64 - window if window > 0 else 0)
        return first_key + key_tile - 1 > last_seen_by_all or first_key < first_seen_by_all

    @cuda.jit(device=True)
    def mask(scores, shared, at, first_key, own, window):
        """Replace the scores of keys that a row does not see by -inf."""
        row_position = int32(shared.work[at + FIRST_POSITION] + own // 32 * 16 + own % 32 // 4)
        for half in range(2):
            last = int32(row_position + 8 * half - first_key - score_rows.column(own % 32))
            score_rows.mask(scores, half, 0, int32(last - window + 1 if window > 0 else -key_tile), last)

    return is_masked, mask
