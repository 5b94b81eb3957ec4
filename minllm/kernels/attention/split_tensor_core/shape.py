"""Chooses the size of a decode step's blocks, of their tiles and rings, and of the grid."""

import functools

from minllm.kernels.attention.split_tensor_core.block_sizes import BlockSizes, SplitShape, head_tiles_of
from minllm.kernels.attention.split_tensor_core.tma_ring import can_fetch
from minllm.kernels.attention.split_tensor_core.warp_states import pitch_of
from minllm.machine.occupancy import round_up
from minllm.runtime.device import CONSUMER_BLACKWELL, HOPPER, block_shared_bytes_here, capability_here, sms_here

RESERVED_BYTES = 1024  # shared memory that CUDA reserves per block
RING_ALIGNMENT = 1024  # the rings follow the states, at a multiple of this
STATIC_BYTES = 48 * 1024  # the most static shared memory per block, which holds the states of its warps


def line_heads_of(sizes):
    """Heads of the line (plan.py), over all sequences."""
    return sizes.sequences * sizes.kv_heads * head_tiles_of(sizes.group, sizes.head_dim)[0]


def first_that_fits(candidates, head_dim, heads, ring_bytes_of, shared_bytes):
    """The first SplitShape of which `blocks` blocks fit on an SM with `shared_bytes` of shared memory per block, else the last."""
    fitting = (shape for shape in candidates if fits(shape, head_dim, heads, ring_bytes_of(shape), shared_bytes))
    return next(fitting, candidates[-1])


def fits(shape, head_dim, heads, ring_bytes, shared_bytes):
    """Whether shape.blocks blocks of `heads` query heads, with rings of `ring_bytes` per warp, fit on an SM."""
    state_bytes = 4 * shape.turns * shape.warps * heads * (pitch_of(head_dim) + 2) + 16 * shape.turns
    block_bytes = shape.warps * ring_bytes + round_up(state_bytes, RING_ALIGNMENT)
    return state_bytes <= STATIC_BYTES and shape.blocks * (block_bytes + RESERVED_BYTES) <= shared_bytes + RESERVED_BYTES


def grid_of(sizes, splits, sm_count, shape):
    """Blocks of the grid, computed on the host without the lengths of contexts."""
    if splits:
        return line_heads_of(sizes) * splits
    return min(shape.blocks * (sm_count or sms_here()), line_heads_of(sizes) * -(-sizes.max_context_len // shape.tile))


@functools.cache
def shape_for(head_dim, group, line_heads, shared_bytes=None, sm_count=None, tensor_copies=False):
    """The SplitShape for `line_heads` heads over all sequences and blocks of at most `shared_bytes`; None: the current GPU's values.

    Few heads are split among all SMs: one block per SM, with the deepest rings, makes the fewest parts to merge. With many heads, a block
    processes one after another: two blocks per SM, so that one computes and copies while the other merges its warps, or four small ones,
    which lose less time between short heads.
    """
    shared_bytes, sm_count = shared_bytes or block_shared_bytes_here(), sm_count or sms_here()
    keys, (_, heads) = 16 if head_dim > 64 else 32, head_tiles_of(group, head_dim)
    one_block = ((4, 4), (4, 3), (4, 2), (2, 3), (2, 2), (1, 2))
    single = [SplitShape(warps, keys, stages, 1, tensor_copies) for warps, stages in one_block]
    double = [SplitShape(4, keys, stages, 2, tensor_copies) for stages in (4, 3)] if line_heads >= 2 * sm_count else []
    if head_dim == 64 and tensor_copies and line_heads >= 3 * sm_count:
        double.insert(0, SplitShape(2, keys, 3, 4, tensor_copies))
    return first_that_fits(double + single, head_dim, heads, lambda shape: BlockSizes(head_dim, group, shape).ring_bytes, shared_bytes)


def shape_of(sizes, sm_count=None, unified=False):
    """The SplitShape of a call with these AttentionSizes. TMA copies keys if GPU and cache allow it.

    cp.async is used for the unified maximum, whose kernel may have to fetch a run again, and from compute capability 12.0 on, where the
    walk with TMA would need a stack frame.
    """
    by_tma = HOPPER <= capability_here() < CONSUMER_BLACKWELL and can_fetch(sizes.head_dim, sizes.block_size)
    machine = (block_shared_bytes_here(), sm_count or sms_here())  # passed explicitly, because shape_for caches results by its arguments
    return shape_for(sizes.head_dim, sizes.group, line_heads_of(sizes), *machine, tensor_copies=by_tma and not unified)
