"""A matrix quantised a piece at a time, so that float32 copies of it never take more than a few megabytes."""

from collections.abc import Callable

import numpy as np

PIECE_NUMBERS = 1 << 20


def in_pieces(matrix: np.ndarray, quantize_rows: Callable[[np.ndarray], tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    """The arrays that quantize_rows makes of some rows, for all rows of a matrix [outputs, inputs]."""
    step = max(1, PIECE_NUMBERS // max(1, matrix.shape[1]))
    pieces = [quantize_rows(matrix[first : first + step]) for first in range(0, max(1, len(matrix)), step)]
    return tuple(parts[0] if len(pieces) == 1 else np.concatenate(parts) for parts in zip(*pieces, strict=True))
