"""How large the blocks of a decode step over a quantised cache are (split_quantized.py): split_tensor_core/shape.py for stages of codes."""

import functools
from dataclasses import dataclass, replace

from minllm.kernels.attention.split_quantized.code_ring import ring_bytes_of
from minllm.kernels.attention.split_quantized.code_tensor_ring import can_fetch
from minllm.kernels.attention.split_tensor_core.shape import (
    RESERVED_BYTES,
    SplitShape,
    block_shared_bytes,
    capability_here,
    head_tiles_of,
    state_bytes_of,
)

STATIC_BYTES = 48 * 1024  # that a block can have of shared memory beside its rings


@dataclass(frozen=True)
class CodeShape(SplitShape):
    """A SplitShape. turns: of how many heads a block keeps its warps' states, 1 or 2: of two, one is written while the other is read."""

    turns: int = 2


def code_ring_bytes_of(kv_format, shape):
    """Dynamic shared memory of a block: the rings of all warps."""
    return shape.warps * ring_bytes_of(kv_format, shape.keys, shape.stages, shape.tensor_copies)


def fits(kv_format, group, shape, shared_bytes):
    """Whether shape.blocks blocks find room on a multiprocessor whose blocks may have `shared_bytes`."""
    _, heads = head_tiles_of(group, kv_format.head_dim)
    state_bytes = shape.turns * state_bytes_of(kv_format.head_dim, heads, shape.warps)
    block_bytes = code_ring_bytes_of(kv_format, shape) + state_bytes
    return state_bytes <= STATIC_BYTES and shape.blocks * (block_bytes + RESERVED_BYTES) <= shared_bytes + RESERVED_BYTES


@functools.cache
def shape_for(kv_format, group, line_heads, shared_bytes=None, sm_count=132, tensor_copies=False):
    """The CodeShape for `line_heads` heads in all sequences and blocks of at most `shared_bytes` (by default what this machine allows).

    Eight warps a multiprocessor, as many as the registers allow: in one block where few heads are cut among all multiprocessors, else in
    several, so that one block finishes a head while the others go on. The fewer bytes a key has, the sooner a head is finished. The copy
    engine is asked for 32 keys at a time: its requests are few, and rings without padding have room for them.
    """
    shared_bytes = shared_bytes or block_shared_bytes()
    _, heads = head_tiles_of(group, kv_format.head_dim)
    narrow = kv_format.code_bytes in (32, 64)
    keys = 32 if (narrow or tensor_copies) and kv_format.groups * heads <= 32 else 16  # as many scores as the registers hold
    keys = kv_format.token_group if kv_format.keys_by_channel else keys  # whose tiles are groups
    few = [CodeShape(warps, keys, stages, 1, turns=1) for warps, stages in ((8, 4), (8, 3), (4, 4), (4, 3), (4, 2), (2, 2), (1, 2))]
    if keys == 16:
        many = [CodeShape(4, 16, 4, 2), CodeShape(4, 16, 3, 2)]
    elif narrow:
        many = [CodeShape(2, 32, 3, 4), CodeShape(4, 32, 3, 2)]
    else:
        many = [CodeShape(4, 32, 3, 2, turns=1)]
    candidates = [replace(shape, tensor_copies=tensor_copies) for shape in ([*many, *few] if line_heads >= 2 * sm_count else few)]
    return next(shape for shape in candidates if shape == candidates[-1] or fits(kv_format, group, shape, shared_bytes))


def shape_of(sizes, kv_format, sm_count=132):
    """The CodeShape of a call. Codes are fetched by the copy engine where GPU and cache allow it."""
    head_tiles, _ = head_tiles_of(sizes.group, sizes.head_dim)
    by_engine = capability_here() >= (9, 0) and can_fetch(kv_format, sizes.block_size)
    line_heads = sizes.sequences * sizes.kv_heads * head_tiles
    return shape_for(kv_format, sizes.group, line_heads, sm_count=sm_count, tensor_copies=by_engine)
