"""A consumer's operations over keys and values in 16 bits: the softmax of a tile of scores, final division and store."""

import functools

from numba import cuda, float32, int32, int64, uint32

from minllm import ptx
from minllm.kernels.attention.common.online_softmax import finite_or_zero, reciprocal_or_zero
from minllm.kernels.attention.flash_attention_3.consumer import Parts
from minllm.kernels.attention.flash_attention_3.rows import make_mask, make_state
from minllm.kernels.attention.flash_attention_3.tiles import make_pipelines
from minllm.kernels.attention.flash_attention_3.work import CONTEXT_LEN, HEAD, ROWS, TOKEN, VISIBLE_START, WORK_SLOTS, WORK_WORDS
from minllm.ptx import ex2
from minllm.tiles.left_operand import make_load_left
from minllm.tiles.rows import make_rows as make_register_rows
from minllm.tiles.warp import ALL_LANES
from minllm.tiles.wgmma import make_wgmma

GROWTH = 8.0  # log2 of how much a weight may exceed 1 before a row's maximum is raised
HUGE = 1024.0  # maxima beyond this, to base 2, have a rounding error that would show in 16-bit weights
CLEARED = 1  # the named barrier after the consumers have cleared rows


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


@functools.cache
def make_clear_unseen(shape):
    """clear_unseen: device function that clears the rows of a tile of V that no query row sees, because 0 * NaN would be NaN."""
    key_tile, panels, row_words, threads = shape.key_tile, shape.keys.panels, shape.swizzle // 4, 128 * shape.consumers
    values = make_pipelines(shape).values

    @cuda.jit(device=True)
    def clear_rows(words, address, first, stop, thread):
        """Clear rows first to stop of the tile at a shared address in `words`; the swizzle keeps a row's chunks within the row."""
        tile_word = int32((address - ptx.shared_address(words, 0)) // 4)
        count = int32(max(0, stop - first) * row_words)
        i = int32(thread)
        while i < count:
            for panel in range(panels):
                words[tile_word + (panel * key_tile + first) * row_words + i] = uint32(0)
            i += threads
        ptx.fence_proxy_async()
        ptx.bar_sync(CLEARED, threads)

    @cuda.jit(device=True)
    def clear_unseen(ring, shared, at, tile, first_key, own):
        """Clear rows after the end of the context, or before the window."""
        context_len, visible_start = shared.work[at + CONTEXT_LEN], shared.work[at + VISIBLE_START]
        if first_key + key_tile > context_len or first_key < visible_start:
            state = values.state(tile)
            values.consumer_wait(ring, state)
            address = values.stage(ring, state).tiles
            clear_rows(shared.words, address, int32(context_len - first_key), key_tile, own)
            clear_rows(shared.words, address, 0, int32(visible_start - first_key), own)

    return clear_unseen


@functools.cache
def make_parts(shape, dtype):
    """The Parts for keys and values of 16-bit `dtype`.

    Queries are held in registers if they fit: otherwise Q K^T reads them from shared memory again for every tile of keys, and TMA and wgmma
    together are close to the bandwidth of shared memory.
    """
    in_registers, queries = shape.queries_in_registers, make_pipelines(shape).queries
    scores = make_wgmma(shape.keys, dtype, left=None if in_registers else shape.queries)
    output = make_wgmma(shape.keys, dtype, right_major="mn")
    load_left = make_load_left(shape.queries)

    @cuda.jit(device=True)
    def load_queries(query, rows, ring, state, shared, item, own, scale):
        """If queries are held in registers, load them and release their stage."""
        if in_registers:
            load_left(query, queries.stage(ring, state).tiles, own // 32 * 16, own % 32)
            queries.consumer_release(ring, state)

    @cuda.jit(device=True, forceinline=True)
    def left_in_registers(query, ring, state, first_row_bytes):
        return query

    @cuda.jit(device=True, forceinline=True)
    def left_in_shared(query, ring, state, first_row_bytes):
        return scores.left(ptx.keep_register(queries.stage(ring, state).tiles + first_row_bytes))  # else kept over all tiles, and spilled

    left_of = left_in_registers if in_registers else left_in_shared
    return Parts(scores, output, load_queries, left_of, make_clear_unseen(shape), *make_rows(dtype, shape))
