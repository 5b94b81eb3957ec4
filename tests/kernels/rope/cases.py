"""Heads to turn: odd sizes, parts of heads, both layouts, far positions; the oracle multiplies complex numbers in float64."""

from dataclasses import dataclass

import numpy as np

from minllm.kernels.rope.rotate import rope, rope_reference, rope_table
from tests.kernels.guarded import assert_close, poisoned, random


@dataclass(frozen=True)
class RopeCase:
    """`heads` heads of `head_dim` components, of which `rotary_dim` turn."""

    tokens: int
    heads: int
    head_dim: int
    rotary_dim: int
    interleaved: bool = False
    last_position: int = 40
    magnitude: float = 1.0


CASES = (
    RopeCase(1, 1, 2, 2),
    RopeCase(3, 5, 40, 40),
    RopeCase(2, 4, 64, 64, interleaved=True),
    RopeCase(1, 3, 80, 32),
    RopeCase(2, 2, 7, 6, interleaved=True),
    RopeCase(1, 2, 5, 0),
    RopeCase(1, 1, 130, 130),
    RopeCase(2, 1, 8, 4, last_position=131_071),
    RopeCase(1, 2, 6, 6, magnitude=1e4),
)
GPU_CASES = CASES + (RopeCase(513, 32, 128, 128, last_position=600), RopeCase(70000, 2, 40, 40), RopeCase(3, 257, 64, 64, interleaved=True))


def frequencies(rotary_dim):
    """RoFormer's frequencies, radians a position."""
    return 10000.0 ** (-np.arange(0, rotary_dim, 2) / max(rotary_dim, 1))


def turned(x, positions, rotary_dim, interleaved):
    """x in float64, its pairs turned as complex numbers: (a + ib) e^(i angle)."""
    out = x.astype(np.float64)
    part = out[..., :rotary_dim]
    pairs = part.reshape(*x.shape[:2], -1, 2) if interleaved else np.stack(np.split(part, 2, axis=-1), axis=-1)
    angles = positions.astype(np.float64)[:, None] * frequencies(rotary_dim)
    result = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angles)[:, None, :]
    layout = -1 if interleaved else -2
    out[..., :rotary_dim] = np.stack([result.real, result.imag], axis=layout).reshape(part.shape)
    return out


def check_rope(case, dtype, device):
    """The reference and the kernel against the oracle."""
    x = random((case.tokens, case.heads, case.head_dim), dtype, 0, case.magnitude)
    positions = np.random.default_rng(1).integers(0, case.last_position + 1, case.tokens).astype(np.int32)
    positions[-1] = case.last_position
    cos_sin = rope_table(case.last_position + 1, case.rotary_dim, frequencies(case.rotary_dim))
    oracle = turned(x, positions, case.rotary_dim, case.interleaved)
    assert_close(rope_reference(x, positions, cos_sin, case.interleaved), oracle, dtype)
    out = poisoned(device, x.shape, dtype)
    rope(device.array(x), device.array(positions), device.array(cos_sin), out.array, case.interleaved)
    assert_close(out.result(), oracle, dtype)
