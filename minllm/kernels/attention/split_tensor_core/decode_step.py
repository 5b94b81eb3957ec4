"""Decode steps over 16-bit caches: which kernel serves a call.

One short sequence on Hopper gets clusters (cluster_step.py), other calls split_tensor_core.py. float32 is passed to split_kv.
"""

from minllm.kernels.arguments import dtype_name
from minllm.kernels.attention.common.arguments import LOG2_E, check_arguments, check_lse, check_single_tokens, sizes_of
from minllm.kernels.attention.common.workspace import scratch_arrays
from minllm.kernels.attention.split_kv import split_kv
from minllm.kernels.attention.split_tensor_core import cluster_step
from minllm.kernels.attention.split_tensor_core.block_sizes import BlockSizes, head_tiles_of
from minllm.kernels.attention.split_tensor_core.fair_plan import make_fair_plan
from minllm.kernels.attention.split_tensor_core.fixed_plan import make_fixed_plan
from minllm.kernels.attention.split_tensor_core.merge_parts import PART_NAMES, part_shapes
from minllm.kernels.attention.split_tensor_core.shape import grid_of, shape_of
from minllm.kernels.attention.split_tensor_core.split_tensor_core import launch_kernel
from minllm.kernels.attention.split_tensor_core.tile import make_softmax
from minllm.runtime.kernel import check


def workspace_shapes(query, key_cache, block_tables, splits=None, sm_count=None, shape=None, unified=False):
    """The states of heads that several blocks share: name -> (shape, dtype). Pass the same options here and to `attention`."""
    if dtype_name(query.dtype) == "float32":
        return split_kv.workspace_shapes(query, key_cache, block_tables, splits, sm_count)
    sizes = sizes_of(query, key_cache, block_tables)
    blocks = grid_of(sizes, splits, sm_count, shape or shape_of(sizes, sm_count, unified))
    return part_shapes(blocks, head_tiles_of(sizes.group, sizes.head_dim)[1], sizes.head_dim)


def attention(
    query, key_cache, value_cache, out, query_start, context_lens, block_tables, scale, sliding_window=0, max_query_len=None,
    workspace=None, stream=None, splits=None, sm_count=None, shape=None, phi=None, lse=None, softmax=make_softmax,
):  # fmt: skip
    """Attention of one new token per sequence over a paged cache, written into `out`; arguments as in kernels/attention/__init__.py.

    splits: split every context into this many shares, for results that do not depend on the batch; by default the blocks of `sm_count` SMs
    (None: this GPU's) take fair shares. shape: a SplitShape. phi, softmax: the unified maximum (ladder/unified_maximum.py). lse: float32
    [tokens, heads], receives the log-sum-exp of every row (merge_states.py). Raises KernelArgumentError for more than one new token per
    sequence; flash_attention_2 supports that.
    """
    inputs, unified = (query, key_cache, value_cache, out, query_start, context_lens, block_tables), phi is not None
    sizes = check_arguments(*inputs, scale, sliding_window, max_query_len)
    check_single_tokens("split_unified_maximum" if unified else "split_tensor_core", sizes, max_query_len, splits)
    check_lse(sizes, lse)
    if dtype_name(query.dtype) == "float32":
        check(lse is None, "the log-sum-exp needs float16 or bfloat16 queries, not float32")
        split_kv.attention(*inputs, scale, sliding_window, max_query_len, workspace, stream, splits, sm_count)
        return
    if all(option is None for option in (splits, shape, phi, lse)) and (chosen := cluster_step.choose_cluster(sizes, sm_count)):
        cluster_step.launch_clusters(inputs, sizes, scale, sliding_window, stream, *chosen)
        return
    shape = shape or shape_of(sizes, sm_count, unified)
    check(not (unified and shape.tensor_copies), "the unified maximum takes no tensor copies: it may have to fetch a run again")
    scratch = scratch_arrays(workspace, workspace_shapes(query, key_cache, block_tables, splits, sm_count, shape), query)
    numbers = (float(scale * LOG2_E), int(sliding_window), phi / scale if unified else None)
    block_sizes = BlockSizes(sizes.head_dim, sizes.group, shape, sizes.block_size, dtype_name(query.dtype))
    plan = make_fixed_plan(shape.tile, splits) if splits else make_fair_plan(shape.tile)
    states = [scratch[name] for name in PART_NAMES]
    launch_kernel(inputs, lse, states, numbers, block_sizes, plan, softmax, grid_of(sizes, splits, sm_count, shape), stream)
