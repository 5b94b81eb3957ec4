"""Rounding a matrix to the codes of a format: to the nearest, or with GPTQ's compensation.

The squared error of the layer's output over the calibration text is the sum over rows of (w - q) H (w - q)^T, with H = sum over tokens of
x^T x. GPTQ rounds one input after another. With U the upper Cholesky factor of H^-1, U^T U = H^-1,

    q_j = round(w_j)        e = (w_j - q_j) / U_jj        w_k -= e U_jk  for all k > j

so the inputs that are not yet rounded compensate for the error as well as they can. A group's scale is chosen when its first input is
reached, from the values at that time. 1 % of the mean diagonal is added to H.

Source: Frantar et al. 2023, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers", section 3.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

DAMPING, COLUMNS = 0.01, 128  # columns per block; later columns are updated once per block


class Rounded(NamedTuple):
    """Codes of a matrix [N, K], and the scales and zero points of its groups."""

    codes: np.ndarray  # [N, K]
    scales: np.ndarray  # [N, groups]
    zeros: np.ndarray | None  # [N, groups]
    numbers: np.ndarray  # float32 [N, K], the numbers that the codes represent


def round_matrix(matrix: np.ndarray, group: int, make_grid: Callable[[np.ndarray], Any], hessian: np.ndarray | None = None) -> Rounded:
    """Round a matrix [N, K] in groups of inputs (0: whole rows), each on the grid make_grid(its columns).

    hessian: the sum of x^T x over tokens, [K, K], for GPTQ; None rounds to the nearest.
    """
    matrix, (rows, inputs) = matrix.astype(np.float32, copy=True), matrix.shape
    factor = None if hessian is None else cholesky_of_inverse(hessian)
    grids = [] if group else [make_grid(matrix)]
    codes, numbers = None, np.empty_like(matrix)
    for first in range(0, inputs, group or COLUMNS):
        end = min(first + (group or COLUMNS), inputs)
        if group:
            grids.append(make_grid(matrix[:, first:end]))
        errors = np.zeros((rows, end - first), np.float32)
        at_once = 1 if factor is not None else end - first
        for column in range(first, end, at_once):
            encoded = grids[-1].encode(matrix[:, column : column + at_once].T)
            if codes is None:
                codes = np.empty(matrix.shape, encoded.dtype)
            codes[:, column : column + at_once] = encoded.T
            numbers[:, column : column + at_once] = grids[-1].decode(encoded).T
            if factor is not None:
                error = (matrix[:, column] - numbers[:, column]) / factor[column, column]
                matrix[:, column + 1 : end] -= np.outer(error, factor[column, column + 1 : end])
                errors[:, column - first] = error
        if factor is not None:
            matrix[:, end:] -= errors @ factor[first:end, end:]
    zeros = None if grids[0].zeros is None else np.stack([grid.zeros for grid in grids], axis=1)
    return Rounded(codes, np.stack([grid.scales for grid in grids], axis=1), zeros, numbers)


def cholesky_of_inverse(hessian: np.ndarray) -> np.ndarray:
    """The upper Cholesky factor of the inverse of the damped hessian, float32 [K, K]."""
    damped = hessian.astype(np.float64)
    damped[np.diag_indices_from(damped)] += DAMPING * max(np.diag(damped).mean(), 1e-12)
    return np.linalg.cholesky(np.linalg.inv(damped)).T.astype(np.float32)
