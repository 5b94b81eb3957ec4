"""Flash-Decoding on tensor cores: the fastest kernel for decode steps.

As in split_kv.py, the context is split over many blocks, each key is read once for all query heads of its KV head, and states are merged.
What counts is to keep enough bytes in flight from memory (Little's law: 4.8 TB/s for a microsecond are 36 KB per SM), and to lose no time
before the first byte and after the last. One idea per file:

    walk          a block's loop over heads and tiles: the frame
    ring          a warp's own ring of tiles in shared memory, filled by cp_async_ring.py or tma_ring.py
    tile          both matmuls on tensor cores, and softmax
    plan          ragged contexts cut into equal runs of tiles, one per block, on the device
    merge_parts   the last block of a head to arrive merges its parts: no second launch, and always in the same order
    parts         these parts put together, for this kernel and for two others: cluster, for one short sequence, and ladder/unified_maximum

FLOPs: 4 * 8 * head_dim per key and KV head on tensor cores, however many of the 8 columns the group fills. Bytes: 2 * kv_heads * head_dim
* itemsize per key, read once. A head that is cut into n parts adds n * group * (head_dim + 2) * 4 bytes, written and read.

Measured: docs/results.md, rows split_tensor_core, beside cuDNN; docs/split-decode.md says what mattered and what did not.
"""

import functools
from typing import NamedTuple

from numba import cuda, float32, int32, uint32

from minllm.kernels.arguments import dtype_name
from minllm.kernels.attention import VARIANTS
from minllm.kernels.attention.common.arguments import LOG2_E, check_arguments, check_lse, check_single_tokens, sizes_of
from minllm.kernels.attention.common.workspace import scratch_arrays
from minllm.kernels.attention.split_tensor_core import shape as shapes
from minllm.kernels.attention.split_tensor_core.merge_parts import PART_NAMES, Parts, make_merges, part_shapes
from minllm.kernels.attention.split_tensor_core.parts import columns_of, make_parts, shape_for
from minllm.kernels.attention.split_tensor_core.plan import Batch
from minllm.kernels.attention.split_tensor_core.ring import can_fetch, map_of, ring_bytes_of
from minllm.kernels.attention.split_tensor_core.tile import Operands, State, make_softmax, sizes_of_lane
from minllm.kernels.attention.split_tensor_core.walk import make_walk
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.runtime.array_protocol import Array
from minllm.runtime.device import CONSUMER_BLACKWELL, HOPPER, block_shared_bytes_here, capability_here, sms_here
from minllm.runtime.kernel import check, kernel, launch


class Origin(NamedTuple):
    """What a state starts from, if not from nothing: a unified maximum, or the states of the keys before first_key."""

    phi: Array
    maxima: Array  # [shares, sequences, heads]
    sums: Array  # the same
    outs: Array  # [shares, sequences, heads, head_dim]


@functools.cache
def make_kernel(dtype, head_dim, block_size, group, splits, shape, softmax=make_softmax):
    """(kernel, threads, dynamic shared bytes) for 16-bit `dtype`; arguments as for make_parts."""
    head_tiles, by_tma, threads = shapes.head_tiles_of(group, head_dim)[0], shape.tensor_copies, 32 * shape.warps
    query_count, out_count, state_count, _ = sizes_of_lane(head_dim, shape.keys, columns_of(group, head_dim))
    load_early = query_count <= 16  # whether the registers have room for the queries of two heads
    parts_of_walk = make_parts(dtype, head_dim, block_size, group, splits, shape, softmax)
    walk = make_walk(group, head_dim, shape, *parts_of_walk, make_merges(head_dim, shape.warps), load_early)

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
        first_key,  # keys before this one are not read
        phi,  # the unified maximum, in units of q . k
        prefix_max,  # [shares, sequences, heads], or None
        prefix_sum,  # the same
        prefix_out,  # [shares, sequences, heads, head_dim], or None
        key_map,  # key_cache's tensor map, or None without TMA
        value_map,
    ):
        wait_for_predecessors()
        if by_tma:
            cache = (key_map, value_map)
        else:
            cache = (key_cache, value_cache)
        batch = Batch(query_start, context_lens, block_tables, int32(key_cache.shape[2] * head_tiles), sliding_window, first_key)
        parts = Parts(part_max, part_sum, part_out, arrivals)
        origin = Origin(phi, prefix_max, prefix_sum, prefix_out)
        operands = Operands(cuda.local.array(query_count, uint32), cuda.local.array(query_count, uint32))
        maxima, sums = cuda.local.array(state_count, float32), cuda.local.array(state_count, float32)
        state = State(maxima, sums, cuda.local.array(out_count, float32), cuda.local.array(1, float32))
        walk(query, cache, batch, out, lse, parts, operands, state, origin, scale)

    return split_tensor_core_kernel, threads, shape.warps * ring_bytes_of(head_dim, shape)


