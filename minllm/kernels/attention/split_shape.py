"""How large a decode step's blocks and grid are (split_tensor_core.py)."""

import functools
from dataclasses import dataclass

from minllm.kernels.attention.split_merge_parts import pitch_of
from minllm.kernels.attention.split_ring import stage_bytes_of
from minllm.kernels.attention.split_tensor_ring import BARRIER_BYTES, tensor_stage_bytes_of
from minllm.occupancy import MULTIPROCESSORS
from minllm.runtime.device import current_device, is_available

DEFAULT_CAPABILITY = (9, 0)
RESERVED_BYTES = 1024  # that the system keeps of shared memory for every block


@dataclass(frozen=True)
class SplitShape:
    """warps: of a block; keys: of a warp's tile, a multiple of 16; stages: of a warp's ring, 2 to 4; blocks: on a multiprocessor;
    tensor_copies: the rings are filled by the copy engine (split_tensor_ring.py), not by cp.async."""

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
def block_shared_bytes():
    """The most shared memory that a block can have on this machine's GPU; on a Hopper one where there is none."""
    capability = current_device().compute_capability if is_available() else DEFAULT_CAPABILITY
    return MULTIPROCESSORS.get(capability, MULTIPROCESSORS[8, 9]).block_shared_bytes


@functools.cache
def shape_for(head_dim, group, line_heads, shared_bytes=None, sm_count=132):
    """The SplitShape for `line_heads` heads in all sequences and blocks of at most `shared_bytes` (by default what this machine allows).

    Few heads are cut among all multiprocessors: one block on each, with the deepest rings, makes the fewest parts to merge. Of many heads
    a block takes one after another: two blocks, so that one computes and copies while the other merges its warps.
    """
    shared_bytes = shared_bytes or block_shared_bytes()
    keys = 16 if head_dim > 64 else 32
    _, heads = head_tiles_of(group, head_dim)
    single = [SplitShape(warps, keys, stages, 1) for warps, stages in ((4, 4), (4, 3), (4, 2), (2, 3), (2, 2), (1, 2))]
    double = [SplitShape(4, keys, stages, 2) for stages in (4, 3)] if line_heads >= 2 * sm_count else []
    for shape in double + single:
        block_bytes = ring_bytes_of(head_dim, shape) + state_bytes_of(head_dim, heads, shape.warps)
        if shape.blocks * (block_bytes + RESERVED_BYTES) <= shared_bytes + RESERVED_BYTES:
            break
    return shape


def shape_of(sizes, sm_count=132):
    """The SplitShape of a call."""
    head_tiles, _ = head_tiles_of(sizes.group, sizes.head_dim)
    return shape_for(sizes.head_dim, sizes.group, sizes.sequences * sizes.kv_heads * head_tiles, sm_count=sm_count)


def grid_of(sizes, splits, sm_count, shape):
    """Blocks of the grid: known on the host without the lengths of contexts."""
    head_tiles, _ = head_tiles_of(sizes.group, sizes.head_dim)
    pairs = sizes.sequences * sizes.kv_heads * head_tiles
    if splits:
        return pairs * splits
    return min(shape.blocks * sm_count, pairs * -(-sizes.max_context_len // shape.tile))
