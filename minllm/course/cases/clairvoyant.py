"""A causal softmax that lets the model do better than it can."""

import numpy as np
from numba import cuda, float32

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import expect
from minllm.ptx import ex2
from minllm.runtime.kernel import kernel
from minllm.sim import unwritten

LOG2_E = 1.4426950408889634
MINUS_INFINITY = -np.inf


@kernel
def causal_softmax_kernel(scores, weights):
    """weights[t] = softmax of scores[t] over the keys visible to token t, one thread per token; both [tokens, tokens]."""
    query = cuda.grid(1)
    tokens = scores.shape[0]
    if query >= tokens:
        return
    visible = min(query + 2, tokens)  # keys that this query sees; the last one has no key after it
    maximum = float32(MINUS_INFINITY)
    for key in range(visible):
        maximum = max(maximum, scores[query, key])
    total = float32(0.0)
    for key in range(visible):
        total += ex2((scores[query, key] - maximum) * float32(LOG2_E))
    for key in range(tokens):
        weight = float32(0.0)
        if key < visible:
            weight = ex2((scores[query, key] - maximum) * float32(LOG2_E)) / total
        weights[query, key] = weight


@kernel
def mended_kernel(scores, weights):
    """The same, for the keys up to the query's own."""
    query = cuda.grid(1)
    tokens = scores.shape[0]
    if query >= tokens:
        return
    visible = query + 1  # token 0 sees itself: one key
    maximum = float32(MINUS_INFINITY)
    for key in range(visible):
        maximum = max(maximum, scores[query, key])
    total = float32(0.0)
    for key in range(visible):
        total += ex2((scores[query, key] - maximum) * float32(LOG2_E))
    for key in range(tokens):
        weight = float32(0.0)
        if key < visible:
            weight = ex2((scores[query, key] - maximum) * float32(LOG2_E)) / total
        weights[query, key] = weight


def examine(kernel):
    """Scores of 6 tokens, of which only those exist that a causal model may look at."""
    tokens = 6
    visible = np.tri(tokens, dtype=bool)
    scores, weights = unwritten((tokens, tokens), np.float32), unwritten((tokens, tokens), np.float32)
    scores[visible] = np.random.default_rng(0).standard_normal(visible.sum())
    kernel.simulate[1, 32](scores, weights)
    exponentials = np.where(visible, np.exp(np.float64(scores)), 0)
    expect("weights", weights, exponentials / exponentials.sum(1, keepdims=True), ("query", "key"))


CASE = Case(
    name="clairvoyant",
    lesson=3,
    title="Too good a model",
    story="With the new attention, perplexity on a held-out text falls from 15 to 3, and everybody is pleased. Then the same model "
    "writes a text, and it is rubbish. No result is NaN, every row of the weights adds up to 1, and the shapes are right.",
    hint="Perplexity is measured with the whole text there; when the model writes, the next token does not exist yet. Do it by hand "
    "for token 0: which keys may it see, and what is `visible`?",
    broken=causal_softmax_kernel,
    mended=mended_kernel,
    examine=examine,
    guilty="visible = min(query + 2, tokens)",
    solution="The mask is off by one: token t sees keys 0 to t, which are t + 1, and not t + 2. So each token looks at the very token "
    "that it is asked to predict, which is easy. When the model writes there is nothing to look at, and it has learned "
    "nothing about that. The simulator is given scores of which only the causal half was ever written, and stops at the first "
    "read of another. The `min` was the trace that the mistake left: with the right count, no query could reach beyond the "
    "last key.",
)
