"""What becomes of a finished tile of the wgmma product: bias, residual, or SiLU-and-multiply on the sums in registers, and the way out.

A warp holds 16 rows of the tile: of each 8 columns, lane l has rows l/4 and l/4 + 8, columns 2 (l mod 4) and one more. Written straight
from there, every store would fill half a sector of 32 bytes. So the warp rounds 64 columns, lays them into shared memory with stmatrix
(swizzled, as the copy engine reads them), and has the engine store 16 rows of 128 bytes while it goes on with the next 64 columns, and
then with the next tile. It needs nobody but its own 32 lanes for that: no barrier of the block.

Where the copy engine cannot store (float32 outputs, rows that are not whole 16 bytes), pairs are stored from registers.

Source: PTX ISA, "stmatrix", "cp.async.bulk.tensor"; N. Shazeer, "GLU Variants Improve Transformer", 2020 (SwiGLU).
"""

from numba import cuda, float32, uint32

from minllm import ptx
from minllm.kernels.activation.sigmoid import sigmoid
from minllm.kernels.matmul.fragments import make_store_pair
from minllm.kernels.matmul.shared_tiles import PACK

WARP_ROWS = 16
CHUNK_COLUMNS = 64  # columns that the copy engine stores at a time: 128 bytes of half precision, the swizzle's span
CHUNK_BYTES = WARP_ROWS * 128
SUMS_OF_A_CHUNK = WARP_ROWS * CHUNK_COLUMNS // 32  # of a lane
WAIT_UNTIL_ALL_BUT_WERE_READ = (
    ptx.cp_async_bulk_wait_group_read_0,
    ptx.cp_async_bulk_wait_group_read_1,
    ptx.cp_async_bulk_wait_group_read_2,
    ptx.cp_async_bulk_wait_group_read_3,
)


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
            if column < bias.shape[0]:
                low += float32(bias[column])
            if column + 1 < bias.shape[0]:
                high += float32(bias[column + 1])
        if residual is not None:
            if row < residual.shape[0] and column < residual.shape[1]:
                low += float32(residual[row, column])
            if row < residual.shape[0] and column + 1 < residual.shape[1]:
                high += float32(residual[row, column + 1])
        return low, high

    return gated_pair if gated else plain_pair


def make_copy_chunk(dtype: str, output_pair, room: int):
    """The device function by which a warp stores a chunk through shared memory and the copy engine.

    room: how many chunks fit the warp's part of shared memory, one after another in turn; it divides their number.
    """
    pack, wait_for_room = PACK[dtype], WAIT_UNTIL_ALL_BUT_WERE_READ[room - 1]

    @cuda.jit(device=True, forceinline=True)
    def copy_chunk(total, chunk, bias, residual, out_map, out, staging, row, column, lane):
        """The `chunk`-th 64 columns of a warp's sums -> out[row : row + 16, column : column + 64]."""
        place = uint32(staging + (chunk % room) * CHUNK_BYTES)
        if lane == 0:
            wait_for_room()
        cuda.syncwarp()
        words = cuda.local.array(4, uint32)
        line = uint32(lane & 15)  # the row whose address this lane brings
        for block in range(CHUNK_COLUMNS // 16):  # stmatrix lays down 16 rows of 16 columns
            for i in range(4):
                pair_row, pair_column = row + (lane >> 2) + i % 2 * 8, column + 16 * block + i // 2 * 8 + 2 * (lane & 3)
                low, high = output_pair(total, SUMS_OF_A_CHUNK * chunk + 8 * block + 2 * i, bias, residual, pair_row, pair_column)
                words[i] = pack(low, high)
            piece = uint32(2 * block + (lane >> 4)) ^ (line & uint32(7))
            ptx.stmatrix_x4(uint32(place + line * uint32(128) + piece * uint32(16)), words, 0)
        ptx.fence_proxy_async()
        cuda.syncwarp()
        if lane == 0:
            ptx.cp_async_bulk_tensor_2d_global_shared(out_map, column, row, place)
            ptx.cp_async_bulk_commit_group()

    return copy_chunk


def make_store_chunk(dtype: str, output_pair, paired: bool):
    """The device function with the same parameters by which every lane stores its own outputs; `paired` as in make_store_pair."""
    store_pair = make_store_pair(dtype, paired)

    @cuda.jit(device=True, forceinline=True)
    def store_chunk(total, chunk, bias, residual, out_map, out, staging, row, column, lane):
        """The `chunk`-th 64 columns of a warp's sums -> out[row : row + 16, column : column + 64], what lies inside of it."""
        for pair in range(SUMS_OF_A_CHUNK // 2):
            pair_row, pair_column = row + (lane >> 2) + pair % 2 * 8, column + pair // 2 * 8 + 2 * (lane & 3)
            low, high = output_pair(total, SUMS_OF_A_CHUNK * chunk + 2 * pair, bias, residual, pair_row, pair_column)
            store_pair(out, pair_row, pair_column, low, high)

    return store_chunk


def make_write(columns: int, store_chunk):
    """The device function that writes a warp's 16 rows of a tile of `columns` columns, a chunk at a time."""
    chunks = columns // CHUNK_COLUMNS

    @cuda.jit(device=True, forceinline=True)
    def write(total, bias, residual, out_map, out, staging, row, column, lane):
        """Written out: the compiler does not unroll a body this long, and sums that are not indexed by constants would leave registers."""
        store_chunk(total, 0, bias, residual, out_map, out, staging, row, column, lane)
        if chunks > 1:
            store_chunk(total, 1, bias, residual, out_map, out, staging, row, column + CHUNK_COLUMNS, lane)
        if chunks > 2:
            store_chunk(total, 2, bias, residual, out_map, out, staging, row, column + 2 * CHUNK_COLUMNS, lane)
        if chunks > 3:
            store_chunk(total, 3, bias, residual, out_map, out, staging, row, column + 3 * CHUNK_COLUMNS, lane)

    return write