def shape_of(sizes, sm_count=None, unified=False):
    """The SplitShape of a call. TMA copies keys if GPU and cache allow it.

    cp.async is used for the unified maximum, whose kernel may have to fetch a run again, and from compute capability 12.0 on, where the
    walk with TMA would need a stack frame.
    """
    by_tma = HOPPER <= capability_here() < CONSUMER_BLACKWELL and can_fetch(sizes.head_dim, sizes.block_size)
    machine = (block_shared_bytes_here(), sm_count or sms_here())  # passed explicitly, because shape_for caches results by its arguments
    return shape_for(sizes.head_dim, sizes.group, shapes.line_heads_of(sizes), *machine, tensor_copies=by_tma and not unified)


def workspace_shapes(query, key_cache, block_tables, splits=None, sm_count=None, shape=None, unified=False):
    """The states of heads that several blocks share: name -> (shape, dtype). Pass the same options here and to `attention`."""
    if dtype_name(query.dtype) == "float32":
        return VARIANTS.fallback("split_tensor_core").workspace_shapes(query, key_cache, block_tables, splits, sm_count)
    sizes = sizes_of(query, key_cache, block_tables)
    blocks = shapes.grid_of(sizes, splits, sm_count, shape or shape_of(sizes, sm_count, unified))
    _, heads = shapes.head_tiles_of(sizes.group, sizes.head_dim)
    return part_shapes(blocks, heads, sizes.head_dim)


def attention(
    query, key_cache, value_cache, out, query_start, context_lens, block_tables, scale, sliding_window=0, max_query_len=None,
    workspace=None, stream=None, splits=None, sm_count=None, shape=None, phi=None, lse=None, softmax=make_softmax,
):  # fmt: skip
    """Attention of one new token per sequence over a paged cache, written into `out`; arguments as in kernels/attention/__init__.py.

    float32 is passed to split_kv, and one short sequence on Hopper to cluster.py. splits: split every context into this many shares, for
    results that do not depend on the batch; by default the blocks of `sm_count` SMs (None: this GPU's) take fair shares. shape: a
    SplitShape. phi, softmax: the unified maximum (unified_maximum.py). lse: float32 [tokens, heads], receives the log-sum-exp of every row
    (merge_states.py). Raises KernelArgumentError for more than one new token per sequence; flash_attention_2 supports that.
    """
    inputs = (query, key_cache, value_cache, out, query_start, context_lens, block_tables)
    sizes = check_arguments(*inputs, scale, sliding_window, max_query_len)
    check_single_tokens("split_tensor_core" if phi is None else "split_unified_maximum", sizes, max_query_len, splits)
    check_lse(sizes, lse)
    if dtype_name(query.dtype) == "float32":
        check(lse is None, "the log-sum-exp needs float16 or bfloat16 queries, not float32")
        options = (scale, sliding_window, max_query_len, workspace, stream, splits, sm_count)
        VARIANTS.fallback("split_tensor_core").attention(*inputs, *options)
        return
    if all(option is None for option in (splits, shape, phi, lse)):
        clusters = VARIANTS["split_cluster"]
        if cluster := clusters.choose_cluster(sizes, sm_count):
            clusters.launch_clusters(inputs, sizes, scale, sliding_window, stream, *cluster)
            return
    phi = None if phi is None else phi / scale  # in units of q . k
    launch_kernel(inputs, sizes, scale, sliding_window, workspace, stream, splits, sm_count, shape, softmax, phi, lse)


def launch_kernel(inputs, sizes, scale, sliding_window, workspace, stream, splits, sm_count, shape, softmax, phi, lse):
    """Launch the kernel with a softmax on checked inputs, from their first keys on. phi: in units of q . k."""
    query, key_cache, value_cache, out, query_start, context_lens, block_tables = inputs
    unified = phi is not None
    shape = shape or shape_of(sizes, sm_count, unified)
    check(not (unified and shape.tensor_copies), "the unified maximum takes no tensor copies: it may have to fetch a run again")
    scratch = scratch_arrays(workspace, workspace_shapes(query, key_cache, block_tables, splits, sm_count, shape), query)
    states = tuple(scratch[name] for name in PART_NAMES)
    made = make_kernel(dtype_name(query.dtype), sizes.head_dim, sizes.block_size, sizes.group, splits, shape, softmax)
    chosen, threads, shared_bytes = made
    numbers = (float(scale * LOG2_E), int(sliding_window), 0, float(phi or 0.0))
    maps = (map_of(key_cache), map_of(value_cache)) if shape.tensor_copies else (None, None)
    optional = (None, None, None, *maps)
    arguments = (query, key_cache, value_cache, out, lse, *states, query_start, context_lens, block_tables, *numbers, *optional)
    launch(chosen, shapes.grid_of(sizes, splits, sm_count, shape), threads, arguments, stream, shared_bytes)
