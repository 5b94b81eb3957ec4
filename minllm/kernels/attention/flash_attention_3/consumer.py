"""The consumers of a Hopper attention block: warpgroups that own 64 rows of queries each, and walk over the tiles of keys.

A step of the walk starts two products, the scores of this tile of keys and the output of the tile before, and computes the softmax of the
scores while the second is in flight:

    tensor cores   Q K_j^T | P_(j-1) V_(j-1) |
    threads                | softmax of S_j  | rescale the output, round P_j

That hides half of the softmax. The warpgroups take turns besides: one starts its two products when the other has started its own, so that
one computes exponentials while the other multiplies (Shah et al., FlashAttention-3, arXiv 2407.08608, sections 3.1 and 3.2).

The walk does not stop between pieces of work: the first scores of a piece are computed beside the last output of the piece before, whose
rows are divided and stored in the same step. Prompts of a few tiles would otherwise fill and drain this pipeline all the time.
"""

import functools

from numba import cuda, float32, int32, uint32

from minllm.kernels.attention.flash_attention_3.producer import (
    CONTEXT_LEN,
    COUNT,
    STOP_TILE,
    VISIBLE_START,
    WORK_SLOTS,
    WORK_WORDS,
    make_ring,
)
from minllm.kernels.attention.flash_attention_3.products import make_products
from minllm.kernels.attention.flash_attention_3.rows import make_rows
from minllm.kernels.attention.flash_attention_3.tiles import BARRIER_BYTES, make_clear_rows
from minllm.kernels.warp import ALL_LANES
from minllm.ptx import (
    bar_arrive,
    bar_sync,
    keep_registers,
    mbarrier_arrive,
    mbarrier_wait_parity,
    wgmma_wait_group_0,
    wgmma_wait_group_1,
)

FIRST_TURN = 2  # named barrier of the first consumer's turn; 1 is hopper_tiles.CLEARED


@functools.cache
def make_turns(consumers):
    """(wait_for_turn, pass_turn): device functions by which consumers take turns at the tensor cores."""

    @cuda.jit(device=True)
    def wait_for_turn(consumer):
        """Until the consumer before has started its products."""
        if consumers > 1:
            bar_sync(FIRST_TURN + consumer, 256)

    @cuda.jit(device=True)
    def pass_turn(consumer):
        """The next consumer may start its products."""
        if consumers > 1:
            bar_arrive(FIRST_TURN + (consumer + 1 if consumer + 1 < consumers else 0), 256)

    return wait_for_turn, pass_turn


