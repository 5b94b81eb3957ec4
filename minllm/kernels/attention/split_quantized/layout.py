"""The shared-memory layout of a warp's own ring of quantised keys and values.

cp_async_ring.py or tma_ring.py fills the ring. A stage holds the codes of `keys` keys and those of their values. For integers, the scales
follow the codes of all stages: those of a stage's keys and then of its values, one word of two float16 (scale, zero) per key and group.
Keys by channel have the same number of words in the same place: a tile is a group of tokens, and as long as a group of channels. Codes are
copied unchanged, so that a ring of the same size holds two or four times as many keys. For cp.async, a row of codes is padded to an odd
number of 16-byte chunks, so that the eight rows of an ldmatrix tile lie in different banks; TMA swizzles instead.
"""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

from numba import cuda, uint32

from minllm.kernels.quantization.formats import KvFormat
from minllm.runtime.array_protocol import Array
from minllm.runtime.tensor_map import tensor_map

SMALLEST_TILE, BARRIER_BYTES = 16, 16  # keys of a warp's smallest tile; bytes of the two mbarriers per stage
LINE_BYTES, SWIZZLE_BYTES = 128, 1024  # bytes of an L2 line; period of TMA's swizzle, in bytes


class CodeCache(NamedTuple):
    """A quantised cache; for TMA, keys and values are tensor maps."""

    keys: Array  # codes [num_blocks, kv_heads, block_size, code_bytes]
    values: Array
    key_scales: Array
    value_scales: Array
    blocks: Array  # int32, in registers: the blocks of the tile that a warp copies next (ring.py)


@dataclass(frozen=True)
class CodeLayout:
    """The layout of a warp's ring in shared memory."""

    kv_format: KvFormat
    keys: int  # keys per tile
    stages: int
    tma: bool

    @property
    def chunks(self):
        """16-byte chunks per row of codes."""
        return self.kv_format.code_bytes // 16

    @property
    def row_bytes(self):
        """Bytes from one row of codes to the next."""
        return self.kv_format.code_bytes if self.tma else 16 * (self.chunks | 1)

    @property
    def stage_bytes(self):
        """Bytes of codes per stage: `keys` rows of K and of V."""
        return 2 * self.keys * self.row_bytes

    @property
    def scale_words(self):
        """32-bit words of scales for the keys of a stage; its values have the same number."""
        return 0 if self.kv_format.is_float else self.keys * self.kv_format.groups

    @property
    def barriers_at(self):
        """Byte offset of TMA's mbarriers in the ring, after codes and scales."""
        return self.stages * (self.stage_bytes + 8 * self.scale_words)

    @property
    def ring_bytes(self):
        """Bytes of a warp's ring; for TMA a multiple of the swizzle's period."""
        whole = self.barriers_at + BARRIER_BYTES * self.stages
        return -(-whole // SWIZZLE_BYTES) * SWIZZLE_BYTES if self.tma else self.barriers_at


def run_of(block_size, keys):
    """Length of a run: a warp's tile is divided into runs of this many keys, each of which lies in one block of the cache."""
    return math.gcd(block_size, keys)


@functools.cache
def make_scale_places(layout):
    """(scales_of, scale_word_of): device functions for the shared address of the scales of ring.free, and for the index in ring.words of
    the scales of ring.stage."""
    stage_bytes, scale_bytes, codes_bytes = layout.stage_bytes, 8 * layout.scale_words, layout.stages * layout.stage_bytes
    first_word, scale_words, ring_words = codes_bytes // 4, scale_bytes // 4, layout.ring_bytes // 4

    @cuda.jit(device=True)
    def scales_of(ring):
        return uint32(ring.base + codes_bytes + uint32(ring.free - ring.base) // uint32(stage_bytes) * uint32(scale_bytes))

    @cuda.jit(device=True)
    def scale_word_of(ring):
        stage = uint32(ring.stage - ring.base) // uint32(stage_bytes)
        return uint32(uint32(ring.warp) * uint32(ring_words) + first_word + stage * uint32(scale_words))

    return scales_of, scale_word_of


@functools.cache
def make_chunk_at(layout):
    """chunk_at(tile, pair, lane): the shared address that a lane passes to ldmatrix, which loads chunks 2 * pair and 2 * pair + 1 of 16
    rows of codes. tile: address of the first row."""
    row_bytes, row_chunks, swizzled = layout.row_bytes, layout.chunks, layout.tma
    rows_per_line = max(1, LINE_BYTES // layout.kv_format.code_bytes)

    @cuda.jit(device=True)
    def chunk_at(tile, pair, lane):
        row, chunk = uint32(lane) % uint32(16), uint32(lane) // uint32(16)
        if swizzled:  # lines of eight chunks; chunk c of line i lies at c ^ i % 8 (minllm/ptx/swizzle.py)
            line = uint32(row // uint32(rows_per_line))
            within = uint32(row % uint32(rows_per_line) * uint32(row_chunks) + chunk)
            at = uint32(within ^ line % uint32(8) ^ uint32(2 * pair))
            return uint32(uint32(tile) + line * uint32(LINE_BYTES) + at * uint32(16))
        return uint32(tile + row * row_bytes + 16 * (2 * pair + chunk))

    return chunk_at


def can_fetch(kv_format, block_size):
    """Whether TMA can load a cache's codes: a line holds whole keys, and boxes are multiples of the swizzle's period."""
    code_bytes, run = kv_format.code_bytes, run_of(block_size, SMALLEST_TILE)
    return LINE_BYTES % code_bytes == 0 and run * code_bytes % SWIZZLE_BYTES == 0


def map_of(codes, keys):
    """The tensor map of a cache's codes, for tiles of `keys` keys."""
    lines = codes.reshape(-1, LINE_BYTES)
    box_bytes = run_of(codes.shape[2], keys) * codes.shape[3]
    return tensor_map(lines, (box_bytes // LINE_BYTES, LINE_BYTES), swizzle=LINE_BYTES, promotion=LINE_BYTES)
