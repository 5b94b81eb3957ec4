"""The launches of rotary positions: T tokens of N heads of D components of b bytes."""

import numpy as np

from minllm.catalogue.launch import WIDE, Launch, MachineCode, Measured, Moved, calls, describes, each, returns
from minllm.catalogue.rows import BFLOAT16, DTYPES
from minllm.kernels.rope.ladder.rope import rope as launch_rope
from minllm.kernels.rope.reference import rope_reference, rope_table

# Parts of heads, both layouts, far positions; a head of 7 that rotates 6 components.
SMALL = (
    dict(tokens=3, heads=5, head_dim=64, interleaved=True),
    dict(tokens=2, heads=4, head_dim=32),
    dict(tokens=1, heads=1, head_dim=2),
    dict(tokens=3, heads=5, head_dim=40),
    dict(tokens=2, heads=4, head_dim=64, interleaved=True),
    dict(tokens=1, heads=3, head_dim=80, rotary_dim=32),
    dict(tokens=2, heads=2, head_dim=7, rotary_dim=6, interleaved=True),
    dict(tokens=1, heads=2, head_dim=5, rotary_dim=0),
    dict(tokens=1, heads=1, head_dim=130),
    dict(tokens=2, heads=1, head_dim=8, rotary_dim=4, last_position=131_071),
    dict(tokens=1, heads=2, head_dim=6, magnitude=1e4),
)


def table(positions, rotary_dim, theta=10000.0):
    """RoFormer's angles: float32 [positions, rotary_dim]."""
    return rope_table(positions, rotary_dim, theta ** (-np.arange(0, rotary_dim, 2) / max(rotary_dim, 1)))


@describes
def rope(tokens, heads, head_dim, dtype, rotary_dim=None, interleaved=False, last_position=40, magnitude=1.0):
    """RoPE of the first rotary_dim components, or of all; the last token is at `last_position`, the others before it."""
    rotary = head_dim if rotary_dim is None else rotary_dim
    size, angles = tokens * heads * head_dim * dtype.itemsize, tokens * rotary * 4

    def arrays(noise):
        positions = last_position - np.arange(tokens, dtype=np.int32)[::-1] % (last_position + 1)
        x = noise.array((tokens, heads, head_dim), dtype, magnitude)
        return dict(x=x, positions=positions, cos_sin=table(last_position + 1, rotary), out=noise.unwritten(x.shape, dtype))

    return Launch(
        arrays,
        calls(launch_rope, interleaved=interleaved),
        returns(("out",), rope_reference, interleaved=interleaved),
        moved=dict(
            rope_vector_kernel=Moved(dict(x=size, out=size, cos_sin=-(-heads // 2) * angles), dict(cos_sin=angles)),
            rope_kernel=Moved(dict(x=size, out=size, cos_sin=heads * angles), dict(cos_sin=angles), operations=3 * tokens * heads * rotary),
        ),
        indices=("positions",),
        rows=("x", "positions", "out"),
    )


def compiled():
    """They are memory-bound: 8 blocks of 4 warps per SM are half of its warps. A thread of the vector kernel has 8 loads in flight, so half
    as many blocks suffice."""
    for dtype in DTYPES:
        yield MachineCode(f"rope/vectors/{dtype}", rope(1, 32, 128, dtype), blocks=4, contains=WIDE)
        yield MachineCode(f"rope/rotate/{dtype}", rope(1, 32, 128, dtype, interleaved=True), blocks=8)


def small():
    """Parts of heads, both layouts, far positions."""
    yield from each(rope, SMALL, dtype=DTYPES)


def large():
    """More tokens than a grid's second axis may have blocks, and many heads."""
    shapes = (dict(tokens=513, heads=32, head_dim=128, last_position=600), dict(tokens=70000, heads=2, head_dim=40),
              dict(tokens=3, heads=257, head_dim=64, interleaved=True))  # fmt: skip
    yield from each(rope, shapes, dtype=DTYPES)


def measured():
    """A different position for every token: the table is read once, for all heads."""
    yield Measured(rope(16384, 32, 128, BFLOAT16, last_position=16383), "rope", "16384x32x128, bfloat16")
