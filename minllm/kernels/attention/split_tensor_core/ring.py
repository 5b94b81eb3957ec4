"""A warp's own ring of key and value tiles in shared memory: its layout, and the Source (walk.py) that fills it.

The source is cp_async_ring.py or, on Hopper and later, tma_ring.py. The warp that computes on a stage also fills it, so that no barrier of
the block lies between memory and tensor cores. Keys that must not be seen become zeros: their memory may hold NaN, and 0 * NaN would
spoil P V.

For cp.async a stage holds `keys` rows of K, then the same rows of V. A row is head_dim numbers, padded with zeros to a multiple of 16 and
then by 16 bytes, so that the eight rows of an ldmatrix tile lie in different banks. TMA swizzles instead.
"""

from numba import cuda

from minllm.runtime.tensor_map import tensor_map

BOX_KEYS, BOX_NUMBERS, BOX_ROW_BYTES = 16, 64, 128  # of one TMA load: keys, elements per row, bytes per row
BARRIER_BYTES = 1024  # space for mbarriers after a warp's ring; keeps the next ring at a multiple of 1024


def can_fetch(head_dim, block_size):
    """Whether the blocks of a cache consist of whole TMA boxes."""
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
    """Bytes per stage, which holds rows of K and of V."""
    return 4 * shape.keys * head_dim if shape.tensor_copies else 2 * shape.keys * row_bytes_of(head_dim)


def ring_bytes_of(head_dim, shape):
    """Bytes of a warp's ring, with its mbarriers."""
    return shape.stages * stage_bytes_of(head_dim, shape) + BARRIER_BYTES * shape.tensor_copies


@cuda.jit(device=True)
def aim(cursor, batch, ring):
    """The cursor itself: these sources look up nothing ahead."""
    return cursor


@cuda.jit(device=True)
def release(ring):
    """Wait until all lanes have read the stage, which is filled next."""
    cuda.syncwarp()
