"""Rows for the norms: odd lengths around the block's 256 threads and around whole vectors, with and without residual, huge values."""

from dataclasses import dataclass

import numpy as np

from minllm.kernels.normalization.layer_norm import layer_norm, layer_norm_reference
from minllm.kernels.normalization.rms_norm import rms_norm, rms_norm_reference
from tests.kernels.guarded import Guarded, assert_close, bits, poisoned, random


@dataclass(frozen=True)
class NormCase:
    """`tokens` rows of `hidden` elements around `offset`, of spread `magnitude`."""

    tokens: int
    hidden: int
    residual: bool = True
    bias: bool = True
    magnitude: float = 1.0
    offset: float = 0.0
    epsilon: float = 1e-5


CASES = (
    NormCase(2, 1, residual=False),
    NormCase(1, 7),
    NormCase(3, 8, residual=False, bias=False),
    NormCase(1, 255, residual=False),
    NormCase(1, 256),
    NormCase(1, 257, bias=False),
    NormCase(2, 264),
    NormCase(2, 40, magnitude=1e4),  # its squares overflow float16
    NormCase(1, 61, magnitude=1e-4, epsilon=1e-6),  # epsilon is as large as the mean square
    NormCase(1, 72, offset=300.0, magnitude=0.5, residual=False),  # a mean far larger than the spread
)
GPU_CASES = CASES + (
    NormCase(130, 4096),
    NormCase(3, 8192, residual=False),
    NormCase(17, 16384),
    NormCase(2, 16392),
    NormCase(5, 20011),
    NormCase(2049, 344),
)


def arrays(case, dtype):
    """x, residual, weight and bias of a case, on the host."""
    x = (random((case.tokens, case.hidden), np.float64, 0, case.magnitude) + case.offset).astype(dtype)
    residual = random((case.tokens, case.hidden), dtype, 1, case.magnitude)
    return x, residual, random(case.hidden, dtype, 2), random(case.hidden, dtype, 3)


def rms_norm_oracle(values, weight, epsilon):
    """RMSNorm in float64 of what the residual stream holds."""
    values = values.astype(np.float64)
    return values / np.sqrt((values**2).sum(1, keepdims=True) / values.shape[1] + epsilon) * weight.astype(np.float64)


def layer_norm_oracle(values, weight, bias, epsilon):
    """LayerNorm in float64 of what the residual stream holds."""
    values = values.astype(np.float64)
    centred = values - values.sum(1, keepdims=True) / values.shape[1]
    scaled = centred / np.sqrt((centred**2).sum(1, keepdims=True) / values.shape[1] + epsilon) * weight.astype(np.float64)
    return scaled + (0 if bias is None else bias.astype(np.float64))


def check_rms_norm(case, dtype, device):
    """The reference and the kernel against the oracle."""
    x, residual, weight, _ = arrays(case, dtype)
    residual = residual if case.residual else None
    stream = residual_stream(x, residual)
    oracle = rms_norm_oracle(stream, weight, case.epsilon)
    normalized, new_residual = rms_norm_reference(x, weight, case.epsilon, residual)
    assert_close(normalized, oracle, dtype)
    np.testing.assert_array_equal(bits(new_residual), bits(stream))

    out, guarded = poisoned(device, x.shape, dtype), residual is not None and Guarded(device, residual)
    rms_norm(device.array(x), device.array(weight), out.array, case.epsilon, guarded.array if guarded else None)
    assert_close(out.result(), oracle, dtype)
    if guarded:
        np.testing.assert_array_equal(bits(guarded.result()), bits(stream))


def check_layer_norm(case, dtype, device):
    """The reference and the kernel against the oracle."""
    x, residual, weight, bias = arrays(case, dtype)
    residual, bias = residual if case.residual else None, bias if case.bias else None
    stream = residual_stream(x, residual)
    oracle = layer_norm_oracle(stream, weight, bias, case.epsilon)
    # The mean itself is a float32: where it is large beside the spread, its rounding shows.
    slack = 3e-6 + 1e-6 * case.offset / case.magnitude
    normalized, new_residual = layer_norm_reference(x, weight, bias, case.epsilon, residual)
    assert_close(normalized, oracle, dtype, slack)
    np.testing.assert_array_equal(bits(new_residual), bits(stream))

    out, guarded = poisoned(device, x.shape, dtype), residual is not None and Guarded(device, residual)
    on_device = [None if array is None else device.array(array) for array in (x, weight, bias)]
    layer_norm(*on_device, out.array, case.epsilon, guarded.array if guarded else None)
    assert_close(out.result(), oracle, dtype, slack)
    if guarded:
        np.testing.assert_array_equal(bits(guarded.result()), bits(stream))


def residual_stream(x, residual):
    """What the residual must hold afterwards, to the bit: the sum rounded once."""
    return x if residual is None else (x.astype(np.float64) + residual.astype(np.float64)).astype(np.float32).astype(x.dtype)
