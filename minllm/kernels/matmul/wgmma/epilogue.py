"""Epilogue of the wgmma GEMM: scales, bias, residual, or SiLU-and-multiply on the sums in registers, and their way to memory.

A warp holds 16 rows of a consumer's 64: of each 8 columns, lane l has rows l/4 and l/4 + 8, columns 2 (l mod 4) and the next. Stores
straight from registers would fill half a sector of 32 bytes each. So the consumer rounds a chunk of 64 columns (32 or 16 if the tile is 96
or 224 wide), writes it to shared memory with stmatrix, swizzled as TMA reads it, and one thread issues a TMA store of 64 rows of 128 bytes
(64 or 32), while the others continue with more columns, and then with the next tile.

If TMA cannot store (float32 outputs, rows that are not a multiple of 16 bytes), pairs are stored from registers.

Source: PTX ISA, "stmatrix", "cp.async.bulk.tensor"; N. Shazeer, "GLU Variants Improve Transformer", 2020 (SwiGLU).
"""

from collections.abc import Callable
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


class Epilogue(NamedTuple):
    """Device functions of a consumer.

    make_room(consumer, thread): wait until earlier outputs have left shared memory.

    store(sums, output, staging, row, rows, column, consumer, thread): write the sums to out[row : row + rows, column : column + columns],
    as far as that lies inside out; call make_room first.
    """

    make_room: Callable
    store: Callable
    finish: Callable  # finish(): wait until the thread that issues TMA stores may exit


class SumScales(NamedTuple):
    """Device functions. of_rows(output, row): the scales of a lane's two rows.

    scaled(low, high, of_row, output, first, second): the sums of two columns times their scales.
    """

    of_rows: Callable
    scaled: Callable


def make_sum_scales(scaled: bool) -> SumScales:
    """The SumScales for sums of 8-bit codes if `scaled`, else for sums that need no scales."""

    @cuda.jit(device=True, forceinline=True)
    def scales_of_rows(output, row):
        last = int32(output.array.shape[0] - 1)  # rows beyond the edge take the last scale: they are not stored
        return output.x_scales[uint32(min(int32(row), last))], output.x_scales[uint32(min(int32(row + 8), last))]

    @cuda.jit(device=True, forceinline=True)
    def scaled_pair(low, high, of_row, output, first, second):
        return float32(low) * of_row * output.scales[first], float32(high) * of_row * output.scales[second]

    @cuda.jit(device=True, forceinline=True)
    def no_scales(output, row):
        return float32(1.0), float32(1.0)

    @cuda.jit(device=True, forceinline=True)
    def same_pair(low, high, of_row, output, first, second):
        return low, high

    return SumScales(scales_of_rows, scaled_pair) if scaled else SumScales(no_scales, same_pair)


def make_output_pair(outputs: int, gated: bool, scaled_pair):
    """The device function that computes two neighbouring outputs from sums in registers; outputs: per lane and tile."""

    @cuda.jit(device=True, forceinline=True)
    def columns_of_pair(output, column):
        """This column and the next, at most the last: outputs beyond the edge are not stored."""
        last = int32(output.array.shape[1] - 1)
        return uint32(min(int32(column), last)), uint32(min(int32(column + 1), last))

    @cuda.jit(device=True, forceinline=True)
    def gated_pair(sums, at, of_row, output, row, column):
        """silu(gate) * up, for sums[at], sums[at + 1] and their partners in the second half of sums."""
        (first, second), inner = columns_of_pair(output, column), uint32(output.array.shape[1])
        low, high = scaled_pair(sums[at], sums[at + 1], of_row, output, first, second)
        up_low, up_high = scaled_pair(
            sums[at + outputs], sums[at + 1 + outputs], of_row, output, uint32(first + inner), uint32(second + inner)
        )
        return low * sigmoid(low) * up_low, high * sigmoid(high) * up_high

    @cuda.jit(device=True, forceinline=True)
    def added(low, high, bias, residual, row, first, second):
        """The two outputs plus bias [N] and residual [M, N], if any."""
        if bias is not None:
            low, high = low + float32(bias[first]), high + float32(bias[second])
        if residual is not None:
            here = uint32(min(uint32(row), uint32(residual.shape[0] - 1)))
            low, high = low + float32(residual[here, first]), high + float32(residual[here, second])
        return low, high

    @cuda.jit(device=True, forceinline=True)
    def plain_pair(sums, at, of_row, output, row, column):
        """The outputs of sums[at] and sums[at + 1], at (row, column) and the next column."""
        first, second = columns_of_pair(output, column)
        low, high = scaled_pair(sums[at], sums[at + 1], of_row, output, first, second)
        return added(low, high, output.bias, output.residual, row, first, second)

    return gated_pair if gated else plain_pair