@functools.cache
def make_consume(dtype, shape):
    """consume: what a warpgroup of consumers does, for 16-bit `dtype`."""
    consumers, key_tile, stages, query_slots = shape.consumers, shape.key_tile, shape.stages, shape.query_slots
    query_bytes, key_bytes, ring_bytes, row_bytes = shape.query_bytes, shape.key_bytes, shape.ring_bytes, shape.row_bytes
    barriers_at, ring_barrier_bytes, in_registers = shape.barriers_at, shape.ring_barrier_bytes, shape.queries_in_registers
    score_count, weight_count, out_count, query_count = key_tile // 2, key_tile // 4, shape.head_dim // 2, shape.query_registers

    slot_of, queries_slot_of = make_ring(stages), make_ring(query_slots)
    load_queries, start_scores, start_output = make_products(shape, "bf16" if dtype == "bfloat16" else "f16")
    start_rows, weigh_tile, rescale, pack_weights, store_rows = make_rows(dtype, shape)
    wait_for_turn, pass_turn = make_turns(consumers)
    clear_rows = make_clear_rows(shape)

    @cuda.jit(device=True)
    def release(barrier):
        """A warpgroup has read what the mbarrier guards: its first thread says so."""
        if cuda.threadIdx.x % 128 == 0:
            mbarrier_arrive(barrier)

    @cuda.jit(device=True)
    def clear_unseen(words, values_full, values, work, at, tile, first_key, own):
        """Clear rows of a tile of values that no row of queries sees: behind the context, or before the window."""
        context_len, visible_start = work[at + CONTEXT_LEN], work[at + VISIBLE_START]
        if first_key + key_tile > context_len or first_key < visible_start:
            stage, parity = slot_of(tile)
            mbarrier_wait_parity(values_full + BARRIER_BYTES * stage, parity)
            address = uint32(values + stage * key_bytes)
            clear_rows(words, address, int32(context_len - first_key), key_tile, own)
            clear_rows(words, address, 0, int32(visible_start - first_key), own)

    @cuda.jit(device=True)
    def consume(row_sums, words, base, work, out, own, scale, window):
        """A warpgroup's 64 rows of every piece of work: out = sum of weights times values, over the sum of weights."""
        consumer = cuda.shfl_sync(ALL_LANES, int32(own // 128), 0)  # which tells the compiler that it is the same for all lanes
        queries, keys = uint32(base + consumer * 64 * row_bytes), uint32(base + query_slots * query_bytes)
        values = uint32(keys + ring_bytes)
        queries_full = uint32(base + barriers_at)
        queries_empty = uint32(queries_full + query_slots * BARRIER_BYTES)
        keys_full = uint32(queries_empty + query_slots * BARRIER_BYTES)
        keys_empty = uint32(keys_full + stages * BARRIER_BYTES)
        values_full = uint32(keys_full + ring_barrier_bytes)
        values_empty = uint32(values_full + stages * BARRIER_BYTES)
        query = cuda.local.array(query_count, uint32)
        scores = cuda.local.array(score_count, float32)
        weights = cuda.local.array(weight_count, uint32)
        acc = cuda.local.array(out_count, float32)
        maxima = cuda.local.array(2, float32)
        sums = cuda.local.array(2, float32)
        factors = cuda.local.array(2, float32)
        origins = cuda.local.array(2, float32)
        opaque = cuda.local.array(2, int32)

        piece, at, tile = int32(0), int32(0), int32(0)  # pieces and tiles that went by; where the piece in hand is described
        mbarrier_wait_parity(queries_full, 0)
        left = work[COUNT]  # tiles of the piece that are still to be taken, below 0 behind the last piece
        if left > 0:
            # The first step of all, with no output beside it. The last tile of a piece's keys comes first: it has the diagonal.
            left, first_key = int32(left - 1), int32((work[STOP_TILE] - 1) * key_tile)
            start_rows(maxima, sums, origins)
            load_queries(query, base, queries_empty, own)
            mbarrier_wait_parity(keys_full, 0)
            start_scores(scores, query, queries, keys)
            wgmma_wait_group_0()
            keep_registers(scores, score_count)
            release(keys_empty)
            if not in_registers and left == 0:
                mbarrier_arrive(queries_empty)
            from_origins = weigh_tile(
                scores, maxima, sums, factors, origins, False, row_sums, work, at, piece, first_key, consumer, own, scale, window
            )  # fmt: skip
            pack_weights(scores, weights)
            clear_unseen(words, values_full, values, work, at, tile, first_key, own)
            more = int32(0)  # 1 if the accumulator holds a part of the output to which the weights belong

            while True:
                begins = left == 0  # another piece, with this tile
                if begins:
                    piece = int32(piece + 1)
                    slot, parity = queries_slot_of(piece)
                    mbarrier_wait_parity(queries_full + BARRIER_BYTES * slot, parity)
                    at = int32(WORK_WORDS * (piece & (WORK_SLOTS - 1)))
                    left = work[at + COUNT]
                    if left < 0:
                        break
                    first_key, from_origins = int32(work[at + STOP_TILE] * key_tile), False
                    start_rows(maxima, sums, origins)
                    load_queries(query, uint32(base + slot * query_bytes), uint32(queries_empty + BARRIER_BYTES * slot), own)
                left, first_key = int32(left - 1), int32(first_key - key_tile)
                before, parity_before = slot_of(tile)
                tile = int32(tile + 1)
                stage, parity = slot_of(tile)
                slot, _ = queries_slot_of(piece)
                mbarrier_wait_parity(keys_full + BARRIER_BYTES * stage, parity)
                wait_for_turn(consumer)
                start_scores(scores, query, uint32(queries + slot * query_bytes), uint32(keys + stage * key_bytes))
                mbarrier_wait_parity(values_full + BARRIER_BYTES * before, parity_before)
                start_output(acc, weights, uint32(values + before * key_bytes), more)
                pass_turn(consumer)
                wgmma_wait_group_1()
                keep_registers(scores, score_count)
                release(keys_empty + BARRIER_BYTES * stage)
                if not in_registers and left == 0:
                    mbarrier_arrive(queries_empty + BARRIER_BYTES * slot)
                from_origins = weigh_tile(
                    scores, maxima, sums, factors, origins, from_origins, row_sums, work, at, piece, first_key, consumer, own, scale,
                    window,
                )  # fmt: skip
                wgmma_wait_group_0()
                keep_registers(acc, out_count)
                keep_registers(weights, weight_count)  # which the product that has just ended was reading
                release(values_empty + BARRIER_BYTES * before)
                if begins:
                    # Addresses are computed from these afresh: ptxas would keep them in registers that the walk needs.
                    opaque[0], opaque[1] = own, int32(piece - 1)
                    keep_registers(opaque, 2)
                    store_rows(acc, row_sums, out, work, opaque[1], opaque[0])
                else:
                    rescale(acc, factors)
                more = int32(0 if begins else 1)
                pack_weights(scores, weights)
                if begins or left == 0:
                    clear_unseen(words, values_full, values, work, at, tile, first_key, own)

            stage, parity = slot_of(tile)
            mbarrier_wait_parity(values_full + BARRIER_BYTES * stage, parity)
            start_output(acc, weights, uint32(values + stage * key_bytes), more)
            wgmma_wait_group_0()
            keep_registers(acc, out_count)
            opaque[0], opaque[1] = own, int32(piece - 1)
            keep_registers(opaque, 2)
            store_rows(acc, row_sums, out, work, opaque[1], opaque[0])

    return consume
