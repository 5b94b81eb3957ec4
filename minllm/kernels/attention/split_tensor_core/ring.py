"""A warp's own ring of key and value tiles in shared memory: how it lies, and which Source (walk.py) fills it.

cp_async_ring.py fills it, or on Hopper and later tma_ring.py. Only the warp that computes on a stage fills it, so that nothing but the
warp has to be waited for: no barrier of the block stands between memory and tensor cores. Keys that must not be seen become zeros: what
lies there may be NaN, and 0 * NaN would spoil P V.

For cp.async a stage holds `keys` rows of K, then the same rows of V. A row is head_dim numbers, padded with zeros to a multiple of 16 and
then by 16 bytes, so that the eight rows of an ldmatrix tile lie in different banks. TMA swizzles instead.
"""

import importlib

from numba import cuda

from minllm.runtime.tensor_map import tensor_map

BOX_KEYS, BOX_NUMBERS, BOX_ROW_BYTES = 16, 64, 128  # one TMA load: keys, numbers and bytes of a row
BARRIER_BYTES = 1024  # mbarriers behind a warp's ring, so that the next one begins at a multiple of 1024


def can_fetch(head_dim, block_size):
    """Whether blocks of a cache consist of whole TMA boxes."""
    return head_dim % BOX_NUMBERS == 0 and block_size % BOX_KEYS == 0


def map_of(cache):
    """The tensor map of a key or value cache."""
    blocks, block_size, kv_heads, head_dim = cache.shape
    boxes = cache.reshape(blocks, block_size, kv_heads, head_dim // BOX_NUMBERS, BOX_NUMBERS)
    return tensor_map(boxes, (1, BOX_KEYS, 1, 1, BOX_NUMBERS), promotion=BOX_ROW_BYTES)


def row_bytes_of(head_dim):
    """Bytes from one row of a padded tile to the next."""
    return -(-head_dim // 16) * 32 + 16


def stage_bytes_of(head_dim, shape):
    """Bytes of a stage: rows of K and of V."""
    return 4 * shape.keys * head_dim if shape.tensor_copies else 2 * shape.keys * row_bytes_of(head_dim)


def ring_bytes_of(head_dim, shape):
    """Bytes of a warp's ring."""
    return shape.stages * stage_bytes_of(head_dim, shape) + BARRIER_BYTES * shape.tensor_copies


def make_source(head_dim, block_size, head_tiles, shape, plan):
    """The Source for blocks of a SplitShape, of which only one is loaded; head_tiles: heads of the line per KV head."""
    name = "tma_ring" if shape.tensor_copies else "cp_async_ring"
    return importlib.import_module(f"{__package__}.{name}").make_source(head_dim, block_size, head_tiles, shape, plan)


@cuda.jit(device=True)
def aim(cursor, batch, ring):
    """Nothing is looked up ahead."""
    return cursor


@cuda.jit(device=True)
def release(ring):
    """All lanes have read the stage, which is filled next."""
    cuda.syncwarp()
