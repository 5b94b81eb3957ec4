"""Greedy: the largest logit, the lowest id among equals."""

import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.sampling.argmax import PART, argmax, argmax_reference, parts_of
from tests.kernels.sampling.cases import LOGITS, logits_of, slots_of

VOCABULARIES = [1, 3, 4, 111, 1003, PART - 1, PART, PART + 4, 2 * PART + 1]


def run_argmax(logits):
    rows, vocab = logits.shape
    out = np.full(rows, -77, np.int32)
    parts = np.full((rows, parts_of(vocab)), np.nan, np.float32), np.full((rows, parts_of(vocab)), -77, np.int32)
    argmax(logits, slots_of(logits), out, *parts)
    return out


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_argmax_at_odd_sizes(vocab):
    logits = logits_of("normal", 2, vocab)
    logits[1, -1] = 100.0  # the last token
    np.testing.assert_array_equal(run_argmax(logits), np.argmax(logits, axis=1))


@pytest.mark.parametrize("kind", LOGITS)
def test_argmax_of_awkward_logits(kind):
    logits = logits_of(kind, 2, 111)
    np.testing.assert_array_equal(run_argmax(logits), np.argmax(logits, axis=1))


def test_nan_is_never_chosen():
    logits = np.full((3, 9), np.nan, np.float32)
    logits[0, 5] = -1e30
    logits[1, [2, 7]] = 3.0
    np.testing.assert_array_equal(run_argmax(logits), [5, 2, 0])
    np.testing.assert_array_equal(argmax_reference(logits), [5, 2, 0])


def test_wrong_arguments_are_refused():
    with pytest.raises(KernelArgumentError, match="float32"):
        argmax(np.zeros((2, 8)), np.zeros(2, np.int32), np.zeros(2, np.int32), np.zeros((2, 1), np.float32), np.zeros((2, 1), np.int32))
    with pytest.raises(KernelArgumentError, match="vocab at least 1"):
        run_argmax(np.zeros((2, 0), np.float32))
    with pytest.raises(KernelArgumentError, match=r"int32 \[2\]"):
        parts = np.zeros((2, 1), np.float32), np.zeros((2, 1), np.int32)
        argmax(np.zeros((2, 8), np.float32), np.zeros(2, np.int32), np.zeros(3, np.int32), *parts)
