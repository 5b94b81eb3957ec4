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
    make_ring,
)
from minllm.kernels.attention.hopper_tiles import BARRIER_BYTES, make_clear_rows, make_products
from minllm.kernels.attention.online_softmax import MINUS_INFINITY, reciprocal_or_zero
from minllm.kernels.attention.register_rows import make_row_functions, make_store_row
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
    """(attend, store_rows, wait_for_turn, pass_turn): device functions of a consumer, for 16-bit `dtype`."""
    head_dim, consumers, key_tile, stages = shape.head_dim, shape.consumers, shape.key_tile, shape.stages
    query_bytes, key_bytes, row_bytes, ring_bytes = shape.query_bytes, shape.key_bytes, shape.row_bytes, shape.ring_bytes
    barriers_at, ring_barrier_bytes, consumer_threads = shape.barriers_at, shape.ring_barrier_bytes, 128 * consumers
    score_count, weight_count, out_count = key_tile // 2, key_tile // 4, head_dim // 2

    slot_of = make_ring(shape)
    start_scores, start_output = make_products(shape, "bf16" if dtype == "bfloat16" else "f16")
    clear_rows = make_clear_rows(shape)
    mask_scores, choose_origins, raise_maxima, weigh_scores, rescale, pack_weights = make_row_functions(key_tile, head_dim, dtype)
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
    def leave_sums(sums, row_sums, own):
        """Leave a thread's sums in shared memory, where the row's other lanes find them at the end.

        After every tile, and before the wait for the product in flight: ptxas keeps a store before a wait, and so has to compute the
        weights that the sums are made of before it. It would put all exponentials behind the wait otherwise, and nothing would overlap.
        """
        for half in range(2):
            row_sums[half * consumer_threads + own] = sums[half]

    @cuda.jit(device=True)
    def row_sum(row_sums, half, own):
        """The sum of a row: of what its four lanes have left."""
        at = half * consumer_threads + own // 4 * 4
        return (row_sums[at] + row_sums[at + 1]) + (row_sums[at + 2] + row_sums[at + 3])

    @cuda.jit(device=True)
    def store_rows(acc, row_sums, out, work, at, own):
        """out = acc / sums: the rows of the tile that belong to the sequence."""
        cuda.syncwarp()
        token, head, rows = work[at + TOKEN], work[at + HEAD], work[at + ROWS]
        for half in range(2):
            row = int32(own // 32 * 16 + own % 32 // 4 + 8 * half)
            index = (int64(token + row) * out.shape[1] + head) * head_dim
            store_row(acc, 0, half, reciprocal_or_zero(row_sum(row_sums, half, own)), out, index, row < rows, own % 32)

    @cuda.jit(device=True)
    def attend(acc, row_sums, words, base, work, at, tile, own, scale, window):
        """One warpgroup's 64 rows of the work at `at`: acc = sum of weights times values, row_sums = sums of weights."""
        first_position = work[at + FIRST_POSITION]
        lane, consumer = int32(own % 32), int32(own // 128)
        position = int32(first_position + own // 32 * 16 + lane // 4)  # of the thread's first row
        query, keys = uint32(base + consumer * 64 * row_bytes), uint32(base + query_bytes)
        values = uint32(keys + ring_bytes)
        queries_empty = uint32(base + barriers_at + BARRIER_BYTES)
        keys_full = uint32(queries_empty + BARRIER_BYTES)
        keys_empty = uint32(keys_full + stages * BARRIER_BYTES)
        values_full = uint32(keys_full + ring_barrier_bytes)
        values_empty = uint32(values_full + stages * BARRIER_BYTES)
        scores = cuda.local.array(score_count, float32)
        weights = cuda.local.array(weight_count, uint32)
        maxima = cuda.local.array(2, float32)
        sums = cuda.local.array(2, float32)
        factors = cuda.local.array(2, float32)
        origins = cuda.local.array(2, float32)
        for half in range(2):
            maxima[half] = float32(MINUS_INFINITY)
            sums[half] = float32(0.0)
            origins[half] = float32(0.0)

        # The last tile of keys comes first: it has the diagonal, and the rows behind the context.
        first_key = int32((work[at + STOP_TILE] - 1) * key_tile)
        stage, parity = slot_of(tile)
        mbarrier_wait_parity(keys_full + BARRIER_BYTES * stage, parity)
        start_scores(scores, query, uint32(keys + stage * key_bytes))
        wgmma_wait_group_0()
        keep_registers(scores, score_count)
        release(keys_empty + BARRIER_BYTES * stage)
        mask_scores(scores, first_key, position, window, lane)
        from_origins = choose_origins(scores, maxima, origins, scale)
        raise_maxima(scores, maxima, factors, scale)
        weigh_scores(scores, maxima, sums, factors, scale)
        leave_sums(sums, row_sums, own)
        pack_weights(scores, weights)
        context_len = work[at + CONTEXT_LEN]
        if first_key + key_tile > context_len:
            mbarrier_wait_parity(values_full + BARRIER_BYTES * stage, parity)
            clear_rows(words, uint32(values + stage * key_bytes), int32(context_len - first_key), key_tile, own)

        for _ in range(1, work[at + COUNT]):
            before, parity_before = slot_of(tile)
            tile += 1
            stage, parity = slot_of(tile)
            first_key -= key_tile
            mbarrier_wait_parity(keys_full + BARRIER_BYTES * stage, parity)
            wait_for_turn(consumer)
            start_scores(scores, query, uint32(keys + stage * key_bytes))
            mbarrier_wait_parity(values_full + BARRIER_BYTES * before, parity_before)
            start_output(acc, weights, uint32(values + before * key_bytes))
            pass_turn(consumer)
            wgmma_wait_group_1()
            keep_registers(scores, score_count)
            release(keys_empty + BARRIER_BYTES * stage)
            last_seen_by_all = first_position + consumer * 64
            first_seen_by_all = last_seen_by_all + 64 - window if window > 0 else 0
            if from_origins or first_key + key_tile - 1 > last_seen_by_all or first_key < first_seen_by_all:
                mask_scores(scores, first_key, position, window, lane)
                from_origins = choose_origins(scores, maxima, origins, scale)
            raise_maxima(scores, maxima, factors, scale)
            weigh_scores(scores, maxima, sums, factors, scale)
            leave_sums(sums, row_sums, own)
            wgmma_wait_group_0()
            keep_registers(acc, out_count)
            keep_registers(weights, weight_count)  # which the product that has just ended was reading
            release(values_empty + BARRIER_BYTES * before)
            rescale(acc, factors)
            pack_weights(scores, weights)

        mbarrier_arrive(queries_empty)
        stage, parity = slot_of(tile)
        mbarrier_wait_parity(values_full + BARRIER_BYTES * stage, parity)
        visible_start = work[at + VISIBLE_START]
        if first_key < visible_start:
            clear_rows(words, uint32(values + stage * key_bytes), 0, int32(visible_start - first_key), own)
        start_output(acc, weights, uint32(values + stage * key_bytes))
        wgmma_wait_group_0()
        keep_registers(acc, out_count)
        release(values_empty + BARRIER_BYTES * stage)

    return attend, store_rows, wait_for_turn, pass_turn
