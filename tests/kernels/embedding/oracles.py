"""Rows of the table picked one by one."""

import numpy as np


def embedding(shape, token_ids, embedding, positions, position_embedding, out):
    """The tokens' rows, plus those of their positions."""
    rows = np.array([embedding[token] for token in token_ids], np.float64)
    return dict(out=rows if positions is None else rows + np.array([position_embedding[one] for one in positions], np.float64))
