"""RMSNorm between two flat GEMMs without a kernel of its own: the first GEMM sums squares, the second divides.

    stream = x @ weight.T + residual              scaled = stream * norm            squares = sum over n of stream^2
    rms_norm(stream) @ next.T = (scaled @ next.T) / sqrt(squares / N + epsilon)

A sum over k can be divided by a row's root mean square at its end. So the epilogue of the first GEMM, which has a part of every row of the
stream in registers, multiplies by the norm's weights and leaves the sum of the squares of its columns; the epilogue of the second adds the
parts of a row and divides. The kernel between the two, which moves a few KB and makes every SM wait for it, is gone. Rounding is that of
the norm's kernel: one rounding to 16 bits of a number that differs from the normalised one by a factor per row.

Bytes besides the GEMM's: M N elements of the residual, 2 M N of stream and scaled; squares are [tiles of N, M] float32. Each tile writes
its own part, and parts are added in a fixed order: two runs give the same bits.

Source: N. Graef et al., "FlashNorm: Fast Normalization for LLMs", arXiv 2407.09577, which also merges the norm's weights into the next
matrix; here matrices stay as they are in the checkpoint.
"""

import functools
from typing import NamedTuple

from numba import cuda, float32, int32, int64, uint32
from numba.cuda import libdevice

from minllm import ptx
from minllm.kernels.activation.sigmoid import sigmoid
from minllm.kernels.matmul.flat.mainloop import make_mainloop
from minllm.kernels.matmul.flat.output import PADDING
from minllm.kernels.matmul.flat.wgmma_tiling import FlatWgmmaTiling
from minllm.kernels.vector import load_words, vector_access, vector_unpack
from minllm.runtime.array_protocol import Array
from minllm.runtime.kernel import kernel
from minllm.tiles.unrolled import unrolled
from minllm.tiles.warp import ALL_LANES
from minllm.tiles.warpgroup import THREADS, sync_blocks, wait_for_blocks


class DeferredNorm(NamedTuple):
    """A residual stream with an unfinished norm: rms_norm(stream) = scaled / sqrt(sum of squares / hidden + epsilon)."""

    stream: Array  # [T, hidden]
    scaled: Array  # [T, hidden]
    squares: Array  # [parts, T] float32; the sum over the parts is the sum of the squares of a row
    epsilon: float

    @property
    def shape(self) -> tuple[int, int]:
        """(T, hidden)."""
        return self.stream.shape


