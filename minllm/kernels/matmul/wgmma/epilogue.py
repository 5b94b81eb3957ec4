"""What becomes of a finished tile of the wgmma product: bias, residual, or SiLU-and-multiply on the sums in registers, and the way out.

A warp holds 16 rows of a consumer's 64: of each 8 columns, lane l has rows l/4 and l/4 + 8, columns 2 (l mod 4) and one more. Written
straight from there, every store would fill half a sector of 32 bytes. So the consumer rounds 64 columns (32, where a tile is no multiple of
64), lays them into shared memory with stmatrix (swizzled, as the copy engine reads them), and one thread has the engine store 64 rows of
128 bytes (64), while the others go on with more columns, and then with the next tile.

Where the copy engine cannot store (float32 outputs, rows that are not whole 16 bytes), pairs are stored from registers.

Source: PTX ISA, "stmatrix", "cp.async.bulk.tensor"; N. Shazeer, "GLU Variants Improve Transformer", 2020 (SwiGLU).
"""

from numba import cuda, float32, uint32

from minllm import ptx
from minllm.kernels.activation.sigmoid import sigmoid
from minllm.kernels.matmul.fragments import make_store_pair
from minllm.kernels.matmul.shared_tiles import PACK

ROWS = 64  # of a consumer
WARP_ROWS = 16
WARPGROUP = 128


def make_output_pair(outputs: int, gated: bool):
    """The device function that makes two neighbouring outputs of the sums in registers; a lane has `outputs` of a tile."""

    @cuda.jit(device=True, forceinline=True)
    def gated_pair(total, at, bias, residual, row, column):
        """silu(gate) * up, for total[at], total[at + 1] and their partners in the second half of total."""
        low, high = total[at], total[at + 1]
        return low * sigmoid(low) * total[at + outputs], high * sigmoid(high) * total[at + 1 + outputs]

    @cuda.jit(device=True, forceinline=True)
    def plain_pair(total, at, bias, residual, row, column):
        """total[at], total[at + 1], which belong to (row, column) and the next column, plus bias [N] and residual [M, N], if any."""
        low, high = total[at], total[at + 1]
        if bias is not None:
            last = bias.shape[0] - 1  # what lies beyond the edges gets any number: it is not stored
            low, high = low + float32(bias[min(column, last)]), high + float32(bias[min(column + 1, last)])
        if residual is not None:
            here, last = min(row, residual.shape[0] - 1), residual.shape[1] - 1
            low, high = low + float32(residual[here, min(column, last)]), high + float32(residual[here, min(column + 1, last)])
        return low, high

    return gated_pair if gated else plain_pair


