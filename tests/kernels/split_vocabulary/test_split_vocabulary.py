"""Embedding, argmax and logits of a vocabulary in parts, against the whole."""

import ml_dtypes
import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.embedding.lookup import embedding_reference
from minllm.kernels.sampling.argmax import PART, argmax_reference, parts_of
from minllm.kernels.split_vocabulary.argmax import (
    argmax_of_own,
    argmax_of_own_reference,
    argmax_of_ranks,
    argmax_of_ranks_reference,
)
from minllm.kernels.split_vocabulary.join import join_parts, join_parts_reference
from minllm.kernels.split_vocabulary.lookup import split_embedding, split_embedding_reference
from minllm.parallel.split_weights import VocabularyPart

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def in_parts(logits, ranks):
    """[ranks, R, size] of logits [R, vocab], the last part padded with NaN."""
    rows, vocab = logits.shape
    size = -(-vocab // ranks)
    padded = np.concatenate([logits, np.full((rows, ranks * size - vocab), np.nan, np.float32)], axis=1)
    return np.ascontiguousarray(padded.reshape(rows, ranks, size).transpose(1, 0, 2))


@pytest.mark.parametrize(("ranks", "dtype", "has_positions"), [(2, BFLOAT16, True), (3, np.float32, False)])
def test_lookups_of_all_ranks_add_up_to_the_embedding(ranks, dtype, has_positions):
    random = np.random.default_rng(0)
    vocab, hidden, ids = 37, 45, np.array([0, 36, 12, 13, 18, 19, 24, 25], np.int32)
    table, shift = (random.normal(size=(rows, hidden)).astype(dtype) for rows in (vocab, 9))
    positions = np.arange(len(ids), dtype=np.int32)
    extra = dict(positions=positions, position_embedding=shift) if has_positions else {}
    size, total = -(-vocab // ranks), np.zeros((len(ids), hidden), np.float32)
    for rank in range(ranks):
        rows = table[rank * size : (rank + 1) * size]
        wanted, out = split_embedding_reference(ids, rows, rank * size, **extra), np.full((len(ids), hidden), np.nan, dtype)
        split_embedding(ids, rows, rank * size, out, **extra)
        np.testing.assert_array_equal(out, wanted)
        total += wanted.astype(np.float32)
    np.testing.assert_array_equal(total.astype(dtype), embedding_reference(ids, table, **extra))


@pytest.mark.parametrize(("ranks", "vocab"), [(2, 7), (4, 1003), (3, 2 * PART + 5)])
def test_the_best_of_all_ranks_is_the_best_of_the_vocabulary(ranks, vocab):
    logits = np.random.default_rng(vocab).integers(-9, 9, (5, vocab)).astype(np.float32)  # with equals in several parts
    logits[1, -1] = 100
    logits[2], logits[4, vocab // 2] = -np.inf, np.nan
    slots = np.array([0, 3, 1, -1, 2], np.int32)
    parts = in_parts(logits, ranks)
    size, count = parts.shape[2], parts_of(parts.shape[2])
    values, tokens = np.full((ranks, 5, count), np.nan, np.float32), np.full((ranks, 5, count), -7, np.int32)
    columns = [VocabularyPart(vocab, rank, ranks).columns for rank in range(ranks)]
    for rank in range(ranks):
        argmax_of_own(parts[rank], columns[rank], values[rank], tokens[rank])
    out = np.full(5, -7, np.int32)
    argmax_of_ranks(values, tokens, slots, size, out)
    wanted = np.where(slots >= 0, argmax_reference(logits), 0)
    np.testing.assert_array_equal(out, wanted)
    found = [np.stack(arrays) for arrays in zip(*map(argmax_of_own_reference, parts, columns), strict=True)]
    np.testing.assert_array_equal(argmax_of_ranks_reference(*found, slots, size), wanted)


@pytest.mark.parametrize(("ranks", "rows", "vocab"), [(2, 1, 5), (3, 2, 1003), (2, 2, 4101)])
def test_joined_parts_are_the_logits_without_padding(ranks, rows, vocab):
    logits = np.random.default_rng(rows).normal(size=(rows, vocab)).astype(np.float32)
    parts, out = in_parts(logits, ranks), np.full((rows, vocab), np.nan, np.float32)
    join_parts(parts, out)
    np.testing.assert_array_equal(out, logits)
    np.testing.assert_array_equal(join_parts_reference(parts, vocab), logits)


def test_wrong_arguments_are_refused():
    floats, ints = np.zeros((2, 3, 4), np.float32), np.zeros((2, 3, 4), np.int32)
    with pytest.raises(KernelArgumentError, match="out has 9 columns, and 2 parts of 4 make 8"):
        join_parts(floats, np.zeros((3, 9), np.float32))
    with pytest.raises(KernelArgumentError, match="2 ranks of 0 tokens"):
        argmax_of_ranks(floats, ints, ints[0, :, 0].copy(), 0, np.zeros(3, np.int32))
    with pytest.raises(KernelArgumentError, match="tokens is"):
        argmax_of_ranks(floats, floats, ints[0, :, 0].copy(), 9, np.zeros(3, np.int32))
    with pytest.raises(KernelArgumentError, match="come together"):
        split_embedding(ints[0, :, 0].copy(), floats[0], 0, np.zeros((3, 4), np.float32), positions=ints[0, :, 0].copy())
