"""The norms in float64 of what the residual stream holds."""

import numpy as np


def residual_stream(x, residual):
    """What the residual must hold afterwards, to the bit: the sum rounded once."""
    return x if residual is None else (x.astype(np.float64) + residual.astype(np.float64)).astype(np.float32).astype(x.dtype)


def rms_norm(shape, x, residual, weight, out):
    """RMSNorm."""
    stream = residual_stream(x, residual)
    return dict(out=rms_norm_of(stream, weight, shape["epsilon"]), residual=stream)


def layer_norm(shape, x, residual, weight, bias, out):
    """LayerNorm."""
    stream = residual_stream(x, residual)
    normalized = layer_norm_of(stream, weight, shape["epsilon"])
    return dict(out=normalized if bias is None else normalized + bias.astype(np.float64), residual=stream)


def rms_norm_of(values, weight, epsilon):
    """RMSNorm of the rows alone."""
    values = values.astype(np.float64)
    return values / np.sqrt((values**2).sum(1, keepdims=True) / values.shape[1] + epsilon) * weight.astype(np.float64)


def layer_norm_of(values, weight, epsilon):
    """LayerNorm of the rows alone, without bias."""
    values = values.astype(np.float64)
    centred = values - values.sum(1, keepdims=True) / values.shape[1]
    return centred / np.sqrt((centred**2).sum(1, keepdims=True) / values.shape[1] + epsilon) * weight.astype(np.float64)
