"""LayerNorm with the residual addition fused in (Ba, Kiros and Hinton 2016, "Layer Normalization", equation 4)."""

import numpy as np


def layer_norm_reference(x, weight, bias, epsilon, residual=None):
    """Add `residual` to `x` and bring each row to mean 0 and variance 1, then scale and shift it.

    x, residual: [T, hidden]; weight, bias: [hidden] (bias may be None). Returns (normalized, new_residual), both [T, hidden] in the dtype
    of `x`: new_residual = x + residual rounded to that dtype (x itself without a residual), and
    normalized = (new_residual - mean) / sqrt(variance + epsilon) * weight + bias, computed in float32 (float64 if `x` is) and rounded once.
    """
    wide = np.result_type(x.dtype, np.float32)
    new_residual = x if residual is None else (x.astype(wide, copy=False) + residual.astype(wide, copy=False)).astype(x.dtype, copy=False)
    values = new_residual.astype(wide, copy=False)
    centred = values - values.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)  # of the whole row: divided by hidden, not hidden - 1
    normalized = centred / np.sqrt(variance + wide.type(epsilon)) * weight.astype(wide, copy=False)
    if bias is not None:
        normalized += bias.astype(wide, copy=False)
    return normalized.astype(x.dtype, copy=False), new_residual