def items_per_thread(tokens: int, columns: int, writers: int) -> int:
    """Groups of eight outputs per thread, if `writers` threads write `columns` outputs of each token."""
    return -(-tokens * columns // 8 // writers)


def make_inverse_rms(columns: int, parts: int):
    """The device functions (load_squares, sum_over_eights, inverse_rms), for the 1 / root mean square of a token's row.

    Neighbouring threads hold eight columns each of a token. parts: rows of `squares`, a compile-time constant so that a thread's loads are
    all in flight at once.
    """
    eights = columns // 8
    each = -(-parts // eights)

    @cuda.jit(device=True, forceinline=True)
    def sum_over_eights(value):
        """The sum over the threads that share a token; the whole warp must call it."""
        distance = eights >> 1
        while distance:
            value += cuda.shfl_xor_sync(ALL_LANES, value, distance)
            distance >>= 1
        return value

    @cuda.jit(device=True, forceinline=True)
    def load_squares(squares, token, writer):
        """This thread's share of a row's sum of squares: the threads that share a token divide the parts among them."""
        total = float32(0.0)
        for i in range(each):
            part = uint32(writer % eights + i * eights)
            if parts % eights == 0 or part < parts:
                total += squares[part, uint32(token)]
        return total

    @cuda.jit(device=True, forceinline=True)
    def inverse_rms(share, width, epsilon):
        """1 / the root mean square of a row of `width` elements, from the shares of the threads that share it."""
        return libdevice.rsqrtf(sum_over_eights(share) / float32(width) + epsilon)

    return load_squares, sum_over_eights, inverse_rms


class Kept(NamedTuple):
    """What a thread loads before the sums are done: a number per token, and vectors as words."""

    squares: Array  # [items] its shares of the sums of squares of x's rows
    addends: Array  # [items * 4] the residuals of its outputs
    norm: Array  # [4] the norm's weights for its columns


def make_epilogue(rows: int, tokens: int, writers: int, dtype: str, gated: bool, parts: int, added):
    """Device functions (prepare, write) of `writers` threads for `rows` rows of weight; added: as in output.make_write."""
    columns, stride = rows // 2 if gated else rows, rows + PADDING
    eights, items = columns // 8, items_per_thread(tokens, columns, writers)
    tokens_apart = writers // eights
    _, _, store = vector_access(dtype)
    unpack = vector_unpack(dtype)
    load_squares, sum_over_eights, inverse_rms = make_inverse_rms(columns, parts)

    @cuda.jit(device=True, forceinline=True)
    def prepare_item(i, kept, squares, residual, m, column, writer):
        token = min(int32(writer // eights + i * tokens_apart), int32(m - 1))
        if squares is not None:
            kept.squares[i] = load_squares(squares, token, writer)
        if residual is not None:
            load_words(residual, int64(token) * residual.shape[1] + column, kept.addends, 4 * i)

    prepare_items = unrolled(prepare_item, items)

    @cuda.jit(device=True, forceinline=True)
    def prepare(kept, squares, residual, norm, m, column, writer):
        """Load the operands of this thread's outputs, which begin at `column`."""
        if norm is not None:
            load_words(norm, column, kept.norm, 0)
        ptx.griddepcontrol_wait()
        prepare_items(kept, squares, residual, m, column, writer)

    @cuda.jit(device=True, forceinline=True)
    def outputs(values, scale, sums, start, place):
        """values[0:8] = scale * the sums at `place`, gated."""
        for four in range(0, 8, 4):
            values[four], values[four + 1], values[four + 2], values[four + 3] = added(sums, start, place + four)
        for k in range(8):
            values[k] *= scale
        if gated:
            ups = cuda.local.array(8, float32)
            for four in range(0, 8, 4):
                ups[four], ups[four + 1], ups[four + 2], ups[four + 3] = added(sums, start, place + columns + four)
            for k in range(8):
                values[k] *= sigmoid(values[k]) * ups[k] * scale

    @cuda.jit(device=True, forceinline=True)
    def write_scaled(values, kept, scaled, out_squares, token, tile, m, column, writer):
        """Store values * norm and the sum of the squares of the tile's columns."""
        total = float32(0.0)
        for k in range(8):
            total += values[k] * values[k]
        total = sum_over_eights(total)
        weights = cuda.local.array(8, float32)
        unpack(kept.norm, 0, weights, 0)
        for k in range(8):
            values[k] *= weights[k]
        if token < m:
            store(scaled, int64(token) * scaled.shape[1] + column, values, 0)
            if writer % eights == 0:
                out_squares[uint32(tile), uint32(token)] = total

    @cuda.jit(device=True, forceinline=True)
    def write_item(i, kept, bias, squares, residual, norm, out, scaled, out_squares, sums, start, tile, m, column, writer, width, epsilon):
        token = int32(writer // eights + i * tokens_apart)
        values, scale = cuda.local.array(8, float32), float32(1.0)
        if squares is not None:
            scale = inverse_rms(kept.squares[i], width, epsilon)
        outputs(values, scale, sums, start, uint32(min(token, int32(m - 1)) * stride + writer % eights * 8))
        if bias is not None:
            for k in range(8):
                values[k] += float32(bias[uint32(column + k)])
        if residual is not None:
            addends = cuda.local.array(8, float32)
            unpack(kept.addends, 4 * i, addends, 0)
            for k in range(8):
                values[k] += addends[k]
        if token < m:
            store(out, int64(token) * out.shape[1] + column, values, 0)
        if norm is not None:
            write_scaled(values, kept, scaled, out_squares, token, tile, m, column, writer)

    return prepare, unrolled(write_item, items)


@functools.cache
def deferred_norm_kernel(tokens: int, tiling: FlatWgmmaTiling, dtype: str, gated: bool, parts: int):
    """The kernel for x and weight of `dtype` and up to `tokens` rows of x, a multiple of 8.

    gated: as in flat_wgmma_kernel. parts: rows of `squares`, if there are any.
    """
    splits, sharers, consumers = tiling.splits, tiling.sharers, tiling.warpgroups * THREADS
    cluster, columns, writers = splits * sharers, tiling.rows // 2 if gated else tiling.rows, splits * consumers
    items, eights = items_per_thread(tokens, columns, writers), columns // 8
    words = 4 * items
    tile_of_block, open, begin, consume, produce, added = make_mainloop(tokens, tiling, dtype, halves=gated)
    prepare, write = make_epilogue(tiling.rows, tokens, writers, dtype, gated, parts, added)

    @kernel(launch_bounds=(tiling.threads, 1), dependent_launch=True)
    def matmul_flat_deferred_norm_kernel(
        x_map,  # x [M, K] in boxes [tokens, 64]
        weight_map,  # weight [N, K] in boxes [rows, 64]; gated: half the rows
        bias,  # [N], or None
        squares,  # [parts, M], to divide the sums by the root mean square of rows of `width` elements; or None
        residual,  # [M, N], added; or None
        norm,  # [N], to write out * norm and the sums of squares as well; or None
        out,  # [M, N]; gated: [M, N / 2]
        scaled,  # [M, N] or None
        out_squares,  # [tiles, M] or None
        k_steps,
        width,
        epsilon,
    ):
        ptx.griddepcontrol_launch_dependents()
        memory = cuda.shared.array(0, float32, 1024)
        thread, tile = int32(cuda.threadIdx.x), tile_of_block()
        first_column, m = int32(tile * columns), int32(out.shape[0])
        share, ring, sums_at = open(memory, k_steps, first_column, int32(first_column + out.shape[1]), m)
        if thread == consumers:
            begin(weight_map, ring, share)
        sync_blocks(sharers)
        writer = int32(share.split * consumers + thread)
        column = int32(first_column + writer % eights * 8)
        kept = Kept(cuda.local.array(items, float32), cuda.local.array(words, uint32), cuda.local.array(4, uint32))
        if thread < consumers:
            prepare(kept, squares, residual, norm, m, column, writer)
            consume(memory, sums_at, ring, share, thread)
        elif thread == consumers:
            produce(x_map, weight_map, ring, share)
        sync_blocks(cluster)
        if thread < consumers:
            arrays = (bias, squares, residual, norm, out, scaled, out_squares)
            write(kept, *arrays, memory, sums_at, tile, m, column, writer, width, epsilon)
        if splits > 1:  # a block must not exit while others may read its shared memory
            wait_for_blocks()

    return matmul_flat_deferred_norm_kernel
