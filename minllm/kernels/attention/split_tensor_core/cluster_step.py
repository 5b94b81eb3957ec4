"""Decode steps by clusters (cluster.py): which calls they are for, and their launcher."""

import numpy as np

from minllm.kernels.arguments import dtype_name
from minllm.kernels.attention.common.arguments import LOG2_E, check_arguments, check_single_tokens
from minllm.kernels.attention.split_tensor_core import cluster
from minllm.kernels.attention.split_tensor_core.block_sizes import BlockSizes, head_tiles_of
from minllm.kernels.attention.split_tensor_core.shape import line_heads_of, shape_for
from minllm.kernels.attention.split_tensor_core.tma_ring import can_fetch
from minllm.runtime.device import HOPPER, block_shared_bytes_here, capability_here, sms_here
from minllm.runtime.kernel import check

CLUSTER = 8  # blocks per cluster
LONGEST_CONTEXT = 4096  # keys; at 8192 split_tensor_core is faster than a cluster


def choose_cluster(sizes, sm_count=None):
    """(blocks per cluster, SplitShape) for a call for which clusters are fastest: one sequence with few keys, on Hopper; else None.

    Several sequences have contexts of different lengths, for which equal shares are better. A cluster runs within one GPC, a group of some
    16 SMs, and with eight blocks per cluster half of the GPU is idle: long contexts lose more bandwidth than the merge saves.
    """
    if sizes.sequences > 1 or sizes.max_context_len > LONGEST_CONTEXT or capability_here() != HOPPER:
        return None
    if 2 * line_heads_of(sizes) * CLUSTER > (sm_count or sms_here()):
        return None
    return CLUSTER, cluster_shape(sizes, sm_count)


def cluster_shape(sizes, sm_count=None):
    """The SplitShape of blocks with room for the states they receive from their cluster."""
    _, heads = head_tiles_of(sizes.group, sizes.head_dim)
    sent_bytes = 4 * CLUSTER * (2 * heads + -(-heads * sizes.head_dim // CLUSTER))  # received from the other blocks
    by_tma = can_fetch(sizes.head_dim, sizes.block_size)
    return shape_for(sizes.head_dim, sizes.group, 1, block_shared_bytes_here() - sent_bytes, sm_count, by_tma)


def launch_clusters(inputs, sizes, scale, sliding_window, stream, splits, shape):
    """Launch the kernel on checked inputs of decode_step.attention, with `splits` blocks of this SplitShape per head."""
    block_sizes = BlockSizes(sizes.head_dim, sizes.group, shape, sizes.block_size, dtype_name(inputs[0].dtype))
    numbers = (float(scale * LOG2_E), int(sliding_window))
    cluster.launch_kernel(inputs, numbers, block_sizes, splits, line_heads_of(sizes) * splits, stream)


def workspace_shapes(query, key_cache, block_tables):
    """Clusters need no scratch memory."""
    return {}


def attention(
    query, key_cache, value_cache, out, query_start, context_lens, block_tables, scale, sliding_window=0, max_query_len=None,
    workspace=None, stream=None, shape=None,
):  # fmt: skip
    """Attention of one new token per sequence, written into `out`, one cluster per head; arguments as in kernels/attention/__init__.py.

    shape: a SplitShape; the default suits the head_dim. decode_step.attention launches clusters itself when they are fastest. Raises
    KernelArgumentError for float32, for more than one new token per sequence, and on a GPU of another compute capability than 9.0.
    """
    inputs = (query, key_cache, value_cache, out, query_start, context_lens, block_tables)
    sizes = check_arguments(*inputs, scale, sliding_window, max_query_len)
    check_single_tokens("split_cluster", sizes, max_query_len)
    check(dtype_name(query.dtype) != "float32", "split_cluster takes float16 and bfloat16, not float32")
    check(isinstance(query, np.ndarray) or capability_here() == HOPPER, "split_cluster needs a GPU of compute capability 9.0")
    launch_clusters(inputs, sizes, scale, sliding_window, stream, CLUSTER, shape or cluster_shape(sizes))
