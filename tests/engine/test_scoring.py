"""Logits and perplexity against transformers and the definition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm import LLM
from minllm.engine.scoring import windows
from tests.engine.models import model_directory, transformers_model
from tests.models.random_models import prompt, reference_logits


@pytest.mark.parametrize("length", [1, 15, 16, 17, 130])
@pytest.mark.parametrize("budget", [5, 2048])
def test_logits_equal_transformers(length, budget):
    with LLM(model_directory("qwen3"), device="cpu", max_model_len=130, max_num_batched_tokens=budget) as llm:
        logits = llm.logits(prompt(length))
        assert llm.engine.cache_policy.usage().allocated == 0
    expected = reference_logits(transformers_model("qwen3"), prompt(length))
    assert logits.shape == (length, 1003) and logits.dtype == np.float32
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


def log_likelihoods(logits, token_ids):
    logits = logits.astype(np.float64)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logits[np.arange(len(token_ids) - 1), token_ids[1:]]


def test_perplexity_of_a_short_text_is_its_definition(llm):
    for length in (2, 3, 200):
        tokens = prompt(length)
        expected = np.exp(-log_likelihoods(reference_logits(transformers_model("small"), tokens)[:-1], tokens).mean())
        assert llm.perplexity(tokens) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("length,window,stride", [(150, 64, 32), (97, 33, 32), (130, 40, 7), (64, 64, 32), (65, 64, 32)])
def test_perplexity_in_windows(llm, length, window, stride):
    """Each token's likelihood comes from the first window that reaches it, computed here one window at a time."""
    tokens = prompt(length)
    found = {}
    for begin in range(0, length, stride):
        text = tokens[begin : begin + window]
        if len(text) > 1:
            for i, value in enumerate(log_likelihoods(reference_logits(transformers_model("small"), text)[:-1], text)):
                found.setdefault(begin + 1 + i, value)
    assert len(found) == length - 1
    assert llm.perplexity(tokens, window, stride) == pytest.approx(np.exp(-np.mean(list(found.values()))), rel=1e-4)


def test_a_window_is_at_most_the_context(llm):
    """The model takes 256 tokens."""
    assert llm.perplexity(prompt(600)) == llm.perplexity(prompt(600), window=256, stride=128)
    assert llm.perplexity(prompt(600), window=257, stride=50) == llm.perplexity(prompt(600), window=256, stride=50)


@settings(deadline=None)
@given(num_tokens=st.integers(2, 3000), window=st.integers(2, 300), data=st.data())
def test_every_token_is_counted_once_with_enough_before_it(num_tokens, window, data):
    stride = data.draw(st.integers(1, window - 1))
    counted = []
    for begin, end, first_target in windows(num_tokens, window, stride):
        assert 0 <= begin < first_target < end <= num_tokens and end - begin <= window
        assert begin == 0 or first_target - begin >= window - stride
        counted += range(first_target, end)
    assert counted == list(range(1, num_tokens))
