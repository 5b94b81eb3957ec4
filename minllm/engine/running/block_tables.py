"""Block tables of several sequences as one array."""

from collections.abc import Sequence

import numpy as np


def padded_block_tables(tables: Sequence[Sequence[int]]) -> np.ndarray:
    """Stack block tables: int32 [B, max_blocks]. The padding is block 0, which is never read: context_lens ends before it."""
    padded = np.zeros((len(tables), max(map(len, tables))), np.int32)
    for row, table in enumerate(tables):
        padded[row, : len(table)] = table
    return padded
