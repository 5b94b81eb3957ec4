"""TMA: one thread starts the copy of a tile from global memory to a stage of a pipeline.

The stage's barrier counts the bytes that arrive. Coordinates are those of the tile's first element, the fastest axis first, as in PTX.
Elements outside the array arrive as zeros. `offset` is the byte of the stage at which the tile begins. PTX ISA, "cp.async.bulk.tensor".
"""

from numba import cuda

from minllm import ptx


@cuda.jit(device=True, forceinline=True)
def load_2d(stage, offset, tensor_map, column, row):
    """Load a tile of a matrix."""
    ptx.cp_async_bulk_tensor_2d_shared_global(stage.tiles + offset, tensor_map, column, row, stage.full)


@cuda.jit(device=True, forceinline=True)
def load_2d_multicast(stage, offset, tensor_map, column, row, blocks):
    """Load a tile of a matrix to the same stage of several blocks of the cluster; blocks: a bit per block."""
    ptx.cp_async_bulk_tensor_2d_shared_global_multicast(stage.tiles + offset, tensor_map, column, row, stage.full, blocks)


@cuda.jit(device=True, forceinline=True)
def load_3d(stage, offset, tensor_map, column, head, token):
    """Load rows of one head of an array [tokens, heads, head_dim]."""
    ptx.cp_async_bulk_tensor_3d_shared_global(stage.tiles + offset, tensor_map, column, head, token, stage.full)


@cuda.jit(device=True, forceinline=True)
def load_4d(stage, offset, tensor_map, column, head, slot, block):
    """Load rows of one head in a block of a paged cache [blocks, block_size, heads, head_dim]."""
    ptx.cp_async_bulk_tensor_4d_shared_global(stage.tiles + offset, tensor_map, column, head, slot, block, stage.full)
