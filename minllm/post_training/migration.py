"""Scales that move into a matrix from its inputs: (x diag(1 / s)) (diag(s) W^T) = x W^T for every s > 0.

    SmoothQuant  s = max |x| ** a / max |W| ** (1 - a) for each input: moves part of the activations' outliers into the weights, for int8
    AWQ          s = mean |x| ** r, the r of 0, 0.1, ... 1 with the least output error: inputs that matter get finer steps

1 / s goes into the norm before the matrix (qkv, gate and up) or into the rows of up (down), so inference needs no extra operations.

The migration strength a is 0.5, as in the paper. Before GPTQ it is 0.8, as in llm-compressor's recipe for W8A8: GPTQ compensates for errors
of the weights, and nothing for those of the activations.

Source: Xiao et al. 2023, "SmoothQuant", equation 4; Lin et al. 2024, "AWQ", equation 4.
"""

from collections.abc import Callable

import numpy as np

from minllm.errors import CheckpointError
from minllm.post_training.calibration import Inputs

STRENGTH, STRENGTH_BEFORE_GPTQ = 0.5, 0.8
RATIOS = np.linspace(0, 1, 11)
SMALLEST = 1e-5


def smoothquant_scales(inputs: Inputs, matrix: np.ndarray, strength: float) -> np.ndarray:
    """s [K] for a matrix [N, K]; its geometric mean is 1."""
    activations, weights = np.maximum(inputs.largest, SMALLEST), np.maximum(np.abs(matrix).max(axis=0), SMALLEST)
    logarithm = strength * np.log(activations) - (1 - strength) * np.log(weights)
    return np.exp(logarithm - logarithm.mean()).astype(np.float32)


def awq_scales(inputs: Inputs, matrix: np.ndarray, rounded: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """s [K] for a matrix [N, K]; rounded(matrix) -> the numbers that its codes represent.

    Raises CheckpointError if no ratio has a finite error.
    """
    x, magnitude = np.concatenate(inputs.sampled), np.maximum(inputs.mean, SMALLEST)
    exact, best, least = x @ matrix.T, None, np.inf
    for ratio in RATIOS:
        scales = magnitude ** np.float32(ratio)
        scales /= np.sqrt(scales.max() * scales.min())
        error = np.square(x @ (rounded(matrix * scales) / scales).T - exact).sum()
        if error < least:
            best, least = scales, error
    if best is None:
        found = {"weights": matrix, "inputs": x, "outputs": exact}
        wrong = [name for name, numbers in found.items() if not np.isfinite(numbers).all()] or ["rounded weights"]
        raise CheckpointError(
            f"AWQ finds no scales for a matrix {list(matrix.shape)}: NaN or infinity is among its {' and '.join(wrong)}. Quantise a "
            "checkpoint that computes finite numbers, or take another method."
        )
    return best
