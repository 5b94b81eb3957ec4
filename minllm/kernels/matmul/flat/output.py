"""Epilogue of the flat GEMMs: add the parts of split-K, apply scales, bias or SiLU-and-multiply, and store out row by row.

A tensor core leaves each lane two tokens of one output feature, but neighbours in memory are features of one token. So the sums pass
through shared memory, as float32 [tokens, rows + PADDING]; there the parts of split-K are added too, always in the same order and never
by atomics: two runs give the same bits.

Source: N. Shazeer, "GLU Variants Improve Transformer", 2020 (SwiGLU).
"""

from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.kernels.activation.sigmoid import sigmoid
from minllm.kernels.arguments import rows_begin_on
from minllm.kernels.matmul.output_tiles import PACK, make_store_pair

PADDING = 4  # float32 of padding per token, so that the 32 lanes of a warp write to 32 different banks


def make_keep_sums(rows: int, blocks_n: int):
    """The device function that stores a lane's sums of 16 rows of weight and 8 * blocks_n tokens in shared memory."""
    stride = rows + PADDING

    @cuda.jit(device=True, forceinline=True)
    def keep_sums(total, at, sums, start, row, lane):
        """sums[start + token * stride + row...] = the fragment of C [16, 8 * blocks_n] from total[at] on."""
        place = uint32(start + (lane & 3) * 2 * stride + row + (lane >> 2))
        for block in range(blocks_n):
            here = uint32(place + block * 8 * stride)
            sums[here], sums[here + 8] = float32(total[at + 4 * block]), float32(total[at + 4 * block + 2])
            sums[here + stride], sums[here + stride + 8] = float32(total[at + 4 * block + 1]), float32(total[at + 4 * block + 3])

    return keep_sums


def make_added(splits: int, sharers: int):
    """The device function that adds four neighbouring sums over the blocks of a cluster that divide K."""

    @cuda.jit(device=True, forceinline=True)
    def added(sums, start, place):
        if splits == 1:
            return ptx.load_float32(sums, start + place)
        here, sharer = ptx.shared_address(sums, start + place), ptx.cluster_ctarank() % uint32(sharers)
        a, b, c, d = float32(0.0), float32(0.0), float32(0.0), float32(0.0)
        for split in range(splits):
            e, f, g, h = ptx.ld_shared_cluster_v4_f32(ptx.mapa(here, split * sharers + sharer))
            a, b, c, d = a + e, b + f, c + g, d + h
        return a, b, c, d

    return added


def make_store_eight(dtype: str, together: int):
    """The device function that stores eight neighbouring outputs of a row, 8, 4, 2 or 1 `together` (see `stored_together`)."""
    pack, store_pair = PACK[dtype], make_store_pair(dtype if together == 2 else None)

    @cuda.jit(device=True, forceinline=True)
    def store_four(out, row, column, four):
        """Store four float32."""
        if row < out.shape[0] and column < out.shape[1]:
            first, second = ptx.float_as_uint(four[0]), ptx.float_as_uint(four[1])
            third, fourth = ptx.float_as_uint(four[2]), ptx.float_as_uint(four[3])
            ptx.store_128(out, row * out.shape[1] + column, first, second, third, fourth)

    @cuda.jit(device=True, forceinline=True)
    def store_eight(out, row, column, low, high):
        if together == 8:
            if row < out.shape[0] and column < out.shape[1]:
                first, second = pack(low[0], low[1]), pack(low[2], low[3])
                ptx.store_128(out, row * out.shape[1] + column, first, second, pack(high[0], high[1]), pack(high[2], high[3]))
        elif together == 4:
            store_four(out, row, column, low)
            store_four(out, row, column + 4, high)
        else:
            store_pair(out, row, column, low[0], low[1])
            store_pair(out, row, column + 2, low[2], low[3])
            store_pair(out, row, column + 4, high[0], high[1])
            store_pair(out, row, column + 6, high[2], high[3])

    return store_eight


def stored_together(out, dtype) -> int:
    """Outputs of a row that one store can hold.

    8 of `dtype` or 4 float32 if rows are aligned to 16 bytes, 2 of `dtype` if aligned to 4, else 1. Stored one by one, float32 of
    neighbouring eights would lie in 32 sectors of L2 per store of a warp, so logits would take eight times as many sectors.
    """
    if rows_begin_on(16, out):
        return 8 if out.dtype == dtype else 4
    return 2 if out.dtype == dtype and rows_begin_on(4, out) else 1


def make_write(rows: int, writers: int, dtype: str, gated: bool, together: int, added):
    """The device function with which `writers` threads write the outputs of `rows` rows of weight.

    added(sums, start, place): the device function that adds four neighbouring sums over the parts of K. gated: the first half of the rows
    is the gate, the second half the values it multiplies. together: as in make_store_eight, for outputs of `dtype`. Sums of 8-bit codes are
    multiplied by x_scales [M] and scales [N]; else these are None. A thread reads 16 bytes of sums, and stores 16 bytes of
    outputs, at a time.
    """
    columns, stride = rows // 2 if gated else rows, rows + PADDING
    store_eight = make_store_eight(dtype, together)

    @cuda.jit(device=True, forceinline=True)
    def bias_at(bias, column):
        """The bias of a column; the last one beyond the edge, because outputs there are not stored."""
        return float32(bias[min(column, bias.shape[0] - 1)])

    @cuda.jit(device=True, forceinline=True)
    def scaled(sums, start, place, x_scale, scales, channel):
        """Four sums, times the scales of their row and of `channel` and the next three, if they have any."""
        a, b, c, d = added(sums, start, place)
        if scales is None:
            return a, b, c, d
        last = scales.shape[0] - 1
        a, b = a * x_scale * scales[min(channel, last)], b * x_scale * scales[min(channel + 1, last)]
        return a, b, c * x_scale * scales[min(channel + 2, last)], d * x_scale * scales[min(channel + 3, last)]

    @cuda.jit(device=True, forceinline=True)
    def scale_of(x_scales, token):
        return float32(1.0) if x_scales is None else x_scales[token]

    @cuda.jit(device=True, forceinline=True)
    def outputs(sums, start, place, bias, x_scale, scales, column, inner):
        """Four outputs, in this column of out and the next three, from the sums at `place`; out has `inner` columns."""
        a, b, c, d = scaled(sums, start, place, x_scale, scales, column)
        if gated:
            e, f, g, h = scaled(sums, start, place + columns, x_scale, scales, column + inner)
            return a * sigmoid(a) * e, b * sigmoid(b) * f, c * sigmoid(c) * g, d * sigmoid(d) * h
        if bias is not None:
            e, f = a + bias_at(bias, column), b + bias_at(bias, column + 1)
            return e, f, c + bias_at(bias, column + 2), d + bias_at(bias, column + 3)
        return a, b, c, d

    @cuda.jit(device=True, forceinline=True)
    def write(bias, x_scales, scales, out, sums, start, first_token, tokens, first_column, writer):
        """out[first_token : + tokens, first_column : + columns]; neighbouring writers write neighbouring eights."""
        eights = columns // 8
        item = int32(writer)
        while item < tokens * eights:
            token, eight = item // eights, item % eights
            place, column = uint32(token * stride + 8 * eight), int32(first_column + 8 * eight)
            x_scale, inner = scale_of(x_scales, first_token + token), int32(out.shape[1])
            low = outputs(sums, start, place, bias, x_scale, scales, column, inner)
            high = outputs(sums, start, place + 4, bias, x_scale, scales, column + 4, inner)
            store_eight(out, first_token + token, column, low, high)
            item = int32(item + writers)

    return write
