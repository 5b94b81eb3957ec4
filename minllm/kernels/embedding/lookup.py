"""Embedding lookup: hidden[t] = embedding[token_ids[t]] (+ position_embedding[positions[t]], as GPT-2 learns it)."""

import numpy as np


def embedding_reference(token_ids, embedding, positions=None, position_embedding=None):
    """The rows of `embedding` [vocabulary, hidden] that `token_ids` [T] name, in the table's dtype: [T, hidden].

    With `position_embedding` [max_positions, hidden], the row of each token's position is added in float32 and the sum is rounded once.
    """
    rows = embedding[token_ids]  # [T, hidden]
    if position_embedding is None:
        return rows
    wide = np.result_type(embedding.dtype, np.float32)
    return (rows.astype(wide, copy=False) + position_embedding[positions].astype(wide, copy=False)).astype(embedding.dtype, copy=False)
