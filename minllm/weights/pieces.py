"""Quantising a matrix some rows at a time, so that the float32 copies never take more than a few megabytes."""

from collections.abc import Callable

import numpy as np

PIECE_NUMBERS = 1 << 20


def in_pieces(matrix: np.ndarray, quantize_rows: Callable[[np.ndarray], tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    """The arrays of quantize_rows(matrix [outputs, inputs]), computed about PIECE_NUMBERS numbers at a time."""
    step = max(1, PIECE_NUMBERS // max(1, matrix.shape[1]))
    pieces = [quantize_rows(matrix[first : first + step]) for first in range(0, max(1, len(matrix)), step)]
    return tuple(parts[0] if len(pieces) == 1 else np.concatenate(parts) for parts in zip(*pieces, strict=True))
