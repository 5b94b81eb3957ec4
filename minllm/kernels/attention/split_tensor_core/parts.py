"""The parts of the kernels for decode steps over 16-bit caches, and their sizes: shared by split_tensor_core.py and cluster.py."""

import functools

from minllm.kernels.attention.split_tensor_core import cp_async_ring, tma_ring
from minllm.kernels.attention.split_tensor_core.plan import make_plan
from minllm.kernels.attention.split_tensor_core.ring import ring_bytes_of
from minllm.kernels.attention.split_tensor_core.shape import SplitShape, first_that_fits, head_tiles_of
from minllm.kernels.attention.split_tensor_core.tile import make_products
from minllm.runtime.device import block_shared_bytes_here, sms_here


def columns_of(group, head_dim):
    """Query heads of a block, rounded up to whole mma tiles of 8 columns."""
    return -(-head_tiles_of(group, head_dim)[1] // 8) * 8


@functools.cache
def make_parts(dtype, head_dim, block_size, group, splits, shape, softmax):
    """(plan, source, products, softmax) for blocks of a SplitShape. splits: None for fair shares; softmax: e.g. tile.make_softmax."""
    head_tiles, columns, plan = head_tiles_of(group, head_dim)[0], columns_of(group, head_dim), make_plan(shape.tile, splits)
    source = (tma_ring if shape.tensor_copies else cp_async_ring).make_source(head_dim, block_size, head_tiles, shape, plan)
    products = make_products(dtype, head_dim, shape.keys, columns, shape.tensor_copies)
    return plan, source, products, softmax(dtype, head_dim, shape.keys, columns, shape.warps)


@functools.cache
def shape_for(head_dim, group, line_heads, shared_bytes=None, sm_count=None, tensor_copies=False):
    """The SplitShape for `line_heads` heads over all sequences and blocks of at most `shared_bytes`; None: the current GPU's values.

    Few heads are split among all SMs: one block per SM, with the deepest rings, makes the fewest parts to merge. With many heads, a block
    processes one after another: two blocks per SM, so that one computes and copies while the other merges its warps, or four small ones,
    which lose less time between short heads.
    """
    shared_bytes, sm_count = shared_bytes or block_shared_bytes_here(), sm_count or sms_here()
    keys = 16 if head_dim > 64 else 32
    _, heads = head_tiles_of(group, head_dim)
    one_block = ((4, 4), (4, 3), (4, 2), (2, 3), (2, 2), (1, 2))
    single = [SplitShape(warps, keys, stages, 1, tensor_copies) for warps, stages in one_block]
    double = [SplitShape(4, keys, stages, 2, tensor_copies) for stages in (4, 3)] if line_heads >= 2 * sm_count else []
    if head_dim == 64 and tensor_copies and line_heads >= 3 * sm_count:
        double.insert(0, SplitShape(2, keys, 3, 4, tensor_copies))
    return first_that_fits(double + single, head_dim, heads, functools.partial(ring_bytes_of, head_dim), shared_bytes)
