"""How large a decode step's blocks and grid are (split_tensor_core.py)."""

import functools
from dataclasses import dataclass

from minllm.kernels.attention.split_tensor_core.merge_parts import pitch_of
from minllm.kernels.attention.split_tensor_core.ring import stage_bytes_of
from minllm.kernels.attention.split_tensor_core.tensor_ring import BARRIER_BYTES, can_fetch, tensor_stage_bytes_of
from minllm.machine.occupancy import MULTIPROCESSORS
from minllm.runtime.device import current_device, is_available

DEFAULT_CAPABILITY = (9, 0)
RESERVED_BYTES = 1024  # that the system keeps of shared memory for every block


@dataclass(frozen=True)
class SplitShape:
    """warps: of a block; keys: of a warp's tile, a multiple of 16; stages: of a warp's ring, 2 to 4; blocks: on a multiprocessor;
    tensor_copies: the rings are filled by the copy engine (tensor_ring.py), not by cp.async."""

    warps: int
    keys: int
    stages: int
    blocks: int
    tensor_copies: bool = False

    @property
    def tile(self):
        """Keys that a block takes at one time."""
        return self.warps * self.keys


def head_tiles_of(group, head_dim):
    """(blocks that share a KV head's query heads, heads of each): at most 16, 8 for large heads, whose accumulators fill the registers."""
    tiles = -(-group // (16 if head_dim <= 96 else 8))
    return tiles, -(-group // tiles)


def ring_bytes_of(head_dim, shape):
    """Dynamic shared memory of a block: the rings of all warps."""
    if shape.tensor_copies:
        return shape.warps * (shape.stages * tensor_stage_bytes_of(head_dim, shape.keys) + BARRIER_BYTES)
    return shape.warps * shape.stages * stage_bytes_of(head_dim, shape.keys)


def state_bytes_of(head_dim, heads, warps):
    """Static shared memory of a block: the states of its warps, and a count."""
    return 4 * warps * heads * (pitch_of(head_dim) + 2) + 16


@functools.cache
def capability_here():
    """The compute capability of this machine's GPU; a Hopper one's where there is none."""
    return current_device().compute_capability if is_available() else DEFAULT_CAPABILITY


def block_shared_bytes():
    """The most shared memory that a block can have on this machine's GPU."""
    return MULTIPROCESSORS.get(capability_here(), MULTIPROCESSORS[8, 9]).block_shared_bytes


@functools.cache
def shape_for(head_dim, group, line_heads, shared_bytes=None, sm_count=132, tensor_copies=False):
    """The SplitShape for `line_heads` heads in all sequences and blocks of at most `shared_bytes` (by default what this machine allows).

    Few heads are cut among all multiprocessors: one block on each, with the deepest rings, makes the fewest parts to merge. Of many heads
    a block takes one after another: two blocks, so that one computes and copies while the other merges its warps.
    """
    shared_bytes = shared_bytes or block_shared_bytes()
    keys = 16 if head_dim > 64 else 32
    _, heads = head_tiles_of(group, head_dim)
    one_block = ((4, 4), (4, 3), (4, 2), (2, 3), (2, 2), (1, 2))
    single = [SplitShape(warps, keys, stages, 1, tensor_copies) for warps, stages in one_block]
    double = [SplitShape(4, keys, stages, 2, tensor_copies) for stages in (4, 3)] if line_heads >= 2 * sm_count else []
    for shape in double + single:
        block_bytes = ring_bytes_of(head_dim, shape) + state_bytes_of(head_dim, heads, shape.warps)
        if shape.blocks * (block_bytes + RESERVED_BYTES) <= shared_bytes + RESERVED_BYTES:
            break
    return shape


def shape_of(sizes, sm_count=132, unified=False):
    """The SplitShape of a call. Keys are fetched by tensor copies where GPU and cache allow it; the unified maximum's kernel, which may
    have to fetch a run again, does without."""
    head_tiles, _ = head_tiles_of(sizes.group, sizes.head_dim)
    by_engine = capability_here() >= (9, 0) and can_fetch(sizes.head_dim, sizes.block_size)
    line_heads = sizes.sequences * sizes.kv_heads * head_tiles
    return shape_for(sizes.head_dim, sizes.group, line_heads, sm_count=sm_count, tensor_copies=by_engine and not unified)


def grid_of(sizes, splits, sm_count, shape):
    """Blocks of the grid: known on the host without the lengths of contexts."""
    head_tiles, _ = head_tiles_of(sizes.group, sizes.head_dim)
    pairs = sizes.sequences * sizes.kv_heads * head_tiles
    if splits:
        return pairs * splits
    return min(shape.blocks * sm_count, pairs * -(-sizes.max_context_len // shape.tile))
