"""The consumers of a Hopper attention block: warpgroups that own 64 rows of queries each, and walk over the tiles of keys.

A step of the walk starts two products, the scores of this tile of keys and the output of the tile before, and computes the softmax of the
scores while the second is in flight:

    tensor cores   Q K_j^T | P_(j-1) V_(j-1) |
    threads                | softmax of S_j  | rescale the output, round P_j

That hides half of the softmax. The warpgroups take turns besides: one starts its two products when the other has started its own, so that
one computes exponentials while the other multiplies (Shah et al., FlashAttention-3, arXiv 2407.08608, sections 3.1 and 3.2).
"""

import functools

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.attention.hopper_producer import (
    CONTEXT_LEN,
    COUNT,
    FIRST_POSITION,
    HEAD,
    ROWS,
    STOP_TILE,
    TOKEN,
    VISIBLE_START,
    WORK_SLOTS,
    WORK_WORDS,
    make_ring,
)
from minllm.kernels.attention.hopper_tiles import BARRIER_BYTES, make_clear_rows, make_products
from minllm.kernels.attention.online_softmax import MINUS_INFINITY, reciprocal_or_zero
from minllm.kernels.attention.register_rows import ALL_LANES, make_row_functions, make_store_row
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
def make_consumer(dtype, shape):
    """(consume, wait_for_turn, pass_turn): device functions of a consumer, for 16-bit `dtype`."""
    head_dim, consumers, key_tile, stages, query_slots = shape.head_dim, shape.consumers, shape.key_tile, shape.stages, shape.query_slots
    query_bytes, key_bytes, row_bytes, ring_bytes = shape.query_bytes, shape.key_bytes, shape.row_bytes, shape.ring_bytes
    barriers_at, ring_barrier_bytes, consumer_threads = shape.barriers_at, shape.ring_barrier_bytes, 128 * consumers
    score_count, weight_count, out_count = key_tile // 2, key_tile // 4, head_dim // 2

    slot_of, queries_slot_of = make_ring(stages), make_ring(query_slots)
    load_queries, start_scores, start_output = make_products(shape, "bf16" if dtype == "bfloat16" else "f16")
    clear_rows = make_clear_rows(shape)
    in_registers, fragment_count = shape.in_registers, (head_dim + 15) // 16 * 4 if shape.in_registers else 4
    mask_scores, subtract_origins, move_origins, raise_maxima, weigh_scores, rescale, pack_weights = make_row_functions(
        key_tile, head_dim, dtype
    )
    store_row = make_store_row(head_dim, dtype)

    @cuda.jit(device=True)
    def release(barrier):
        """A warpgroup has read what the mbarrier guards: its first thread says so."""
        if cuda.threadIdx.x % 128 == 0:
            mbarrier_arrive(barrier)

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

    @cuda.jit(device=True)
    def leave_sums(sums, row_sums, piece, own):
        """Leave a thread's sums in shared memory, where the row's other lanes find them at the end.

        After every tile, and before the wait for the product in flight: ptxas keeps a store before a wait, and so has to compute the
        weights that the sums are made of before it. It would put all exponentials behind the wait otherwise, and nothing would overlap.
        """
        for half in range(2):
            row_sums[(2 * (piece & 1) + half) * consumer_threads + own] = sums[half]

    @cuda.jit(device=True)
    def store_rows(acc, row_sums, out, work, piece, own):
        """out = acc / sums: the rows of a piece of work that belong to its sequence."""
        cuda.syncwarp()
        at = WORK_WORDS * (piece & (WORK_SLOTS - 1))
        token, head, rows = work[at + TOKEN], work[at + HEAD], work[at + ROWS]
        for half in range(2):
            row = int32(own // 32 * 16 + own % 32 // 4 + 8 * half)
            lanes = (2 * (piece & 1) + half) * consumer_threads + own // 4 * 4  # that share the row
            total = (row_sums[lanes] + row_sums[lanes + 1]) + (row_sums[lanes + 2] + row_sums[lanes + 3])
            index = (int64(token + row) * out.shape[1] + head) * head_dim
            store_row(acc, 0, half, reciprocal_or_zero(total), out, index, row < rows, own % 32)

    @cuda.jit(device=True)
    def start_rows(maxima, sums, origins):
        """The state of rows that have seen no key."""
        for half in range(2):
            maxima[half] = float32(MINUS_INFINITY)
            sums[half] = float32(0.0)
            origins[half] = float32(0.0)

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
        """One warpgroup's 64 rows of every piece of work: out = sum of weights times values, over the sum of weights."""
        lane, consumer = int32(own % 32), cuda.shfl_sync(ALL_LANES, int32(own // 128), 0)
        queries, keys = uint32(base + consumer * 64 * row_bytes), uint32(base + query_slots * query_bytes)
        values = uint32(keys + ring_bytes)
        queries_full = uint32(base + barriers_at)
        queries_empty = uint32(queries_full + query_slots * BARRIER_BYTES)
        keys_full = uint32(queries_empty + query_slots * BARRIER_BYTES)
        keys_empty = uint32(keys_full + stages * BARRIER_BYTES)
        values_full = uint32(keys_full + ring_barrier_bytes)
        values_empty = uint32(values_full + stages * BARRIER_BYTES)
        acc = cuda.local.array(out_count, float32)
        scores = cuda.local.array(score_count, float32)
        weights = cuda.local.array(weight_count, uint32)
        maxima = cuda.local.array(2, float32)
        sums = cuda.local.array(2, float32)
        factors = cuda.local.array(2, float32)
        origins = cuda.local.array(2, float32)
        opaque = cuda.local.array(2, int32)
        fragments = cuda.local.array(fragment_count, uint32)

        piece, at, tile = int32(0), int32(0), int32(0)  # pieces and tiles that went by; where the piece in hand is described
        mbarrier_wait_parity(queries_full, 0)
        left = work[COUNT]  # tiles of the piece that are still to be taken
        if left > 0:
            # The last tile of keys comes first: it has the diagonal, and the rows behind the context.
            left = int32(left - 1)
            first_key = int32((work[STOP_TILE] - 1) * key_tile)
            first_position = work[FIRST_POSITION]
            start_rows(maxima, sums, origins)
            if in_registers:
                load_queries(fragments, uint32(base), own)
                mbarrier_arrive(queries_empty)
            mbarrier_wait_parity(keys_full, 0)
            start_scores(scores, fragments, queries, keys)
            wgmma_wait_group_0()
            keep_registers(scores, score_count)
            release(keys_empty)
            if not in_registers and left == 0:
                mbarrier_arrive(queries_empty)
            mask_scores(scores, first_key, int32(first_position + own // 32 * 16 + lane // 4), window, lane)
            raise_maxima(scores, maxima, factors, scale)
            from_origins = move_origins(scores, maxima, origins, scale)
            weigh_scores(scores, maxima, sums, factors, scale)
            leave_sums(sums, row_sums, piece, own)
            pack_weights(scores, weights)
            clear_unseen(words, values_full, values, work, at, tile, first_key, own)
            more = int32(0)  # whether the accumulator holds a part of the piece already

            while True:
                begins = left == 0  # another piece
                if begins:
                    piece = int32(piece + 1)
                    slot, parity = queries_slot_of(piece)
                    mbarrier_wait_parity(queries_full + BARRIER_BYTES * slot, parity)
                    at = int32(WORK_WORDS * (piece & (WORK_SLOTS - 1)))
                    left = work[at + COUNT]
                    if left < 0:
                        break
                    first_key = int32(work[at + STOP_TILE] * key_tile)
                    first_position = work[at + FIRST_POSITION]
                    from_origins = False
                    start_rows(maxima, sums, origins)
                    if in_registers:
                        load_queries(fragments, uint32(base + slot * query_bytes), own)
                        mbarrier_arrive(queries_empty + BARRIER_BYTES * slot)
                left, first_key = int32(left - 1), int32(first_key - key_tile)
                before, parity_before = slot_of(tile)
                tile = int32(tile + 1)
                stage, parity = slot_of(tile)
                slot, _ = queries_slot_of(piece)
                mbarrier_wait_parity(keys_full + BARRIER_BYTES * stage, parity)
                wait_for_turn(consumer)
                start_scores(scores, fragments, uint32(queries + slot * query_bytes), uint32(keys + stage * key_bytes))
                mbarrier_wait_parity(values_full + BARRIER_BYTES * before, parity_before)
                start_output(acc, weights, uint32(values + before * key_bytes), more)
                pass_turn(consumer)
                wgmma_wait_group_1()
                keep_registers(scores, score_count)
                release(keys_empty + BARRIER_BYTES * stage)
                if not in_registers and left == 0:
                    mbarrier_arrive(queries_empty + BARRIER_BYTES * slot)
                last_seen_by_all = int32(first_position + consumer * 64)
                first_seen_by_all = int32(last_seen_by_all + 64 - window if window > 0 else 0)
                special = from_origins or first_key + key_tile - 1 > last_seen_by_all or first_key < first_seen_by_all
                if special:
                    mask_scores(scores, first_key, int32(first_position + own // 32 * 16 + lane // 4), window, lane)
                    if from_origins:
                        subtract_origins(scores, origins)
                raise_maxima(scores, maxima, factors, scale)
                if special:
                    from_origins = move_origins(scores, maxima, origins, scale)
                weigh_scores(scores, maxima, sums, factors, scale)
                leave_sums(sums, row_sums, piece, own)
                wgmma_wait_group_0()
                keep_registers(acc, out_count)
                keep_registers(weights, weight_count)  # which the product that has just ended was reading
                release(values_empty + BARRIER_BYTES * before)
                if begins:
                    # Computed from these afresh: ptxas would keep addresses in registers that the loop needs.
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

    return consume, wait_for_turn, pass_turn
