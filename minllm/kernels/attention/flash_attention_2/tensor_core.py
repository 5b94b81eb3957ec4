"""FlashAttention-2's tiles on tensor cores: their sizes, and their matmuls.

A warp owns row_tiles times 16 rows of the block's query tile; warps split the queries and exchange nothing (Dao, arXiv 2307.08691,
section 3.3). The registers that hold the scores after Q K^T, packed to 16 bits, are the left operand of P V (tiles/rows.py, tiles/mma.py).
A head_dim that is not a multiple of 16 is padded with zeros in shared memory.
"""

import functools

from numba import cuda

from minllm.kernels.attention.flash_attention_2.kernel import Matmuls, Tiles
from minllm.tiles.cp_async import row_words_of
from minllm.tiles.mma import make_warp_matmuls
from minllm.tiles.rows import make_rows

REGISTER_FILE = 65536  # 32-bit registers per SM


def padded_dim_of(head_dim):
    """head_dim rounded up to a multiple of 16, the depth of an mma step."""
    return -(-head_dim // 16) * 16


def query_in_registers(head_dim, row_count):
    """Whether Q stays in registers; if not, its fragments are read again for every tile of keys."""
    return padded_dim_of(head_dim) * row_count <= 256


@functools.cache
def warp_tiles(head_dim, query_tile, key_tile, warps):
    """The Tiles of a block of `warps` warps; query_tile is a multiple of 16 * warps, key_tile of 16.

    launch_bounds makes ptxas fit this number of blocks into an SM's registers, so that one computes while others wait; none spills.
    """
    depth, row_tiles, row_words = padded_dim_of(head_dim), query_tile // (16 * warps), row_words_of(head_dim)
    resident = query_in_registers(head_dim, 2 * row_tiles)
    query_words, score_count, out_count = (depth // 4 if resident else 4) * row_tiles, key_tile // 2 * row_tiles, depth // 2 * row_tiles
    registers = -(-(query_words + score_count + out_count + 40 * row_tiles) // 8) * 8
    blocks = min(3 if resident and depth <= 64 else 2, REGISTER_FILE // (32 * warps * registers))
    return Tiles(
        head_dim=head_dim, query_tile=query_tile, key_tile=key_tile, threads=32 * warps,
        lanes=32, lane_rows=16 * row_tiles, row_count=2 * row_tiles,
        query_words=query_words, score_count=score_count, out_count=out_count,
        keys_at=query_tile * row_words, values_at=(query_tile + key_tile) * row_words, end=(query_tile + 2 * key_tile) * row_words,
        launch_bounds=(32 * warps, max(1, blocks)),
    )  # fmt: skip


def make_tensor_core_parts(tiles, dtype, out_dtype):
    """(Matmuls, Rows of scores, Rows of the output) for tiles of 16-bit `dtype` and an output in out_dtype."""
    depth, row_tiles = padded_dim_of(tiles.head_dim), tiles.row_count // 2
    score_rows = make_rows(tiles.key_tile, dtype, row_tiles)
    out_rows = make_rows(tiles.head_dim, out_dtype, row_tiles, depth)
    sizes = (depth, tiles.key_tile, row_tiles, tiles.keys_at, tiles.values_at, query_in_registers(tiles.head_dim, tiles.row_count))
    warp = make_warp_matmuls(dtype, *sizes, score_rows)

    @cuda.jit(device=True)
    def output(acc, weights, shared, lane_row, lane):
        warp.multiply(acc, weights, shared, lane)

    return Matmuls(warp.load_left, warp.multiply_transposed, output), score_rows, out_rows
