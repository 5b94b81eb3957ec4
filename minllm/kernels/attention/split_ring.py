"""A warp's own ring of key and value tiles in shared memory, filled by cp.async (split_tensor_core.py).

A stage of the ring holds KEYS rows of K, then the same rows of V; a row is head_dim numbers, padded with zeros to a multiple of 16 and
then by 16 bytes more, so that the eight rows of an ldmatrix tile lie in different banks. Only the warp that computes on a stage fills
it, so nothing but the warp has to be waited for: no barrier of the block stands between the memory and the tensor cores. Rows that
must not be seen are filled with zeros and not read: what lies there may be NaN, and 0 * NaN would spoil P V.
"""

import functools

from numba import cuda, int32, int64, uint32

from minllm.kernels.attention.paged_cache import make_lookup
from minllm.kernels.attention.shared_tiles import row_words_of
from minllm.kernels.attention.split_plan import FIRST, HEAD, LEFT, SEQUENCE, TILE, quotient
from minllm.ptx import cp_async_16


@functools.cache
def make_ring(head_dim, block_size, head_tiles, keys, warps):
    """(copy_tile, words of a stage): the device function that starts copying a warp's rows of a tile."""
    block_of, element_of = make_lookup(block_size)
    row_bytes = 4 * row_words_of(head_dim)
    stage_bytes = 2 * keys * row_bytes
    chunks = -(-head_dim // 16) * 2  # of 16 bytes, in a row
    copies = keys * chunks // 32  # of a lane, for keys
    one_block = block_size % keys == 0  # a warp's rows lie in one block of the cache
    tile = keys * warps
    padded = head_dim % 16 != 0

    @cuda.jit(device=True)
    def copy_tile(cursor, context_lens, block_tables, key_cache, value_cache, sliding_window, warp, lane, stage):
        """Start copying this warp's rows of the cursor's tile, K and V, to the stage at this shared address."""
        if cursor[LEFT] <= 0:
            return
        sequence = cursor[SEQUENCE]
        stop = int32(context_lens[uint32(sequence)])
        start = int32(max(0, stop - sliding_window) if sliding_window > 0 else 0)
        position = int32((cursor[FIRST] + cursor[TILE]) * tile + warp * keys)  # of the warp's first row
        block_table = block_tables[uint32(sequence)]
        key_stride = int32(int32(key_cache.shape[2]) * head_dim)
        within = int32(quotient(cursor[HEAD], head_tiles) * head_dim)
        block = int32(0)
        if one_block:
            block = block_of(block_table, max(start, min(position, stop - 1)))
        for i in range(copies):
            row = quotient(lane + 32 * i, chunks)
            column = int32((lane + 32 * i - row * chunks) * 8)
            at = int32(position + row)
            if not one_block:
                block = block_of(block_table, max(start, min(at, stop - 1)))
            inside = start <= at and at < stop and (not padded or column < head_dim)
            index = element_of(block, at, key_stride, int32(within + column)) if inside else int64(0)
            to = uint32(stage + row * row_bytes + column * 2)
            cp_async_16(to, key_cache, index, 16 if inside else 0)
            cp_async_16(uint32(to + keys * row_bytes), value_cache, index, 16 if inside else 0)

    return copy_tile, stage_bytes
