"""FlashAttention-2 over a paged KV cache, for prompts, whole or in chunks (kernel.py), in 16 bits on tensor cores.

Bytes from L2: K and V once per tile of queries and head, 2 * head_dim * itemsize per key, for 4 * QUERY_TILE * head_dim FLOPs: an intensity
of 2 * QUERY_TILE / itemsize = 64 FLOPs per byte for 64 rows of bf16, and far more from memory.

Q, K and V tiles are loaded by cp.async (tiles/cp_async.py): V while the scores are computed, and the next K during softmax and P V.
float32 arrays are passed to the variant flash_attention_2_float32.
"""

import functools

import numpy as np
from numba import cuda, float32

from minllm.kernels.arguments import dtype_name
from minllm.kernels.attention import VARIANTS
from minllm.kernels.attention.common.arguments import LOG2_E, check_arguments, check_lse, query_len_bound
from minllm.kernels.attention.common.paged_cache import make_lookup
from minllm.kernels.attention.common.window_keys import ALL, RECENT, check_window, make_row_keys
from minllm.kernels.attention.flash_attention_2 import kernel
from minllm.kernels.attention.flash_attention_2.kernel import Source
from minllm.kernels.attention.flash_attention_2.tensor_core import make_tensor_core_parts, query_in_registers, warp_tiles
from minllm.kernels.attention.shared_context.share import shared_keys
from minllm.ptx import cp_async_commit_group, cp_async_wait_group_0
from minllm.runtime.device import AMPERE, SIMULATED_SMS, capability_here, current_device
from minllm.runtime.kernel import check, launch
from minllm.tiles.cp_async import make_copies


def workspace_shapes(query, key_cache, block_tables):
    """FlashAttention-2 needs no scratch memory."""
    return {}


