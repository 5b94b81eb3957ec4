"""The transposition of tiles of fp8 values, [keys, head_dim] as they are cached, to [head_dim, keys] as wgmma takes them.

wgmma multiplies fp8 K-major only: the codes that a product sums over are adjacent, which for P V are those of neighbouring keys. Two warps
of the producer's warpgroup transpose every tile between two rings in shared memory (Shah et al., arXiv 2407.08608, section 3.3).
ldmatrix.trans gives lane 4c + i of a warp, of 8 keys and 16 components, components 2c and 2c + 1 of keys 2i and 2i + 1. Of 16 keys, two
permutations of bytes make two words, which stmatrix stores into row c and row 8 + c of the transposed tile:

    row c:      component 2c       of keys 2i, 2i + 1, 2i + 8, 2i + 9, as bytes 4i to 4i + 3
    row 8 + c:  component 2c + 1   of the same keys

So of 16 keys, column 4i + k is key 2i + (0, 1, 8, 9)[k]. These are the columns of scores that lane i of a row holds, in the order in which
the A operand takes them from it: weights need no exchange between lanes. And of 16 components, row 8k + c is component 2c + k: a lane of
the output holds components 4i to 4i + 3, 8 adjacent bytes. No access has a bank conflict.
"""

import functools

from numba import cuda, int32, uint32

from minllm import ptx
from minllm.kernels.attention.flash_attention_3.tiles import TRANSPOSERS, make_pipelines
from minllm.kernels.attention.flash_attention_3.work import make_order, make_work
from minllm.tiles.pipeline import BARRIER_BYTES

GROUP = 32  # keys that a warp transposes at once: four tiles of ldmatrix
CHUNK = 16  # codes per chunk
BATCH = 4  # chunks that a warp loads before it stores the first


