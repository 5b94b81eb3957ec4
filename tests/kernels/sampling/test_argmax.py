"""Greedy: the largest logit, the lowest id among equals."""

import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.sampling.argmax import NOT_FINITE, NOTHING_ALLOWED, PART, argmax, argmax_reference, parts_of
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
    expected = NOTHING_ALLOWED if kind == "fully_masked" else np.argmax(logits, axis=1)
    np.testing.assert_array_equal(run_argmax(logits), expected)


@pytest.mark.detected("vocab")
@pytest.mark.parametrize("vocab", [3, PART + 4])
def test_rows_without_a_choice_give_no_token(vocab, device):
    logits = np.random.default_rng(vocab).normal(size=(6, vocab)).astype(np.float32)
    logits[1], logits[2, -1], logits[3, vocab // 2], logits[4], logits[5, :-1] = np.nan, np.nan, np.inf, -np.inf, -np.inf
    best = logits[0].argmax()
    expected = [best, NOT_FINITE, NOT_FINITE, NOT_FINITE, NOTHING_ALLOWED, vocab - 1]
    out = device.array(np.full(6, -77, np.int32))
    parts = [device.array(np.full((6, parts_of(vocab)), -77, dtype)) for dtype in (np.float32, np.int32)]
    argmax(device.array(logits), device.array(slots_of(logits)), out, *parts)
    np.testing.assert_array_equal(device.host(out), expected)
    np.testing.assert_array_equal(argmax_reference(logits), expected)


def test_wrong_arguments_are_refused():
    with pytest.raises(KernelArgumentError, match="float32"):
        argmax(np.zeros((2, 8)), np.zeros(2, np.int32), np.zeros(2, np.int32), np.zeros((2, 1), np.float32), np.zeros((2, 1), np.int32))
    with pytest.raises(KernelArgumentError, match="vocab at least 1"):
        run_argmax(np.zeros((2, 0), np.float32))
    with pytest.raises(KernelArgumentError, match=r"int32 \[2\]"):
        parts = np.zeros((2, 1), np.float32), np.zeros((2, 1), np.int32)
        argmax(np.zeros((2, 8), np.float32), np.zeros(2, np.int32), np.zeros(3, np.int32), *parts)