def tiles_for(head_dim, max_query_len, heads, sequences, sm_count):
    """(query rows, keys, warps) of a block's tiles, for a GPU with sm_count SMs.

    Large heads take fewer keys, because their accumulators fill the registers, and half as many before compute capability 8.0, where a
    block has 64 KB of shared memory and copies pass through registers. Tiles of 128 rows, 32 per warp, read K and V half as often as tiles
    of 64; 64 rows make more blocks, for batches that would not give every SM two of the large ones.
    """
    large_blocks = -(-max_query_len // 128) * heads * sequences
    if head_dim > 128 or large_blocks < 2 * sm_count:
        return small_tiles(head_dim)
    return (128, 64, 4) if head_dim <= 64 else (128, 32, 4)


def small_tiles(head_dim):
    """(query rows, keys, warps) of a block with tiles of 64 query rows."""
    if head_dim > 128:
        return 64, 32 if capability_here() >= AMPERE else 16, 4
    return 64, 64, 4


@functools.cache
def make_source(tiles, block_size):
    """The Source for caches of 16-bit numbers: cp.async, one tile ahead."""
    copies = make_copies(tiles.head_dim, tiles.query_tile, tiles.key_tile, tiles.threads, *make_lookup(block_size))
    key_tile, keys_at, values_at = tiles.key_tile, tiles.keys_at, tiles.values_at
    wait_for_query = query_in_registers(tiles.head_dim, tiles.row_count)

    @cuda.jit(device=True)
    def copy(cache, context, first_key, buffers, at):
        """Start copying a tile of keys or values to word `at`."""
        copies.paged(cache, context.block_table, context.kv_head, first_key, context.start, context.stop, buffers.shared, at)

    @cuda.jit(device=True)
    def kv_heads(key_cache):
        return key_cache.shape[2]

    @cuda.jit(device=True)
    def scales(context, scale):
        return scale, float32(1.0)

    @cuda.jit(device=True)
    def begin(queries, context, first_key, buffers):
        copies.matrix(queries.array, queries.token, queries.head, queries.rows, buffers.shared)
        if first_key < context.stop:
            copy(context.keys, context, first_key, buffers, keys_at)
        cp_async_commit_group()
        if wait_for_query:
            cp_async_wait_group_0()
            cuda.syncthreads()

    @cuda.jit(device=True)
    def arrive_keys(context, first_key, buffers):
        cp_async_wait_group_0()
        cuda.syncthreads()  # this tile of K has arrived, and no thread reads the last tile of V any more
        copy(context.values, context, first_key, buffers, values_at)
        cp_async_commit_group()

    @cuda.jit(device=True)
    def arrive_values(context, first_key, buffers):
        cp_async_wait_group_0()
        cuda.syncthreads()  # this tile of V has arrived, and no thread reads this tile of K any more
        if first_key + key_tile < context.stop:
            copy(context.keys, context, first_key + key_tile, buffers, keys_at)
        cp_async_commit_group()

    @cuda.jit(device=True)
    def finish():
        cp_async_wait_group_0()  # an asynchronous copy must not outlive its block

    return Source(1, 1, kv_heads, scales, begin, arrive_keys, arrive_values, finish)


@functools.cache
def make_kernel(dtype, head_dim, block_size, query_tile, key_tile, warps, residual_window=0, share=None):
    """(kernel, threads, shared bytes) for 16-bit `dtype`; query_tile is a multiple of 16 * warps, key_tile of 16.

    residual_window: 0, or a residual window (window_keys.py), of which this kernel reads the recent keys. share: a ContextShare, of whose
    keys rows read those up to their own; None: the cache has all keys.
    """
    row_keys = shared_keys(share) if share else make_row_keys(RECENT if residual_window else ALL, residual_window)
    tiles = warp_tiles(head_dim, query_tile, key_tile, warps)
    parts = make_tensor_core_parts(tiles, dtype, dtype)
    made = kernel.make_kernel(tiles, make_source(tiles, block_size), *parts, row_keys)
    return made, tiles.threads, tiles.shared_bytes


def attention(
    query, key_cache, value_cache, out, query_start, context_lens, block_tables, scale, sliding_window=0, max_query_len=None,
    workspace=None, stream=None, tiles=None, residual_window=0, lse=None, share=None,
):  # fmt: skip
    """Causal attention of new tokens over a paged cache, written into `out`; arguments as in kernels/attention/__init__.py.

    tiles: (query rows, keys, warps) of a block, for float32 as float32.tiles_for returns them; the default suits the head_dim.
    residual_window: if not 0, rows see only their recent keys (window_keys.py). lse: float32 [tokens, heads], receives the log-sum-exp of
    every row (merge_states.py). share: the ContextShare of the cache, if it has that of one of several ranks; context_lens are of whole
    contexts. float32 supports no residual window.
    """
    inputs = (query, key_cache, value_cache, out, query_start, context_lens, block_tables)
    sizes = check_arguments(*inputs, scale, sliding_window, max_query_len)
    check_window(residual_window)
    check_lse(sizes, lse)
    if dtype_name(query.dtype) == "float32":
        check(residual_window == 0, "a residual window needs float16 or bfloat16 queries, not float32")
        VARIANTS["flash_attention_2_float32"].attention(
            *inputs, scale, sliding_window, max_query_len, stream=stream, tiles=tiles, lse=lse, share=share
        )
        return
    longest = query_len_bound(max_query_len, sizes)
    sm_count = SIMULATED_SMS if isinstance(query, np.ndarray) else current_device().sm_count
    tiles = tiles or tiles_for(sizes.head_dim, longest, sizes.heads, sizes.sequences, sm_count)
    chosen, threads, shared_bytes = make_kernel(dtype_name(query.dtype), sizes.head_dim, sizes.block_size, *tiles, residual_window, share)
    grid = (-(-longest // tiles[0]), sizes.heads, sizes.sequences)
    arguments = (query, key_cache, None, value_cache, None, out, lse, *inputs[4:], float(scale * LOG2_E), int(sliding_window))
    launch(chosen, grid, threads, arguments, stream, shared_bytes)