@functools.cache
def make_address(tile):
    """address(base, row, chunk): device function for the shared address of a chunk of 16 bytes of a SharedTile at `base`."""
    swizzle, panel_bytes = tile.swizzle, tile.panel_bytes

    @cuda.jit(device=True, forceinline=True)
    def address(base, row, chunk):
        line = uint32(row * uint32(swizzle))
        panel, within = uint32(chunk // uint32(swizzle // CHUNK)), uint32(chunk % uint32(swizzle // CHUNK))
        within = uint32(within ^ uint32(line >> uint32(7) & uint32(swizzle // CHUNK - 1)))  # the swizzle permutes chunks
        return uint32(base + panel * uint32(panel_bytes) + line + within * uint32(CHUNK))

    return address


@functools.cache
def make_transpose_tile(shape):
    """(transpose_group, clear_rows): device functions of a warp for a group of a tile's keys."""
    loaded_address, transposed_address = make_address(shape.keys), make_address(shape.transposed)
    chunks, row_chunks, panel_bytes = shape.head_dim // CHUNK, shape.keys.swizzle // CHUNK, shape.keys.panel_bytes
    chunk_bytes, batch_words = CHUNK * shape.transposed.swizzle, 4 * BATCH

    @cuda.jit(device=True, forceinline=True)
    def chunk_address(source_row, chunk):
        """The address of chunk `chunk` of a row of the loaded tile, from that of chunk 0."""
        return uint32((source_row ^ uint32(CHUNK * (chunk % row_chunks))) + uint32(chunk // row_chunks * panel_bytes))

    @cuda.jit(device=True, forceinline=True)
    def store_chunk(words, at, target_row, chunk):
        """Sort the bytes by component and store 16 rows of the transposed tile."""
        for i in range(2):  # 16 keys each
            even = ptx.prmt(words[at + 2 * i], words[at + 2 * i + 1], uint32(0x6420))
            odd = ptx.prmt(words[at + 2 * i], words[at + 2 * i + 1], uint32(0x7531))
            words[at + 2 * i], words[at + 2 * i + 1] = even, odd
        ptx.stmatrix_x4(uint32(target_row + uint32(chunk * chunk_bytes)), words, at)

    @cuda.jit(device=True, forceinline=True)
    def transpose_group(source, target, first_row, lane):
        """Transpose the keys from first_row on, from the tile at address `source` to the one at `target`."""
        words = cuda.local.array(batch_words, uint32)
        source_row = loaded_address(source, uint32(first_row) + lane, uint32(0))
        # Of stmatrix's four tiles, two are components 2c and 2c + 1 of the first 16 keys, two of the second.
        target_row = transposed_address(target, lane % uint32(16), uint32(uint32(first_row) // uint32(CHUNK)) + lane // uint32(16))
        for batch in range((chunks + BATCH - 1) // BATCH):
            for i in range(BATCH):  # all loads before the first store
                if BATCH * batch + i < chunks:
                    ptx.ldmatrix_x4_trans(words, 4 * i, chunk_address(source_row, BATCH * batch + i))
            for i in range(BATCH):
                if BATCH * batch + i < chunks:
                    store_chunk(words, 4 * i, target_row, BATCH * batch + i)

    @cuda.jit(device=True)
    def clear_rows(words, source, first_row, first, stop, lane):
        """Clear the group's rows outside `first` to `stop` of the tile: no query row sees them, and 0 * NaN would be NaN."""
        row = int32(first_row + int32(lane))
        if row < first or row >= stop:
            source_row = loaded_address(source, uint32(row), uint32(0))
            for chunk in range(chunks):
                at = uint32(chunk_address(source_row, chunk) - ptx.shared_address(words, 0)) // uint32(4)
                ptx.store_128(words, at, 0, 0, 0, 0)
        ptx.fence_proxy_async()  # TMA writes to the same stage later
        cuda.syncwarp()

    return transpose_group, clear_rows


@functools.cache
def make_transpose(shape, parts):
    """transpose: the device function of a warp that transposes its groups of all tiles of values."""
    key_tile = shape.key_tile
    pipelines = make_pipelines(shape, parts)
    loaded, transposed = pipelines.loaded, pipelines.values
    transpose_group, clear_rows = make_transpose_tile(shape)
    order, (key_range, _, _) = make_order(shape.query_tile), make_work(shape)

    @cuda.jit(device=True)
    def transpose_rows(words, rings, tile, first, stop, warp, lane):
        """Transpose a warp's groups of one tile; first, stop: of the rows that hold keys."""
        state = loaded.state(tile)
        loaded.consumer_wait(rings.loaded, state)
        target = transposed.producer_acquire(rings.values, transposed.state(tile))
        source = loaded.stage(rings.loaded, state).tiles
        first_row = int32(warp * GROUP)
        while first_row < key_tile:
            if first > 0 or stop < key_tile:
                clear_rows(words, source, first_row, first, stop, lane)
            transpose_group(source, target.tiles, first_row, lane)
            first_row = int32(first_row + TRANSPOSERS * GROUP)
        ptx.fence_proxy_async()
        cuda.syncwarp()
        if lane == 0:
            ptx.mbarrier_arrive(target.full)
            ptx.mbarrier_arrive(rings.loaded.empty + BARRIER_BYTES * state.slot)

    @cuda.jit(device=True)
    def transpose(words, rings, batch, warp, lane):
        """Transpose this warp's groups of all tiles, in the order in which the producer loads them."""
        tile, round_number, goes_on = int32(0), int32(0), True
        items = order.begin(batch.query_start, batch.context_lens)
        while goes_on:
            items, item = order.find(items, round_number, batch.query_start, batch.context_lens, batch.heads)
            goes_on = item.sequence >= 0
            if goes_on:
                sequence, context_len = item.sequence, batch.context_lens[item.sequence]
                first_position = int32(context_len - (batch.query_start[sequence + 1] - batch.query_start[sequence]) + item.first_row)
                visible_start, visible_stop, first_tile, count = key_range(first_position, context_len, batch.window)
                for i in range(count):
                    first_key = int32((first_tile + count - 1 - i) * key_tile)
                    transpose_rows(words, rings, tile, int32(visible_start - first_key), int32(context_len - first_key), warp, lane)
                    tile += 1
            round_number += 1

    return transpose
