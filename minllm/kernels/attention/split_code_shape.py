"""How large the blocks of a decode step over a quantised cache are (split_quantized.py): split_shape.py for stages of codes."""

import functools

from minllm.kernels.attention.split_code_ring import stage_bytes_of
from minllm.kernels.attention.split_shape import RESERVED_BYTES, SplitShape, block_shared_bytes, head_tiles_of, state_bytes_of


def code_ring_bytes_of(kv_format, shape):
    """Dynamic shared memory of a block: the rings of all warps."""
    return shape.warps * shape.stages * stage_bytes_of(kv_format, shape.keys)


@functools.cache
def shape_for(kv_format, group, line_heads, shared_bytes=None, sm_count=132):
    """The SplitShape for `line_heads` heads in all sequences and blocks of at most `shared_bytes` (by default what this machine allows)."""
    shared_bytes = shared_bytes or block_shared_bytes()
    _, heads = head_tiles_of(group, kv_format.head_dim)
    keys = 32 if kv_format.code_bytes <= 96 and kv_format.groups * heads <= 32 else 16  # as many scores as the registers hold
    single = [SplitShape(warps, keys, stages, 1) for warps, stages in ((8, 4), (4, 4), (4, 3), (4, 2), (2, 2), (1, 2))]
    double = [SplitShape(4, keys, stages, 2) for stages in (4, 3)] if line_heads >= 2 * sm_count else []
    for shape in double + single:
        block_bytes = code_ring_bytes_of(kv_format, shape) + 2 * state_bytes_of(kv_format.head_dim, heads, shape.warps)
        if shape.blocks * (block_bytes + RESERVED_BYTES) <= shared_bytes + RESERVED_BYTES:
            break
    return shape


def shape_of(sizes, kv_format, sm_count=132):
    """The SplitShape of a call."""
    head_tiles, _ = head_tiles_of(sizes.group, sizes.head_dim)
    return shape_for(kv_format, sizes.group, sizes.sequences * sizes.kv_heads * head_tiles, sm_count=sm_count)