def make_copy_out(columns: int, chunk_columns: int, dtype: str, output_pair, room: int):
    """Two device functions by which a consumer stores a tile of `columns` columns through shared memory and the copy engine.

    chunk_columns: that the engine stores at a time, 64 or 32; a row of them is the swizzle's span. room: how many chunks fit its part of
    shared memory at one time; it divides their number.
    """
    pack, batches, sums_of_a_chunk = PACK[dtype], columns // (chunk_columns * room), WARP_ROWS * chunk_columns // 32
    line_bytes, chunk_bytes = 2 * chunk_columns, ROWS * 2 * chunk_columns
    pieces, lines_across_the_banks = line_bytes // 16, 128 // line_bytes  # of 16 bytes in a line; that share the banks

    @cuda.jit(device=True, forceinline=True)
    def make_room(consumer, thread):
        """The copy engine has read what was stored before: all 128 threads know it."""
        if thread == 0:
            ptx.cp_async_bulk_wait_group_read_0()
        ptx.bar_sync(1 + consumer, WARPGROUP)

    @cuda.jit(device=True, forceinline=True)
    def lay_down(total, chunk, bias, residual, place, row, column, thread):
        """The `chunk`-th columns of this warp's sums, which begin at (row, column) of out -> shared memory at `place`."""
        words = cuda.local.array(4, uint32)
        lane = thread & 31
        line = uint32(thread >> 5) * uint32(WARP_ROWS) + uint32(lane & 15)  # the row whose address this lane brings
        for block in range(chunk_columns // 16):  # stmatrix lays down 16 rows of 16 columns
            for i in range(4):
                pair_row, pair_column = row + (lane >> 2) + i % 2 * 8, column + 16 * block + i // 2 * 8 + 2 * (lane & 3)
                low, high = output_pair(total, sums_of_a_chunk * chunk + 8 * block + 2 * i, bias, residual, pair_row, pair_column)
                words[i] = pack(low, high)
            piece = uint32(2 * block + (lane >> 4)) ^ (line // uint32(lines_across_the_banks) & uint32(pieces - 1))
            ptx.stmatrix_x4(uint32(place + line * uint32(line_bytes) + piece * uint32(16)), words, 0)

    @cuda.jit(device=True, forceinline=True)
    def copy_batch(total, batch, bias, residual, out_map, staging, row, column, consumer, thread):
        """As many chunks as there is room for."""
        warp_row, first = row + (thread >> 5) * WARP_ROWS, batch * room
        first_column = column + first * chunk_columns
        lay_down(total, first, bias, residual, staging, warp_row, first_column, thread)
        if room > 1:
            lay_down(total, first + 1, bias, residual, staging + chunk_bytes, warp_row, first_column + chunk_columns, thread)
        if room > 2:
            lay_down(total, first + 2, bias, residual, staging + 2 * chunk_bytes, warp_row, first_column + 2 * chunk_columns, thread)
        if room > 3:
            lay_down(total, first + 3, bias, residual, staging + 3 * chunk_bytes, warp_row, first_column + 3 * chunk_columns, thread)
        ptx.fence_proxy_async()
        ptx.bar_sync(1 + consumer, WARPGROUP)
        if thread == 0:
            for chunk in range(room):
                at = first_column + chunk * chunk_columns
                ptx.cp_async_bulk_tensor_2d_global_shared(out_map, at, row, staging + chunk * chunk_bytes)
            ptx.cp_async_bulk_commit_group()

    @cuda.jit(device=True, forceinline=True)
    def copy_out(total, bias, residual, out_map, out, staging, row, rows, column, consumer, thread):
        """total -> out[row : row + rows, column : column + columns], what lies inside of it: the map's boxes have `rows` rows.

        There is room for the first batch.
        """
        copy_batch(total, 0, bias, residual, out_map, staging, row, column, consumer, thread)
        if batches > 1:
            make_room(consumer, thread)
            copy_batch(total, 1, bias, residual, out_map, staging, row, column, consumer, thread)
        if batches > 2:
            make_room(consumer, thread)
            copy_batch(total, 2, bias, residual, out_map, staging, row, column, consumer, thread)
        if batches > 3:
            make_room(consumer, thread)
            copy_batch(total, 3, bias, residual, out_map, staging, row, column, consumer, thread)

    return make_room, copy_out


def make_store_out(columns: int, chunk_columns: int, dtype: str, output_pair, paired: bool):
    """Two device functions with the same parameters, with which every lane stores its own outputs; `paired` as in make_store_pair."""
    store_pair, chunks = make_store_pair(dtype, paired), columns // chunk_columns
    sums_of_a_chunk = WARP_ROWS * chunk_columns // 32

    @cuda.jit(device=True, forceinline=True)
    def make_room(consumer, thread):
        """Nothing: outputs go straight to memory."""

    @cuda.jit(device=True, forceinline=True)
    def store_chunk(total, chunk, bias, residual, out, row, end, column, lane):
        """The `chunk`-th columns of this warp's sums, which begin at (row, column) of out."""
        for pair in range(sums_of_a_chunk // 2):
            pair_row, pair_column = row + (lane >> 2) + pair % 2 * 8, column + pair // 2 * 8 + 2 * (lane & 3)
            low, high = output_pair(total, sums_of_a_chunk * chunk + 2 * pair, bias, residual, pair_row, pair_column)
            if pair_row < end:
                store_pair(out, pair_row, pair_column, low, high)

    @cuda.jit(device=True, forceinline=True)
    def store_out(total, bias, residual, out_map, out, staging, row, rows, column, consumer, thread):
        """total -> out[row : row + rows, column : column + columns], what lies inside of it.

        Written out: the compiler does not unroll a body this long, and sums that are not indexed by constants would leave registers.
        """
        warp_row, end, lane = row + (thread >> 5) * WARP_ROWS, row + rows, thread & 31
        store_chunk(total, 0, bias, residual, out, warp_row, end, column, lane)
        if chunks > 1:
            store_chunk(total, 1, bias, residual, out, warp_row, end, column + chunk_columns, lane)
        if chunks > 2:
            store_chunk(total, 2, bias, residual, out, warp_row, end, column + 2 * chunk_columns, lane)
        if chunks > 3:
            store_chunk(total, 3, bias, residual, out, warp_row, end, column + 3 * chunk_columns, lane)

    return make_room, store_out
