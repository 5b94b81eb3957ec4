"""Lookups: odd row lengths around whole vectors and the block's 256 threads, with and without learned positions."""

from dataclasses import dataclass

import numpy as np

from minllm.kernels.embedding.lookup import embedding, embedding_reference
from tests.kernels.guarded import assert_close, bits, poisoned, random


@dataclass(frozen=True)
class EmbeddingCase:
    """`tokens` ids into a table of `vocabulary` rows."""

    tokens: int
    vocabulary: int
    hidden: int
    positions: bool = False


CASES = (
    EmbeddingCase(1, 1, 1),
    EmbeddingCase(5, 3, 7, positions=True),
    EmbeddingCase(2, 11, 8),
    EmbeddingCase(2, 11, 8, positions=True),
    EmbeddingCase(1, 5, 257),
    EmbeddingCase(2, 5, 40, positions=True),
    EmbeddingCase(1, 3, 2056),  # 257 vectors of 8: the loop goes round twice
)
GPU_CASES = CASES + (
    EmbeddingCase(2049, 1003, 2048),
    EmbeddingCase(130, 1003, 1024, positions=True),
    EmbeddingCase(17, 101, 5003),
)


def check_embedding(case, dtype, device):
    """The reference and the kernel against rows picked one by one."""
    table = np.zeros((case.vocabulary, case.hidden), dtype)
    token_ids = np.random.default_rng(0).integers(0, case.vocabulary, case.tokens).astype(np.int32)
    token_ids[-1] = case.vocabulary - 1
    for row in set(token_ids.tolist()):
        table[row] = random(case.hidden, dtype, row)
    positions = position_embedding = None
    if case.positions:
        positions = np.arange(case.tokens, dtype=np.int32)[::-1].copy()
        position_embedding = random((case.tokens + 1, case.hidden), dtype, 1)
    oracle = np.array([table[token] for token in token_ids], np.float64)
    if case.positions:
        oracle += np.array([position_embedding[position] for position in positions], np.float64)
    assert_close(embedding_reference(token_ids, table, positions, position_embedding), oracle, dtype)

    out = poisoned(device, (case.tokens, case.hidden), dtype)
    extra = [device.array(positions), device.array(position_embedding)] if case.positions else []
    embedding(device.array(token_ids), device.array(table), out.array, *extra)
    assert_close(out.result(), oracle, dtype)
    if not case.positions:
        np.testing.assert_array_equal(bits(out.result()), bits(table[token_ids]))
