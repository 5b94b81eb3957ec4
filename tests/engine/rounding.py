"""How far two computations of the same log-probability may be apart in 16 bits, and the checks that schedules stay within it.

Another chunk size, other company in the batch or a preemption changes the order of float32 sums. An activation then may round to the other
neighbour in 16 bits, and differs from there on. How far the log-probabilities can move follows from the number of roundings:

    u        largest relative error of one rounding: 2^-8 in bfloat16 (8 significant bits), 2^-11 in float16 (11)
    u / √3   its root mean square at most: the error is uniform between -u and u where the spacing is coarsest
    n        roundings on the way to the logits, ROUNDINGS per layer; they are independent, so their squares add up
    e        u √(n / 3), the relative error of the last hidden state
    s        root mean square of a row of logits about their mean. A logit is the product of a row of the head with the hidden state,
             so that an error of the hidden state in a random direction moves it by e s

log p is a logit less the logarithm of a sum over all, which moves like a mean of logits: √2 e s at most. Two computations with independent
errors differ by √2 more: 2 e s is one standard deviation of their difference, and also of the gap between two logits of one row.
The tolerance is DEVIATIONS of them. A normal variable is beyond that once in 1.7 million times, and a test compares a few thousand.
"""

import math
from typing import Any, NamedTuple

import numpy as np

SIGNIFICANT_BITS = {"bfloat16": 8, "float16": 11}
# Per layer: norm, q k v, rotated, weights of attention, its output, projected, residual sum, norm, gate and up, their product, down. The
# last residual sum is left out, because the norm that follows takes it in float32.
ROUNDINGS = 11
DEVIATIONS = 5
QUANTISED_BOUND = 0.02  # for float16 with a quantised cache and the random Llama 3 of the tests; its float16 tolerance is 0.022


def logprob_tolerance(dtype, num_layers, logits):
    """The largest difference of a log-probability between two schedules; logits [rows, vocab]: any of the model's, for their spread."""
    error = 2.0 ** -SIGNIFICANT_BITS[dtype] * math.sqrt(ROUNDINGS * num_layers / 3)
    return DEVIATIONS * 2 * error * float(np.std(logits, axis=1).mean())


class Scores(NamedTuple):
    """What an engine answers to requests one by one, in whole prompts: what every schedule repeats within the tolerance."""

    prompts: list
    params: list
    text: list[int]  # token ids
    outputs: list[Any]  # of the requests
    logits: np.ndarray  # of the text, float32 [tokens, vocab]
    tolerance: float


def scores_alone(llm, prompts, params, text):
    """The Scores of an engine in bfloat16."""
    outputs = [llm.generate([one], asked)[0] for one, asked in zip(prompts, params, strict=True)]
    logits = llm.logits(text)
    return Scores(prompts, params, text, outputs, logits, logprob_tolerance("bfloat16", len(llm.engine.model.weights.layers), logits))


def check_scores(llm, alone):
    """All requests together, twice, and the logits and the perplexity of the text."""
    for _ in range(2):
        check_same_within(llm.generate(alone.prompts, alone.params), alone.outputs, alone.tolerance)
    expected = log_likelihoods(alone.logits, alone.text)
    assert np.abs(log_likelihoods(llm.logits(alone.text), alone.text) - expected).max() <= alone.tolerance
    assert abs(np.log(llm.perplexity(alone.text)) + expected.mean()) <= alone.tolerance
    assert llm.engine.cache_policy.usage().allocated == 0


def log_likelihoods(logits, text):
    """log p of a text's tokens after the first, float64."""
    logits = logits[:-1].astype(np.float64)
    return logits[np.arange(len(logits)), text[1:]] - np.log(np.exp(logits).sum(axis=1))


def check_same_within(outputs, expected, tolerance):
    """Prompts and outputs score alike, up to the first token that differs; there the two candidates are as good as equal."""
    for one, other in zip(outputs, expected, strict=True):
        for token_id, ours, theirs in zip(one.prompt_token_ids[1:], one.prompt_logprobs[1:], other.prompt_logprobs[1:], strict=True):
            assert abs(ours[token_id].logprob - theirs[token_id].logprob) <= tolerance
        for ours, theirs in zip(one.outputs, other.outputs, strict=True):
            check_same_completion(ours, theirs, tolerance)


def check_same_completion(one, other, tolerance):
    """A completion against the expected one, both with log-probabilities of the likeliest tokens."""
    assert len(one.token_ids) == len(other.token_ids)
    for ours, theirs, found, expected in zip(one.token_ids, other.token_ids, one.logprobs, other.logprobs, strict=True):
        if ours != theirs:
            assert expected[theirs].logprob - expected[ours].logprob <= tolerance
            return
        assert abs(found[ours].logprob - expected[ours].logprob) <= tolerance
