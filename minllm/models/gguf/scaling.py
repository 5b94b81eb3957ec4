"""The numbers of blocks from codes and scales. Infinity times 0 is NaN without a warning: the caller checks for non-finite numbers."""

import numpy as np


def scaled(codes: np.ndarray, scales: np.ndarray, minimums: np.ndarray | None = None) -> np.ndarray:
    """codes * scale + minimum in one row, float32.

    codes: [blocks, ...], overwritten if they are float32. scales, minimums: one per block, [blocks], or per group, [blocks, groups].
    """
    numbers = codes.astype(np.float32, copy=False).reshape(*scales.shape, -1)
    with np.errstate(invalid="ignore"):
        numbers *= scales.astype(np.float32)[..., None]
        if minimums is not None:
            numbers += minimums.astype(np.float32)[..., None]
    return numbers.reshape(-1)


def scales_of_groups(d: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """The scale of each block [blocks] times the factors of its groups [blocks, groups], float32."""
    with np.errstate(invalid="ignore"):
        return d.astype(np.float32)[:, None] * factors.astype(np.float32)
