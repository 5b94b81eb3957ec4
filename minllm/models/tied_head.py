"""Unties the head if the checkpoint stores one that differs from the embedding, as transformers does."""

from dataclasses import replace

import numpy as np

from minllm.models.config import ModelConfig
from minllm.models.layout import layout_of
from minllm.models.weights import is_prefixed
from minllm.weights.stored import StoredWeights

HEAD = "lm_head.weight"
PIECE_BYTES = 1 << 20


def untied_if_stored(config: ModelConfig, checkpoint: StoredWeights) -> ModelConfig:
    """The configuration, untied if the checkpoint stores a head that differs from the embedding.

    A stored head that equals the embedding stays tied, so that memory holds the matrix once.
    """
    embedding = layout_of(config, is_prefixed(checkpoint)).model.embedding.name
    if not config.tie_word_embeddings or HEAD not in checkpoint or embedding not in checkpoint:
        return config
    if checkpoint.entry(HEAD).shape == checkpoint.entry(embedding).shape and _equal(checkpoint.tensor(HEAD), checkpoint.tensor(embedding)):
        return config
    return replace(config, tie_word_embeddings=False)


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two tensors of the same shape have the same bits; compared in pieces, so that temporaries stay small."""
    if a.dtype != b.dtype:
        return False
    a, b = a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8)
    return all(np.array_equal(a[at : at + PIECE_BYTES], b[at : at + PIECE_BYTES]) for at in range(0, len(a), PIECE_BYTES))