def make_epilogue(tiling: WgmmaTiling, gated: bool, copied: bool, pairs: str | None, scaled: bool) -> Epilogue:
    """The Epilogue of a consumer.

    copied: TMA stores outputs. pairs: the dtype of out if one store takes two outputs, else None.
    """
    columns, scales = tiling.columns(gated), make_sum_scales(scaled)
    output_pair = make_output_pair(columns // 2, gated, scales.scaled)
    if copied:
        return make_tma_epilogue(columns, tiling.chunk_columns, tiling.chunks, PACK[pairs], output_pair, scales.of_rows)
    return make_register_epilogue(columns, tiling.chunk_columns, output_pair, make_store_pair(pairs), scales.of_rows)


def make_tma_epilogue(columns: int, chunk_columns: int, room: int, pack, output_pair, scales_of_rows) -> Epilogue:
    """The Epilogue that stores tiles of `columns` columns by TMA.

    room: chunks of chunk_columns columns for which shared memory has room.
    """
    batches, sums_per_chunk = columns // (chunk_columns * room), WARP_ROWS * chunk_columns // 32
    row_bytes, chunk_bytes = 2 * chunk_columns, ROWS * 2 * chunk_columns
    row_pieces, rows_across_the_banks = row_bytes // 16, 128 // row_bytes

    @cuda.jit(device=True, forceinline=True)
    def make_room(consumer, thread):
        if thread == 0:
            ptx.cp_async_bulk_wait_group_read_0()
        warpgroup.sync(1 + consumer)

    @cuda.jit(device=True, forceinline=True)
    def lay_down(slot, sums, first, of_rows, output, staging, row, column, thread):
        """Write chunk first + slot of this warp's outputs to that slot of shared memory; its rows begin at `row` of out."""
        words = cuda.local.array(4, uint32)
        chunk, lane = first + slot, thread & 31
        place, column = staging + slot * chunk_bytes, column + slot * chunk_columns
        line = uint32(thread >> 5) * uint32(WARP_ROWS) + uint32(lane & 15)  # the row of which this lane provides the address
        for block in range(chunk_columns // 16):  # stmatrix stores 16 rows of 16 columns
            for i in range(4):
                pair_row, pair_column = row + (lane >> 2) + i % 2 * 8, column + 16 * block + i // 2 * 8 + 2 * (lane & 3)
                of_row = of_rows[0] if i % 2 == 0 else of_rows[1]
                low, high = output_pair(sums, sums_per_chunk * chunk + 8 * block + 2 * i, of_row, output, pair_row, pair_column)
                words[i] = pack(low, high)
            piece = uint32(2 * block + (lane >> 4)) ^ (line // uint32(rows_across_the_banks) & uint32(row_pieces - 1))
            ptx.stmatrix_x4(uint32(place + line * uint32(row_bytes) + piece * uint32(16)), words, 0)

    lay_down_all = unrolled(lay_down, room)

    @cuda.jit(device=True, forceinline=True)
    def store_batch(batch, sums, of_rows, output, staging, row, column, consumer, thread):
        """Store the next `room` chunks."""
        if batch > 0:
            make_room(consumer, thread)
        first = batch * room
        first_column = column + first * chunk_columns
        lay_down_all(sums, first, of_rows, output, staging, row + (thread >> 5) * WARP_ROWS, first_column, thread)
        ptx.fence_proxy_async()
        warpgroup.sync(1 + consumer)
        if thread == 0:
            for slot in range(room):
                at = first_column + slot * chunk_columns
                ptx.cp_async_bulk_tensor_2d_global_shared(output.map, at, row, staging + slot * chunk_bytes)
            ptx.cp_async_bulk_commit_group()

    store_batches = unrolled(store_batch, batches)

    @cuda.jit(device=True, forceinline=True)
    def store(sums, output, staging, row, rows, column, consumer, thread):
        of_rows = scales_of_rows(output, row + (thread >> 5) * WARP_ROWS + (thread >> 2 & 7))
        store_batches(sums, of_rows, output, staging, row, column, consumer, thread)

    @cuda.jit(device=True, forceinline=True)
    def finish():
        ptx.cp_async_bulk_wait_group_read_0()

    return Epilogue(make_room, store, finish)


def make_register_epilogue(columns: int, chunk_columns: int, output_pair, store_pair, scales_of_rows) -> Epilogue:
    """The Epilogue in which every lane stores its own outputs, two at a time."""
    sums_per_chunk = WARP_ROWS * chunk_columns // 32

    @cuda.jit(device=True, forceinline=True)
    def make_room(consumer, thread):
        """Nothing to do: outputs do not pass through shared memory."""

    @cuda.jit(device=True, forceinline=True)
    def finish():
        """Nothing to do: ordinary stores need no wait."""

    @cuda.jit(device=True, forceinline=True)
    def store_chunk(chunk, sums, of_rows, output, row, end, column, lane):
        for pair in range(sums_per_chunk // 2):
            pair_row, pair_column = row + (lane >> 2) + pair % 2 * 8, column + chunk * chunk_columns + pair // 2 * 8 + 2 * (lane & 3)
            of_row = of_rows[0] if pair % 2 == 0 else of_rows[1]
            low, high = output_pair(sums, sums_per_chunk * chunk + 2 * pair, of_row, output, pair_row, pair_column)
            if pair_row < end:
                store_pair(output.array, pair_row, pair_column, low, high)

    store_chunks = unrolled(store_chunk, columns // chunk_columns)

    @cuda.jit(device=True, forceinline=True)
    def store(sums, output, staging, row, rows, column, consumer, thread):
        first_row, lane = row + (thread >> 5) * WARP_ROWS, thread & 31
        store_chunks(sums, scales_of_rows(output, first_row + (lane >> 2)), output, first_row, row + rows, column, lane)

    return Epilogue(make_room, store, finish)
