"""FlashAttention-3's tiles of queries, keys and values, and their layout in shared memory."""

import functools
from dataclasses import dataclass
from typing import NamedTuple

from numba import cuda

from minllm.tiles.pipeline import BARRIER_BYTES, Pipeline, Ring, make_pipeline
from minllm.tiles.shared import ALIGNMENT, SharedTile
from minllm.tiles.warpgroup import ROWS

TILE_BYTES = 208 * 1024  # the most shared memory for tiles, of a block's 227 KB
TRANSPOSERS = 2  # warps that transpose tiles of codes of values


@dataclass(frozen=True)
class TileShape:
    """A block's tile sizes: `consumers` warpgroups of 64 query rows each share tiles of `key_tile` keys.

    Shared memory holds `query_slots` tiles of queries, a ring of `stages` tiles of keys and one of values, and their mbarriers. codes: keys
    and values are fp8 codes; a third ring holds tiles of values transposed, and another tile the queries as codes.
    """

    head_dim: int
    consumers: int
    key_tile: int
    stages: int = 2
    codes: bool = False

    @property
    def query_tile(self):
        """Query rows per block."""
        return ROWS * self.consumers

    @property
    def swizzle(self):
        """Bytes per row of a panel of queries: 128, or 64 if that leaves fewer columns of zeros (head_dim 80, 96)."""
        return 128 if -(-self.head_dim // 64) * 64 == -(-self.head_dim // 32) * 32 else 64

    @property
    def queries(self):
        """The tile of queries."""
        return SharedTile(self.query_tile, self.head_dim, self.swizzle)

    @property
    def key_columns(self):
        """16-bit columns of a tile of keys or of values; two codes are one."""
        return self.head_dim // 2 if self.codes else self.head_dim

    @property
    def keys(self):
        """The tile of keys or of values."""
        return SharedTile(self.key_tile, self.key_columns, shortest_row(self.head_dim) if self.codes else self.swizzle)

    @property
    def query_codes(self):
        """The tile of queries as codes, the last one in shared memory."""
        return SharedTile(self.query_tile, self.key_columns, shortest_row(self.head_dim))

    @property
    def query_codes_at(self):
        """Bytes before this tile in shared memory."""
        return self.tile_bytes - self.query_codes.bytes

    @property
    def box_columns(self):
        """Elements of a cache per row of a panel."""
        return self.keys.swizzle if self.codes else self.keys.panel_columns

    @property
    def weight_registers(self):
        """Registers per thread for the weights of a tile as an operand of wgmma."""
        return self.key_tile // (8 if self.codes else 4)

    @property
    def transposed(self):
        """The tile of codes of values with a row per component of the head, and the keys as columns."""
        return SharedTile(self.head_dim, self.key_tile // 2, 128 if self.key_tile % 128 == 0 else shortest_row(self.key_tile % 128))

    @property
    def query_registers(self):
        """Registers per thread for a warpgroup's 64 query rows as an operand of wgmma."""
        return -(-self.key_columns // 16) * 4

    @property
    def queries_in_registers(self):
        """Whether queries fit in registers beside output, scores and weights: Q K^T then reads a third less from shared memory."""
        others = self.head_dim // 2 + self.key_tile // 2 + self.key_tile // 4
        return self.codes or self.consumers < 3 and self.query_registers + others <= 192

    @property
    def query_slots(self):
        """Tiles of queries in shared memory: two (this work item's and the next one's) if queries stay there and two fit, else one."""
        fit = 2 * self.queries.bytes + 2 * self.stages * self.keys.bytes <= TILE_BYTES
        return 2 if not self.queries_in_registers and fit else 1

    @property
    def tile_bytes(self):
        """Bytes of shared memory for all tiles."""
        others = self.stages * self.transposed.bytes + self.query_codes.bytes if self.codes else 0
        return self.query_slots * self.queries.bytes + 2 * self.stages * self.keys.bytes + others

    @property
    def shared_bytes(self):
        """Bytes of dynamic shared memory per block, including the alignment of its start."""
        return ALIGNMENT + self.tile_bytes + 2 * BARRIER_BYTES * (self.query_slots + (3 if self.codes else 2) * self.stages)

    def page_rows(self, block_size, max_blocks):
        """Rows of a tile per TMA load, or None if TMA cannot gather a tile from blocks of this size."""
        if max_blocks == 1 or block_size % self.key_tile == 0:
            return self.key_tile
        return block_size if block_size >= 8 and self.key_tile % block_size == 0 else None


def shortest_row(row_bytes):
    """Bytes per row of a panel, 128, 64 or 32, for tiles with rows of so many bytes."""
    return 128 if row_bytes > 64 else 64 if row_bytes > 32 else 32


class Rings(NamedTuple):
    """The Rings of the pipelines of queries, keys, values as TMA loads them, and values as consumers multiply them."""

    queries: Ring
    keys: Ring
    loaded: Ring
    values: Ring


class Pipelines(NamedTuple):
    """The pipelines of these rings, the last two the same unless values are transposed; make_rings(base): the Rings at a shared address."""

    queries: Pipeline
    keys: Pipeline
    loaded: Pipeline
    values: Pipeline
    make_rings: object


@functools.cache
def make_pipelines(shape, parts=1):
    """The Pipelines of a block; `parts` threads load the pages of a tile of keys or values together."""
    # All threads release queries, because every thread also reads the description of the work item.
    queries = make_pipeline(shape.query_slots, shape.queries.bytes, shape.consumers, by_thread=True)
    keys = loaded = values = make_pipeline(shape.stages, shape.keys.bytes, shape.consumers, producers=parts)
    if shape.codes:
        loaded = make_pipeline(shape.stages, shape.keys.bytes, TRANSPOSERS, producers=parts)
        values = make_pipeline(shape.stages, shape.transposed.bytes, shape.consumers, producers=TRANSPOSERS)
    keys_at, loaded_at, values_at, barriers_at = queries.bytes, queries.bytes + keys.bytes, queries.bytes + 2 * keys.bytes, shape.tile_bytes
    key_barriers_at = barriers_at + queries.barrier_bytes
    loaded_barriers_at, value_barriers_at = key_barriers_at + keys.barrier_bytes, key_barriers_at + 2 * keys.barrier_bytes
    transposes = shape.codes

    @cuda.jit(device=True, forceinline=True)
    def make_rings(base):
        loaded_ring = loaded.ring(base + loaded_at, base + loaded_barriers_at, 0)
        return Rings(
            queries.ring(base, base + barriers_at, 0),
            keys.ring(base + keys_at, base + key_barriers_at, 0),
            loaded_ring,
            values.ring(base + values_at, base + value_barriers_at, 0) if transposes else loaded_ring,
        )

    return Pipelines(queries, keys, loaded, values, make_rings)
