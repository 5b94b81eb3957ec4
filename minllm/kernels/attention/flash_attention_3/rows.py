"""A consumer's operations on its 64 rows between GEMMs: softmax of a tile of scores, final division and store.

The rows' state is in registers, for both rows of a thread (tiles/rows.py): maxima, sums of weights, and origins, which are subtracted from
huge scores. A thread's sums are also stored in shared memory, from which the row's other lanes read them at the end.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, float32, int32, int64

from minllm.kernels.attention.common.online_softmax import MINUS_INFINITY, finite_or_zero, reciprocal_or_zero
from minllm.kernels.attention.flash_attention_3.work import FIRST_POSITION, HEAD, ROWS, TOKEN, WORK_SLOTS, WORK_WORDS
from minllm.ptx import ex2
from minllm.tiles.rows import make_rows as make_register_rows
from minllm.tiles.warp import ALL_LANES

GROWTH = 8.0  # log2 of how much a weight may exceed 1 before a row's maximum is raised
HUGE = 1024.0  # maxima beyond this, to base 2, have a rounding error that would show in 16-bit weights


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
def make_maxima(score_rows):
    """(move_origins, raise_maxima): device functions that track the largest score of each row."""

    @cuda.jit(device=True)
    def move_origins(scores, rows, scale):
        """Make a huge maximum its row's origin. Returns whether any row of the warp has an origin.

        scale * score - scale * maximum is one instruction, but it keeps the rounding error of scale * maximum: at a maximum of 1e5
        one part in 300, in the sum but not in the weight, which is rounded to 16 bits. A difference of scores is exact, or nearly so.
        """
        for half in range(2):
            highest = finite_or_zero(rows.maxima[half])
            if abs(highest * scale) > float32(HUGE):
                rows.origins[half] += highest
                rows.maxima[half] = float32(0.0)
                score_rows.subtract(scores, half, highest)
        return cuda.any_sync(ALL_LANES, rows.origins[0] != float32(0.0) or rows.origins[1] != float32(0.0))

    @cuda.jit(device=True)
    def raise_maxima(scores, rows, scale):
        """Update the rows' maxima from the scores, and set their factors.

        A maximum is raised only if a weight would exceed 2 ** GROWTH: any number near the maximum serves as well, and while it does not
        change, the accumulator needs no rescaling.
        """
        for half in range(2):
            highest = score_rows.maximum(scores, half, rows.maxima[half])
            if highest * scale <= rows.maxima[half] * scale + float32(GROWTH):
                highest = rows.maxima[half]
            rows.factors[half] = ex2((rows.maxima[half] - finite_or_zero(highest)) * scale)
            rows.maxima[half] = highest

    return move_origins, raise_maxima


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


@functools.cache
def make_rows(dtype, shape):
    """(start_rows, weigh_tile, rescale, pack_weights, store_rows): device functions of a consumer, for 16-bit `dtype`."""
    head_dim, key_tile = shape.head_dim, shape.key_tile
    score_rows, out_rows = make_register_rows(key_tile, dtype, fused=True), make_register_rows(head_dim, dtype)
    move_origins, raise_maxima = make_maxima(score_rows)
    start_rows, leave_sums, total, rescale = make_state(shape, out_rows)
    is_masked, mask = make_mask(key_tile, score_rows)

    @cuda.jit(device=True)
    def weigh_tile(scores, rows, from_origins, shared, at, item, first_key, consumer, own, scale, window):
        """Replace the scores of the keys from first_key on by weights. Returns whether any row of the warp has an origin now."""
        special = from_origins or is_masked(shared, at, first_key, consumer, window)
        if special:
            mask(scores, shared, at, first_key, own, window)
            if from_origins:
                for half in range(2):
                    score_rows.subtract(scores, half, rows.origins[half])
        raise_maxima(scores, rows, scale)
        if special:
            from_origins = move_origins(scores, rows, scale)
        for half in range(2):
            maximum = finite_or_zero(rows.maxima[half])
            rows.sums[half] = score_rows.exponentials(scores, half, maximum, scale, rows.sums[half] * rows.factors[half])
        leave_sums(rows, shared, item, own)
        return from_origins

    @cuda.jit(device=True)
    def pack_weights(scores, weights):
        """Pack weights to 16-bit pairs, in the order of wgmma's A operand."""
        for step in range(key_tile // 16):
            score_rows.pack(scores, 0, step, weights, 4 * step)

    @cuda.jit(device=True)
    def store_rows(acc, shared, out, item, own):
        """Store out = acc / sums, for the rows of a work item that belong to its sequence."""
        cuda.syncwarp()
        at = WORK_WORDS * (item & (WORK_SLOTS - 1))
        token, head, rows = shared.work[at + TOKEN], shared.work[at + HEAD], shared.work[at + ROWS]
        for half in range(2):
            row = int32(own // 32 * 16 + out_rows.position(half, own % 32))
            index = (int64(token + row) * out.shape[1] + head) * head_dim
            out_rows.store(acc, half, reciprocal_or_zero(total(shared, item, half, own)), out, index, row < rows, own % 32)

    return start_rows, weigh_tile, rescale, pack_weights, store_rows
