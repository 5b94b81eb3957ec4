"""FlashAttention-3's tiles of queries, keys and values, and their layout in shared memory."""

import functools
from dataclasses import dataclass
from typing import NamedTuple

from numba import cuda

from minllm.tiles.pipeline import BARRIER_BYTES, Pipeline, Ring, make_pipeline
from minllm.tiles.shared import ALIGNMENT, SharedTile
from minllm.tiles.warpgroup import ROWS

TILE_BYTES = 208 * 1024  # the most shared memory for tiles, of a block's 227 KB


@dataclass(frozen=True)
class TileShape:
    """A block's tile sizes: `consumers` warpgroups of 64 query rows each share tiles of `key_tile` keys.

    Shared memory holds `query_slots` tiles of queries, a ring of `stages` tiles of keys and one of values, and their mbarriers.
    """

    head_dim: int
    consumers: int
    key_tile: int
    stages: int = 2

    @property
    def query_tile(self):
        """Query rows per block."""
        return ROWS * self.consumers

    @property
    def swizzle(self):
        """Bytes per row of a panel: 128, or 64 if that leaves fewer columns of zeros (head_dim 80, 96)."""
        return 128 if -(-self.head_dim // 64) * 64 == -(-self.head_dim // 32) * 32 else 64

    @property
    def queries(self):
        """The tile of queries."""
        return SharedTile(self.query_tile, self.head_dim, self.swizzle)

    @property
    def keys(self):
        """The tile of keys or of values."""
        return SharedTile(self.key_tile, self.head_dim, self.swizzle)

    @property
    def query_registers(self):
        """Registers per thread for a warpgroup's 64 query rows as an operand of wgmma."""
        return -(-self.head_dim // 16) * 4

    @property
    def queries_in_registers(self):
        """Whether queries fit in registers beside output, scores and weights: Q K^T then reads a third less from shared memory."""
        others = self.head_dim // 2 + self.key_tile // 2 + self.key_tile // 4
        return self.consumers < 3 and self.query_registers + others <= 192

    @property
    def query_slots(self):
        """Tiles of queries in shared memory: two (this work item's and the next one's) if queries stay there and two fit, else one."""
        fit = 2 * self.queries.bytes + 2 * self.stages * self.keys.bytes <= TILE_BYTES
        return 2 if not self.queries_in_registers and fit else 1

    @property
    def tile_bytes(self):
        """Bytes of shared memory for all tiles."""
        return self.query_slots * self.queries.bytes + 2 * self.stages * self.keys.bytes

    @property
    def shared_bytes(self):
        """Bytes of dynamic shared memory per block, including the alignment of its start."""
        return ALIGNMENT + self.tile_bytes + 2 * BARRIER_BYTES * (self.query_slots + 2 * self.stages)

    def page_rows(self, block_size, max_blocks):
        """Rows of a tile per TMA load, or None if TMA cannot gather a tile from blocks of this size."""
        if max_blocks == 1 or block_size % self.key_tile == 0:
            return self.key_tile
        return block_size if block_size >= 8 and self.key_tile % block_size == 0 else None


class Rings(NamedTuple):
    """The Rings of the pipelines of queries, keys and values."""

    queries: Ring
    keys: Ring
    values: Ring


class Pipelines(NamedTuple):
    """The pipelines of queries and of keys or values; rings(base): their Rings from this shared address on."""

    queries: Pipeline
    cache: Pipeline
    rings: object


@functools.cache
def make_pipelines(shape, parts=1):
    """The Pipelines of a block; `parts` threads load the pages of a tile of keys or values together."""
    # All threads release queries, because every thread also reads the description of the work item.
    queries = make_pipeline(shape.query_slots, shape.queries.bytes, shape.consumers, by_thread=True)
    cache = make_pipeline(shape.stages, shape.keys.bytes, shape.consumers, producers=parts)
    keys_at, values_at, barriers_at = queries.bytes, queries.bytes + cache.bytes, shape.tile_bytes
    key_barriers_at, value_barriers_at = barriers_at + queries.barrier_bytes, barriers_at + queries.barrier_bytes + cache.barrier_bytes

    @cuda.jit(device=True, forceinline=True)
    def rings(base):
        return Rings(
            queries.ring(base, base + barriers_at, 0),
            cache.ring(base + keys_at, base + key_barriers_at, 0),
            cache.ring(base + values_at, base + value_barriers_at, 0),
        )

    return Pipelines(queries, cache, rings)
