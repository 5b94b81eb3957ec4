"""A consumer's operations over keys and values in fp8: queries and weights are rounded to e4m3, and wgmma multiplies codes by codes.

    queries    each row of a head is multiplied by a power of two, after which its largest number lies from 128 up to 256, and its scores by
               the inverse; wgmma reads the codes from shared memory
    weights    are multiplied by 2 ** OFFSET, as their sum is, so that the division cancels it: e4m3 keeps 4 bits from 2 ** -6 on, and fewer
               below. The sum is that of weights before they are rounded

A row's maximum is raised only if a weight would exceed 2 ** GROWTH, as for 16 bits; OFFSET + GROWTH is below log2(448), the largest e4m3.
OFFSET is whole, so that the largest weight needs no rounding: with 6.75 it lost 3 % in every row, and the outputs 2.5 %.
"""

import functools

from numba import cuda, float32, int32, int64, uint32

from minllm import ptx
from minllm.kernels.attention.common.online_softmax import finite_or_zero, reciprocal_or_zero
from minllm.kernels.attention.common.paged_cache import kv_head_of
from minllm.kernels.attention.flash_attention_3.consumer import Parts
from minllm.kernels.attention.flash_attention_3.rows import make_mask, make_state
from minllm.kernels.attention.flash_attention_3.tiles import make_pipelines
from minllm.kernels.attention.flash_attention_3.work import HEAD, ROWS, TOKEN, WORK_SLOTS, WORK_WORDS
from minllm.tiles.rows import make_rows as make_register_rows
from minllm.tiles.shared import first_tile_address
from minllm.tiles.wgmma import make_wgmma

OFFSET, GROWTH = 7.0, 1.75  # powers of two; 2 ** 8.75 is 431
EXPONENT = 7  # of the largest quantised query of a row
BIAS = 127  # of float32's exponents
FIRST_CODES = 6  # the named barrier after the first consumer has stored its queries; the other consumer's follows
LEAST = EXPONENT + 1  # the least biased exponent for which the row's scale is a normal number


