"""The synthetic traffic: what its docstring says of it, and that a seed is a traffic."""

import numpy as np
import pytest

from minllm.bench.traffic import ANSWER_MEAN, PROMPT_MEAN, Traffic


def test_a_seed_is_a_traffic():
    assert Traffic(50).generate() == Traffic(50).generate()
    assert Traffic(50).generate() != Traffic(50, seed=1).generate()


def test_lengths_and_arrivals_are_those_that_were_asked_for():
    traffic = Traffic(5_000, rate=40.0, max_model_len=100_000)
    requests = traffic.generate()
    for mean, lengths in ((PROMPT_MEAN, [len(r.prompt) for r in requests]), (ANSWER_MEAN, [len(r.answer) for r in requests])):
        assert np.mean(lengths) == pytest.approx(mean, rel=0.06)
        assert np.std(np.log(lengths)) == pytest.approx(1.0, rel=0.06)
        assert min(lengths) >= 1
    arrivals = [r.arrival for r in requests]
    assert arrivals == sorted(arrivals) and arrivals[-1] == pytest.approx(5_000 / 40.0, rel=0.06)


def test_every_request_fits_the_model():
    requests = Traffic(3000, max_model_len=256, system_prompts=2, system_prompt_tokens=40).generate()
    assert max(len(r.prompt) + len(r.answer) for r in requests) <= 256
    assert max(len(r.prompt) for r in requests) == 128


def test_system_prompts_begin_the_prompts_and_the_first_is_the_most_frequent():
    requests = Traffic(1000, system_prompts=3, system_prompt_tokens=20).generate()
    beginnings = [tuple(r.prompt[:20]) for r in requests]
    counts = sorted((beginnings.count(text) for text in set(beginnings)), reverse=True)
    assert len(counts) == 3
    np.testing.assert_allclose(np.array(counts) / 1000, np.array([6, 3, 2]) / 11, atol=0.05)
