"""How split_kv.py loads rows of the cache into registers: which lane holds which part.

A warp is divided into subgroups of `lanes` lanes. A subgroup reads one key's row, each lane 16 bytes of it (a chunk), and the loads of
`keys_each` keys are all issued before the first is needed. Lanes beyond a row's chunks repeat the last chunk.
"""

import functools
from dataclasses import dataclass

from numba import cuda, float32, int64, uint32

from minllm.kernels.attention.split_kv.choice import head_tiles_of
from minllm.ptx import load_128_streaming, uint_as_float, unpack_bf16x2, unpack_f16x2
from minllm.tiles.warp import WARP


@dataclass(frozen=True)
class LaneShape:
    """The division of rows among lanes. keys_each: keys per lane with loads in flight at the same time."""

    dtype: str
    head_dim: int
    group: int  # query heads that share a KV head
    warps: int
    keys_each: int

    @property
    def head_tiles(self):
        """Blocks that share the query heads of a KV head."""
        return head_tiles_of(self.group)[0]

    @property
    def heads(self):
        """Query heads per block."""
        return head_tiles_of(self.group)[1]

    @property
    def elements(self):
        """Elements per 16-byte chunk."""
        return 4 if self.dtype == "float32" else 8

    @property
    def chunks(self):
        """Chunks per row."""
        return self.head_dim // self.elements

    @property
    def lanes(self):
        """Lanes per subgroup: a power of two."""
        return min(WARP, 1 << (self.chunks - 1).bit_length())

    @property
    def chunks_each(self):
        """Chunks of a row per lane."""
        return -(-self.chunks // self.lanes)

    @property
    def numbers_each(self):
        """Elements of a row per lane."""
        return self.chunks_each * self.elements

    @property
    def subgroups(self):
        """Subgroups per warp."""
        return WARP // self.lanes

    @property
    def step(self):
        """Keys per block and iteration."""
        return self.warps * self.subgroups * self.keys_each


@functools.cache
def make_unpack(dtype):
    """The device function that converts a chunk to float32."""

    @cuda.jit(device=True)
    def unpack(words, at, numbers):
        """The elements of one 16-byte chunk words[at:at+4] as float32."""
        for i in range(4):
            if dtype == "float32":
                numbers[i] = uint_as_float(words[at + i])
            else:
                low, high = unpack_bf16x2(words[at + i]) if dtype == "bfloat16" else unpack_f16x2(words[at + i])
                numbers[2 * i] = low
                numbers[2 * i + 1] = high

    return unpack


@functools.cache
def make_row_loads(shape):
    """The device functions (load_query, load_rows)."""
    unpack = make_unpack(shape.dtype)
    head_dim, heads_here, keys_each = shape.head_dim, shape.heads, shape.keys_each
    elements, chunks, lanes, chunks_each, numbers_each = shape.elements, shape.chunks, shape.lanes, shape.chunks_each, shape.numbers_each

    @cuda.jit(device=True)
    def load_query(numbers, query, row, first_head, heads_left, lane, scale):
        """Load this lane's elements of all query heads, scaled; zeros for absent heads and chunks."""
        words = cuda.local.array(4, uint32)
        chunk_numbers = cuda.local.array(elements, float32)
        heads = query.shape[1]
        for head in range(heads_here):
            for chunk_index in range(chunks_each):
                chunk = lane % lanes + lanes * chunk_index
                exists = head < heads_left and chunk < chunks
                index = (int64(row) * heads + first_head + head) * head_dim + chunk * elements if exists else int64(0)
                words[0], words[1], words[2], words[3] = load_128_streaming(query, index)
                unpack(words, 0, chunk_numbers)
                for i in range(elements):
                    number = chunk_numbers[i] * scale if exists else float32(0.0)
                    numbers[head * numbers_each + chunk_index * elements + i] = number

    @cuda.jit(device=True)
    def load_rows(words, cache, rows, lane):
        """Load this lane's chunks of `keys_each` rows of the cache; rows[] holds the flat index of each row's first element."""
        for key in range(keys_each):
            for chunk_index in range(chunks_each):
                chunk = min(lane % lanes + lanes * chunk_index, chunks - 1)  # a lane beyond the row repeats its last chunk
                at = 4 * (key * chunks_each + chunk_index)
                words[at], words[at + 1], words[at + 2], words[at + 3] = load_128_streaming(cache, rows[key] + chunk * elements)

    return load_query, load_rows
