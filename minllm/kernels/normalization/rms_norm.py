"""RMSNorm with the residual addition fused in (Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", equation 4)."""

import numpy as np


def rms_norm_reference(x, weight, epsilon, residual=None):
    """Add `residual` to `x` and scale each row by the inverse of its root mean square.

    x, residual: [T, hidden]; weight: [hidden]. Returns (normalized, new_residual), both [T, hidden] in the dtype of `x`:
    new_residual = x + residual rounded to that dtype (x itself without a residual), and
    normalized = new_residual / sqrt(mean(new_residual**2) + epsilon) * weight, computed in float32 (float64 if `x` is) and rounded once.
    """
    wide = np.result_type(x.dtype, np.float32)
    new_residual = x if residual is None else (x.astype(wide, copy=False) + residual.astype(wide, copy=False)).astype(x.dtype, copy=False)
    values = new_residual.astype(wide, copy=False)
    mean_square = np.square(values).mean(axis=-1, keepdims=True)
    normalized = values / np.sqrt(mean_square + wide.type(epsilon)) * weight.astype(wide, copy=False)
    return normalized.astype(x.dtype, copy=False), new_residual
