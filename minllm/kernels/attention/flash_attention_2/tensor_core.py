"""FlashAttention-2's tiles on tensor cores: how a block cuts them, and what multiplies them.

A warp owns row_tiles times 16 rows of the block's tile of queries; warps split the queries and exchange nothing (Dao, arXiv 2307.08691,
section 3.3). Scores come out of the first product in just the registers in which the second wants its left operand, once they are packed
to 16 bits (tiles/rows.py, tiles/mma.py). A head_dim that is no multiple of 16 is padded with zeros in shared memory.
"""

from dataclasses import dataclass

from numba import cuda, uint32

from minllm.kernels.attention.flash_attention_2.kernel import Products
from minllm.tiles.cp_async import row_words_of
from minllm.tiles.mma import make_warp_products
from minllm.tiles.rows import make_rows

REGISTER_FILE = 65536  # 32-bit registers of an SM


@dataclass(frozen=True)
class WarpTiles:
    """The tiles of a block: query_tile a multiple of 16 * warps, key_tile of 16. In shared memory Q, K and V follow each other."""

    head_dim: int
    query_tile: int
    key_tile: int
    warps: int
    lanes = 32  # threads that share lane_rows rows
    shared_type = uint32

    @property
    def threads(self):
        """Threads of a block."""
        return 32 * self.warps

    @property
    def row_tiles(self):
        """Tiles of 16 rows that a warp owns."""
        return self.query_tile // (16 * self.warps)

    @property
    def lane_rows(self):
        """Rows of a warp."""
        return 16 * self.row_tiles

    @property
    def row_count(self):
        """Rows of which a thread holds parts."""
        return 2 * self.row_tiles

    @property
    def padded_dim(self):
        """head_dim with the zeros that make it a multiple of an mma step's depth."""
        return -(-self.head_dim // 16) * 16

    @property
    def keys_at(self):
        """The word of shared memory where K begins."""
        return self.query_tile * row_words_of(self.head_dim)

    @property
    def values_at(self):
        """The word of shared memory where V begins."""
        return self.keys_at + self.key_tile * row_words_of(self.head_dim)

    @property
    def shared_bytes(self):
        """Shared memory of a block."""
        return 4 * (self.values_at + self.key_tile * row_words_of(self.head_dim))

    @property
    def query_in_registers(self):
        """Whether Q stays in registers; else its fragments are read again for every tile of keys."""
        return self.padded_dim * self.row_tiles <= 128

    @property
    def query_words(self):
        """Registers of a thread for fragments of Q."""
        return (self.padded_dim // 4 if self.query_in_registers else 4) * self.row_tiles

    @property
    def score_count(self):
        """Scores of a thread."""
        return self.key_tile // 2 * self.row_tiles

    @property
    def out_count(self):
        """Elements of the output of a thread."""
        return self.padded_dim // 2 * self.row_tiles

    @property
    def launch_bounds(self):
        """(threads, blocks that ptxas is to fit into an SM's registers), so that one block computes while others wait; none spills."""
        registers = -(-(self.query_words + self.score_count + self.out_count + 40 * self.row_tiles) // 8) * 8
        limit = 3 if self.query_in_registers and self.padded_dim <= 64 else 2
        return self.threads, max(1, min(limit, REGISTER_FILE // (self.threads * registers)))


def make_tensor_core_parts(tiles, dtype, out_dtype):
    """(Products, Rows of scores, Rows of the output): tiles of 16-bit `dtype` are multiplied, and the output is stored in out_dtype."""
    score_rows = make_rows(tiles.key_tile, dtype, tiles.row_tiles)
    out_rows = make_rows(tiles.head_dim, out_dtype, tiles.row_tiles, tiles.padded_dim)
    sizes = (tiles.padded_dim, tiles.key_tile, tiles.row_tiles, tiles.keys_at, tiles.values_at, tiles.query_in_registers)
    warp = make_warp_products(dtype, *sizes, score_rows)

    @cuda.jit(device=True)
    def output(acc, weights, shared, lane_row, lane):
        warp.multiply(acc, weights, shared, lane)

    return Products(warp.load_left, warp.multiply_transposed, output), score_rows, out_rows
