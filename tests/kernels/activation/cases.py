"""Rows for the activations: odd lengths around whole vectors and the block's 64 threads, ordinary, extreme and huge values."""

from dataclasses import dataclass

import numpy as np
import torch

from minllm.kernels.activation.gelu import gelu, gelu_reference
from minllm.kernels.activation.silu import silu_and_multiply, silu_and_multiply_reference
from tests.kernels.guarded import assert_close, poisoned, random

# Where the exponential over- and underflows, where erf and tanh are 1 to the last bit, zeros of both signs, and the largest float16.
MAGNITUDES = (0.0, 1e-7, 0.5, 5.9, 11.0, 87.0, 89.0, 104.0, 1e4, 65504.0)
EXTREMES = [sign * magnitude for magnitude in MAGNITUDES for sign in (1, -1)]


@dataclass(frozen=True)
class ActivationCase:
    """`tokens` rows of `features` values; extreme: EXTREMES over and over."""

    tokens: int
    features: int
    extreme: bool = False


CASES = (
    ActivationCase(1, 1),
    ActivationCase(3, 7),
    ActivationCase(2, 63),
    ActivationCase(1, 64),
    ActivationCase(1, 65),
    ActivationCase(2, 16),
    ActivationCase(1, 520),  # 65 vectors of 8: one more than a block
    ActivationCase(1, 20, extreme=True),
    ActivationCase(1, 40, extreme=True),
    ActivationCase(1, 21, extreme=True),
)
GPU_CASES = CASES + (ActivationCase(130, 8192), ActivationCase(1, 28672), ActivationCase(2049, 344), ActivationCase(7, 10007))


def values(case, dtype, seed):
    """The case's rows, on the host."""
    if case.extreme:
        return np.resize(np.array(EXTREMES), (case.tokens, case.features)).astype(dtype)
    return random((case.tokens, case.features), dtype, seed, magnitude=3)


def check_silu_and_multiply(case, dtype, device):
    """The reference and the kernel against torch in float64."""
    gate, up = values(case, dtype, 0), random((case.tokens, case.features), dtype, 1, 0.3)
    up = np.clip(up.astype(np.float32), -0.9, 0.9).astype(dtype)  # so that the largest float16 times it stays finite
    gate_up = np.concatenate([gate, up], axis=1)
    oracle = (torch.nn.functional.silu(torch.tensor(gate.astype(np.float64))) * torch.tensor(up.astype(np.float64))).numpy()
    slack = elementwise_slack(oracle)
    assert_close(silu_and_multiply_reference(gate_up), oracle, dtype, slack)
    out = poisoned(device, gate.shape, dtype)
    silu_and_multiply(device.array(gate_up), out.array)
    assert_close(out.result(), oracle, dtype, slack)


def check_gelu(case, approximate, dtype, device):
    """The reference and the kernel against torch in float64."""
    x = values(case, dtype, 2)
    oracle = torch.nn.functional.gelu(torch.tensor(x.astype(np.float64)), approximate=approximate).numpy()
    slack = elementwise_slack(oracle)
    assert_close(gelu_reference(x, approximate), oracle, dtype, slack)
    out = poisoned(device, x.shape, dtype)
    gelu(device.array(x), out.array, approximate)
    assert_close(out.result(), oracle, dtype, slack)


def elementwise_slack(oracle):
    """Each element stands for itself here: 3e-6 of it, or of 1 where it is smaller, in terms of the largest."""
    return 3e-6 * np.maximum(np.abs(oracle), 1) / max(np.abs(oracle).max(), 1e-300)
