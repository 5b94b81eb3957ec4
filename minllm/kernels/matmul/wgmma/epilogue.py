"""Epilogue of the wgmma GEMM: scales, bias, residual, or SiLU-and-multiply on the sums in registers, and their way to memory.

A warp holds 16 rows of a consumer's 64: of each 8 columns, lane l has rows l/4 and l/4 + 8, columns 2 (l mod 4) and the next. Stores
straight from registers would fill half a sector of 32 bytes each. So the consumer rounds a chunk of 64 columns (32 or 16 if the tile is 96
or 224 wide), writes it to shared memory with stmatrix, swizzled as TMA reads it, and one thread issues a TMA store of 64 rows of 128 bytes
(64 or 32), while the others continue with more columns, and then with the next tile.

If TMA cannot store (float32 outputs, rows that are not a multiple of 16 bytes), pairs are stored from registers.

Source: PTX ISA, "stmatrix", "cp.async.bulk.tensor"; N. Shazeer, "GLU Variants Improve Transformer", 2020 (SwiGLU).
"""

from typing import Any, NamedTuple

from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.kernels.activation.sigmoid import sigmoid
from minllm.kernels.matmul.output_tiles import PACK, make_store_pair
from minllm.kernels.matmul.wgmma.tiling import WgmmaTiling
from minllm.runtime.array_protocol import Array
from minllm.tiles import warpgroup
from minllm.tiles.unrolled import unrolled
from minllm.tiles.warpgroup import ROWS, WARP_ROWS


class Output(NamedTuple):
    """The output out [M, N], and the operands applied to its sums; map: the tensor map of out, if TMA stores it."""

    array: Array
    map: Any
    bias: Array  # [N] or None
    residual: Array  # [M, N] or None
    x_scales: Array  # [M], if x holds 8-bit codes, or None
    scales: Array  # [N], one per output channel; gated [2 N]; or None


@cuda.jit(device=True, forceinline=True)
def added(low, high, bias, residual, row, first, second):
    """The outputs of a row in columns first and second, plus bias [N] and residual [M, N], if any."""
    if bias is not None:
        low, high = low + float32(bias[first]), high + float32(bias[second])
    if residual is not None:
        here = uint32(min(uint32(row), uint32(residual.shape[0] - 1)))
        low, high = low + float32(residual[here, first]), high + float32(residual[here, second])
    return low, high


def make_output_pair(outputs: int, gated: bool, scaled: bool):
    """The device function that computes the outputs of sums[at] and sums[at + 1], at (row, column) and the next column.

    outputs: per lane and tile. gated: silu(gate) * up; the sums of up are the second half. scaled: sums times of_row and scales of columns.
    """

    @cuda.jit(device=True, forceinline=True)
    def scaled_pair(sums, at, of_row, scales, first, second):
        if scaled:
            return float32(sums[at]) * of_row * scales[first], float32(sums[at + 1]) * of_row * scales[second]
        return sums[at], sums[at + 1]

    @cuda.jit(device=True, forceinline=True)
    def output_pair(sums, at, of_row, output, row, column):
        last = int32(output.array.shape[1] - 1)  # columns beyond the edge repeat the last one: they are not stored
        first, second = uint32(min(int32(column), last)), uint32(min(int32(column + 1), last))
        low, high = scaled_pair(sums, at, of_row, output.scales, first, second)
        if gated:
            inner = uint32(output.array.shape[1])
            up_low, up_high = scaled_pair(sums, at + outputs, of_row, output.scales, uint32(first + inner), uint32(second + inner))
            return low * sigmoid(low) * up_low, high * sigmoid(high) * up_high
        return added(low, high, output.bias, output.residual, row, first, second)

    return output_pair


def make_store(tiling: WgmmaTiling, gated: bool, copied: bool, pairs: str | None, scaled: bool):
    """(make_room, store), device functions of a consumer.

    make_room(consumer, thread) waits until earlier outputs have left shared memory; call it before `store`, which writes the sums to
    out[row : row + rows, column : column + columns] as far as that lies inside out. gated, copied, pairs: as in wgmma_kernel.
    """
    columns, chunk_columns, room = tiling.columns(gated), tiling.chunk_columns, tiling.chunks
    sums_per_chunk, row_bytes, chunk_bytes = WARP_ROWS * chunk_columns // 32, 2 * chunk_columns, ROWS * 2 * chunk_columns
    row_pieces, rows_across_the_banks = row_bytes // 16, 128 // row_bytes
    output_pair, store_pair, pack = make_output_pair(columns // 2, gated, scaled), make_store_pair(pairs), PACK.get(pairs)

    @cuda.jit(device=True, forceinline=True)
    def make_room(consumer, thread):
        if copied:
            if thread == 0:
                ptx.cp_async_bulk_wait_group_read_0()
            warpgroup.sync(1 + consumer)

    @cuda.jit(device=True, forceinline=True)
    def store_chunk(chunk, sums, of_rows, output, staging, row, warp_row, end, column, consumer, thread):
        """Store a chunk from registers, or write it to the next slot of shared memory; TMA stores the slots when all are full."""
        words, lane, slot = cuda.local.array(4, uint32), thread & 31, chunk % room
        here, place = column + chunk * chunk_columns, staging + slot * chunk_bytes
        if slot == 0 and chunk > 0:
            make_room(consumer, thread)
        line = uint32(thread >> 5) * uint32(WARP_ROWS) + uint32(lane & 15)  # the row of which this lane provides the address
        for block in range(chunk_columns // 16):  # stmatrix stores 16 rows of 16 columns
            for i in range(4):
                pair_row, pair_column = warp_row + (lane >> 2) + i % 2 * 8, here + 16 * block + i // 2 * 8 + 2 * (lane & 3)
                of_row = of_rows[0] if i % 2 == 0 else of_rows[1]
                low, high = output_pair(sums, sums_per_chunk * chunk + 8 * block + 2 * i, of_row, output, pair_row, pair_column)
                if copied:
                    words[i] = pack(low, high)
                elif pair_row < end:
                    store_pair(output.array, pair_row, pair_column, low, high)
            if copied:
                piece = uint32(2 * block + (lane >> 4)) ^ (line // uint32(rows_across_the_banks) & uint32(row_pieces - 1))
                ptx.stmatrix_x4(uint32(place + line * uint32(row_bytes) + piece * uint32(16)), words, 0)
        if copied and slot == room - 1:
            ptx.fence_proxy_async()
            warpgroup.sync(1 + consumer)
            if thread == 0:
                for i in range(room):
                    at = here + (i - slot) * chunk_columns
                    ptx.cp_async_bulk_tensor_2d_global_shared(output.map, at, row, staging + i * chunk_bytes)
                ptx.cp_async_bulk_commit_group()

    store_chunks = unrolled(store_chunk, columns // chunk_columns)

    @cuda.jit(device=True, forceinline=True)
    def store(sums, output, staging, row, rows, column, consumer, thread):
        of_rows, warp_row = (float32(1.0), float32(1.0)), row + (thread >> 5) * WARP_ROWS
        if scaled:
            first, last = warp_row + (thread >> 2 & 7), int32(output.array.shape[0] - 1)
            of_rows = output.x_scales[uint32(min(int32(first), last))], output.x_scales[uint32(min(int32(first + 8), last))]
        store_chunks(sums, of_rows, output, staging, row, warp_row, row + rows, column, consumer, thread)

    return make_room, store
