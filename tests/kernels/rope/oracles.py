"""Rotary positions as products of complex numbers in float64."""

import numpy as np


def frequencies(rotary_dim):
    """RoFormer's frequencies, radians a position."""
    return 10000.0 ** (-np.arange(0, rotary_dim, 2) / max(rotary_dim, 1))


def rope(shape, x, positions, cos_sin, out):
    """x with its pairs rotated."""
    return dict(out=rotated(x, positions, cos_sin.shape[1], shape["interleaved"]))


def rotated(x, positions, rotary_dim, interleaved):
    """The pairs of x [T, heads, head_dim] as complex numbers: (a + ib) e^(i angle)."""
    found = x.astype(np.float64)
    part = found[..., :rotary_dim]
    pairs = part.reshape(*x.shape[:2], -1, 2) if interleaved else np.stack(np.split(part, 2, axis=-1), axis=-1)
    angles = positions.astype(np.float64)[:, None] * frequencies(rotary_dim)
    result = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angles)[:, None, :]
    layout = -1 if interleaved else -2
    found[..., :rotary_dim] = np.stack([result.real, result.imag], axis=layout).reshape(part.shape)
    return found
