"""Flash-Decoding on tensor cores: the fastest kernel for decode steps.

As in split_kv.py, the context is split over many blocks, each key is read once for all query heads of its KV head, and states are merged.
What counts is to keep enough bytes in flight from memory (Little's law: 4.8 TB/s for a microsecond are 36 KB per SM), and to lose no time
before the first byte and after the last. One idea per file:

    walk          a block's loop over heads and tiles: the frame
    cp_async_ring, tma_ring    a warp's own ring of tiles in shared memory, and what fills it
    tile          both matmuls on tensor cores, and softmax
    plan          ragged contexts cut into equal runs of tiles, one per block, on the device
    merge_parts   the last block of a head to arrive merges its parts: no second launch, and always in the same order
    decode_step   checks a call, and chooses between this kernel and cluster.py, the one for one short sequence

FLOPs: 4 * 8 * head_dim per key and KV head on tensor cores, however many of the 8 columns the group fills. Bytes: 2 * kv_heads * head_dim
* itemsize per key, read once. A head that is cut into n parts adds n * group * (head_dim + 2) * 4 bytes, written and read.

Measured: docs/results.md, rows split_tensor_core, beside cuDNN; docs/split-decode.md says what mattered and what did not.
"""

import functools

from numba import cuda, float32, int32, uint32

from minllm.kernels.attention.split_tensor_core import cp_async_ring, tma_ring
from minllm.kernels.attention.split_tensor_core.merge_parts import Parts, make_merges
from minllm.kernels.attention.split_tensor_core.plan import Batch, make_plan
from minllm.kernels.attention.split_tensor_core.tile import Operands, State, make_products, make_softmax
from minllm.kernels.attention.split_tensor_core.tma_ring import map_of
from minllm.kernels.attention.split_tensor_core.walk import make_walk
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.runtime.kernel import kernel, launch


@functools.cache
def make_kernel(sizes, splits, softmax=make_softmax):
    """(kernel, threads, dynamic shared bytes). splits: None for fair shares; softmax: makes the Softmax, e.g. tile.make_softmax."""
    shape, head_tiles, steps, columns = sizes.shape, sizes.head_tiles, sizes.steps, sizes.columns
    by_tma, threads = shape.tensor_copies, 32 * shape.warps
    query_count, out_count, state_count = 2 * steps * columns, 4 * steps * columns, 2 * columns
    load_early = query_count <= 16  # whether the registers have room for the queries of two heads
    plan = make_plan(shape.tile, splits)
    source = (tma_ring if by_tma else cp_async_ring).make_source(sizes, plan)
    parts_of_walk = plan, source, make_products(sizes), softmax(sizes), make_merges(sizes.head_dim, shape.warps)
    walk = make_walk(sizes.group, sizes.head_dim, shape, *parts_of_walk, load_early)

    @kernel(launch_bounds=(threads, shape.blocks), dependent_launch=True)
    def split_tensor_core_kernel(
        query,  # [tokens, heads, head_dim]
        key_cache,  # [num_blocks, block_size, kv_heads, head_dim]
        value_cache,  # the same
        out,  # [tokens, heads, head_dim]
        lse,  # [tokens, heads]: the log-sum-exp of every row, to base 2; or None
        part_max,  # [2 * blocks, heads of a block]
        part_sum,  # the same
        part_out,  # [2 * blocks, heads of a block, head_dim]
        arrivals,  # [blocks], zeros before and after
        query_start,  # [sequences + 1]
        context_lens,  # [sequences]
        block_tables,  # [sequences, max_blocks]
        scale,  # includes log2(e): exponentials are base 2
        sliding_window,
        phi,  # the unified maximum, in units of q . k; or None
        key_map,  # key_cache's tensor map, or None without TMA
        value_map,
    ):
        wait_for_predecessors()
        if by_tma:
            cache = (key_map, value_map)
        else:
            cache = (key_cache, value_cache)
        batch = Batch(query_start, context_lens, block_tables, int32(key_cache.shape[2] * head_tiles), sliding_window, int32(0))
        parts = Parts(part_max, part_sum, part_out, arrivals)
        operands = Operands(cuda.local.array(query_count, uint32), cuda.local.array(query_count, uint32))
        maxima, sums = cuda.local.array(state_count, float32), cuda.local.array(state_count, float32)
        state = State(maxima, sums, cuda.local.array(out_count, float32), cuda.local.array(1, float32))
        walk(query, cache, batch, out, lse, parts, operands, state, phi, scale)

    return split_tensor_core_kernel, threads, shape.warps * sizes.ring_bytes


def launch_kernel(inputs, lse, states, numbers, sizes, splits, softmax, blocks, stream):
    """Launch the kernel of these BlockSizes on checked arrays. states: the arrays of Parts; numbers: scale, sliding_window and phi."""
    query, key_cache, value_cache, out, *batch = inputs
    chosen, threads, shared_bytes = make_kernel(sizes, splits, softmax)
    maps = (map_of(key_cache), map_of(value_cache)) if sizes.shape.tensor_copies else (None, None)
    arguments = (query, key_cache, value_cache, out, lse, *states, *batch, *numbers, *maps)
    launch(chosen, blocks, threads, arguments, stream, shared_bytes)