@functools.cache
def make_quantize_queries(shape, dtype):
    """load_queries, as in Parts: rounds a warp's 16 rows of 16-bit `dtype` to e4m3 and stores them in another tile of shared memory."""
    queries, tile, steps = make_pipelines(shape).queries, shape.queries, shape.query_registers // 4
    swizzle, panel_columns, panel_words, words_per_row = tile.swizzle, tile.panel_columns, tile.panel_bytes // 4, 4 * steps
    code_bytes, codes_at = shape.query_codes.swizzle, shape.query_codes_at
    unpack = ptx.unpack_bf16x2 if dtype == "bfloat16" else ptx.unpack_f16x2

    @cuda.jit(device=True)
    def load_row(pairs, words, first_word, row, lane):
        """Load four of each 16 columns of a row, as pairs."""
        line = uint32(row * uint32(swizzle))
        swizzled = uint32(line >> uint32(7) & uint32(swizzle // 16 - 1)) << uint32(4)
        within = uint32(line + uint32(uint32(8) * uint32(lane % uint32(4)) ^ swizzled))
        for step in range(2 * steps):
            panel, column = 16 * step // panel_columns, 16 * step % panel_columns
            at = uint32(first_word + uint32(panel * panel_words) + (within ^ uint32(2 * column)) // uint32(4))
            pairs[2 * step], pairs[2 * step + 1] = words[at], words[at + uint32(1)]

    @cuda.jit(device=True)
    def exponent_of(pairs):
        """The biased exponent of the largest element of a row, at least LEAST. Magnitudes are in the order of their bits."""
        low, high = uint32(0), uint32(0)
        for i in range(words_per_row):
            low, high = max(low, uint32(pairs[i] & uint32(0x7FFF))), max(high, uint32(pairs[i] & uint32(0x7FFF0000)))
        largest = max(low, uint32(high >> uint32(16)))
        largest = max(largest, uint32(cuda.shfl_xor_sync(0xFFFFFFFF, int32(largest), 1)))
        largest = max(largest, uint32(cuda.shfl_xor_sync(0xFFFFFFFF, int32(largest), 2)))
        value, _ = unpack(largest)
        return max(uint32(ptx.float_as_uint(value) >> uint32(23)), uint32(LEAST))

    @cuda.jit(device=True)
    def store_row(pairs, factor, words, first_code, row, lane):
        """Store the same columns times a factor as codes, in the tile that begins at word first_code."""
        line = uint32(row * uint32(code_bytes))
        swizzled = uint32(line >> uint32(7) & uint32(code_bytes // 16 - 1)) << uint32(4)
        for i in range(2 * steps):
            first, second = unpack(pairs[2 * i])
            third, fourth = unpack(pairs[2 * i + 1])
            at = uint32(first_code + uint32(line + uint32(swizzled ^ uint32(16 * i))) // uint32(4) + lane % uint32(4))
            words[at] = ptx.pack_e4m3x4(first * factor, second * factor, third * factor, fourth * factor)

    @cuda.jit(device=True)
    def load_queries(query, rows, ring, state, shared, item, own, scale):
        """Round the queries of a thread's rows, release their stage, and set the rows' scales. `opaque` hides own, as in store_item."""
        pairs, opaque = cuda.local.array(words_per_row, uint32), ptx.keep_register(uint32(own))
        lane, first_row = uint32(opaque % uint32(32)), uint32(opaque // uint32(32) * uint32(16) + opaque % uint32(32) // uint32(4))
        first_word = uint32(queries.stage(ring, state).tiles - ptx.shared_address(shared.words, 0)) // uint32(4)
        first_code = uint32(first_tile_address(shared.words) + uint32(codes_at) - ptx.shared_address(shared.words, 0)) // uint32(4)
        head = shared.work[WORK_WORDS * (item & (WORK_SLOTS - 1)) + HEAD]
        scale *= shared.key_scales[kv_head_of(head, shared.heads, shared.key_scales.shape[0])]
        for half in range(2):
            row = uint32(first_row + uint32(8 * half))
            load_row(pairs, shared.words, first_word, row, lane)
            exponent = exponent_of(pairs)
            factor = ptx.uint_as_float(uint32(2 * BIAS + EXPONENT - exponent) << uint32(23))
            rows.scales[half] = scale * ptx.uint_as_float(uint32(exponent - EXPONENT) << uint32(23))
            store_row(pairs, factor, shared.words, first_code, row, lane)
        queries.consumer_release(ring, state)
        ptx.fence_proxy_async()
        ptx.bar_sync(FIRST_CODES + own // 128, 128)

    return load_queries


@functools.cache
def make_weights(shape, score_rows):
    """(raise_maxima, exponentials, pack_weights): device functions that make weights of scores."""
    blocks, steps = shape.key_tile // 8, shape.key_tile // 32

    @cuda.jit(device=True)
    def raise_maxima(scores, rows):
        """Update the rows' maxima from the scores, and set their factors."""
        for half in range(2):
            scale, highest = rows.scales[half], score_rows.maximum(scores, half, rows.maxima[half])
            if highest * scale <= rows.maxima[half] * scale + float32(GROWTH):
                highest = rows.maxima[half]
            rows.factors[half] = ptx.ex2((rows.maxima[half] - finite_or_zero(highest)) * scale)
            rows.maxima[half] = highest

    @cuda.jit(device=True)
    def exponentials(scores, half, shift, scale, total):
        """A row's scores become 2 ** (scale * score - shift); returns total plus their sum over the thread's columns."""
        for block in range(blocks):
            at = 4 * block + 2 * half
            left, right = ptx.ex2(scores[at] * scale - shift), ptx.ex2(scores[at + 1] * scale - shift)
            scores[at], scores[at + 1] = left, right
            total = total + (left + right)
        return total

    @cuda.jit(device=True)
    def pack_weights(scores, weights):
        """Round weights to e4m3: the columns that a thread holds are those that it gives wgmma, in the order of transpose.py."""
        for step in range(steps):
            for i in range(2):
                for half in range(2):
                    at = 16 * step + 8 * i + 2 * half
                    weights[4 * step + 2 * i + half] = ptx.pack_e4m3x4(scores[at], scores[at + 1], scores[at + 4], scores[at + 5])

    return raise_maxima, exponentials, pack_weights


@functools.cache
def make_parts(shape, dtype):
    """The Parts for keys and values in e4m3, for queries and output of 16-bit `dtype`."""
    head_dim, key_tile = shape.head_dim, shape.key_tile
    score_rows, out_rows = make_register_rows(key_tile, dtype), make_register_rows(head_dim, dtype)
    start_rows, leave_sums, total, rescale = make_state(shape, out_rows)
    is_masked, mask = make_mask(key_tile, score_rows)
    raise_maxima, exponentials, pack_weights = make_weights(shape, score_rows)
    pack_pair = ptx.pack_bf16x2 if dtype == "bfloat16" else ptx.pack_f16x2
    scores, output = make_wgmma(shape.keys, "float8_e4m3fn", left=shape.query_codes), make_wgmma(shape.transposed, "float8_e4m3fn")
    codes_at, code_bytes, swizzle = shape.query_codes_at, shape.query_codes.swizzle, shape.swizzle

    @cuda.jit(device=True, forceinline=True)
    def left_of(query, ring, state, first_row_bytes):
        return scores.left(ptx.keep_register(uint32(ring.stages + codes_at + first_row_bytes * code_bytes // swizzle)))

    @cuda.jit(device=True)
    def clear_unseen(ring, shared, at, tile, first_key, own):
        """Rows that no query row sees were cleared before the tile was transposed."""

    @cuda.jit(device=True)
    def weigh_tile(scores, rows, from_origins, shared, at, item, first_key, consumer, own, scale, window):
        """Replace the scores of the keys from first_key on by weights; no row ever has an origin."""
        if is_masked(shared, at, first_key, consumer, window):
            mask(scores, shared, at, first_key, own, window)
        raise_maxima(scores, rows)
        for half in range(2):
            shift = finite_or_zero(rows.maxima[half]) * rows.scales[half] - float32(OFFSET)
            rows.sums[half] = exponentials(scores, half, shift, rows.scales[half], rows.sums[half] * rows.factors[half])
        leave_sums(rows, shared, item, own)
        return False

    @cuda.jit(device=True)
    def store_rows(acc, shared, out, item, own):
        """Store out = scale * acc / sums, for the rows of a work item that belong to its sequence."""
        cuda.syncwarp()
        at = WORK_WORDS * (item & (WORK_SLOTS - 1))
        token, head, rows = shared.work[at + TOKEN], shared.work[at + HEAD], shared.work[at + ROWS]
        scale = shared.value_scales[kv_head_of(head, shared.heads, shared.value_scales.shape[0])]
        factors = cuda.local.array(2, float32)
        for half in range(2):
            factors[half] = scale * reciprocal_or_zero(total(shared, item, half, own))
        cuda.syncwarp()  # another lane may leave the sums of the item after the next one in the same place
        for half in range(2):
            row, factor = int32(own // 32 * 16 + own % 32 // 4 + 8 * half), factors[half]
            index = (int64(token + row) * out.shape[1] + head) * head_dim + 4 * (own % 4)
            if row < rows:
                for i in range(head_dim // 16):  # a thread's two columns of these 8 are components 4i and 4i + 2, of the next 8 those after
                    even, odd = 8 * i + 2 * half, 8 * i + 4 + 2 * half
                    first = pack_pair(acc[even] * factor, acc[odd] * factor)
                    ptx.store_64(out, index + 16 * i, first, pack_pair(acc[even + 1] * factor, acc[odd + 1] * factor))

    softmax = start_rows, weigh_tile, rescale, pack_weights, store_rows
    return Parts(scores, output, make_quantize_queries(shape, dtype), left_of, clear_unseen, *softmax)
