"""The weights of a token's chosen experts."""

import math

import numpy as np
from numba import cuda, float32

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import expect
from minllm.kernels.experts.reference import route_reference
from minllm.runtime.kernel import kernel
from minllm.sim import unwritten

THREADS, CHOSEN = 32, 2


@kernel
def weigh_kernel(probabilities, expert_ids, weights):
    """weights [T, k] of the chosen experts, which sum to 1. probabilities [T, E]: the softmax of the logits; a thread per token."""
    token, chosen = cuda.grid(1), expert_ids.shape[1]
    if token >= weights.shape[0]:
        return
    total = float32(0)
    for place in range(chosen):
        weights[token, place] = math.exp(probabilities[token, expert_ids[token, place]])  # a softmax over the chosen
        total += weights[token, place]
    for place in range(chosen):
        weights[token, place] /= total


@kernel
def mended_kernel(probabilities, expert_ids, weights):
    """The same, but of probabilities, which are exponentials already."""
    token, chosen = cuda.grid(1), expert_ids.shape[1]
    if token >= weights.shape[0]:
        return
    total = float32(0)
    for place in range(chosen):
        weights[token, place] = probabilities[token, expert_ids[token, place]]
        total += weights[token, place]
    for place in range(chosen):
        weights[token, place] /= total


def examine(kernel):
    """Logits of one favourite expert, and of two that are equally good."""
    for name, logits in (("two equal experts", [2, 2, -3, -3, 0]), ("one favourite", [5, 1, 0, 0, -2])):
        logits = np.float32([logits])
        expert_ids, right = route_reference(logits, CHOSEN, normalized=True)
        probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        weights = unwritten((1, CHOSEN), np.float32)
        kernel.simulate[1, THREADS](probabilities, expert_ids, weights)
        expect(f"weights, {name}", weights, right, ("token", "place"))


CASE = Case(
    name="lukewarm",
    lesson=23,
    title="Lukewarm",
    story="A new checkpoint with experts runs, and its text is fluent. Only its answers are a little worse than its authors say, in every "
    "benchmark. Each token gets the right experts, their weights sum to 1, and no test of a kernel fails.",
    hint="A favourite with 98 % of the probability: which weight does it get beside its runner-up?",
    broken=weigh_kernel,
    mended=mended_kernel,
    examine=examine,
    guilty="weights[token, place] = math.exp(probabilities",
    solution="The weights are normalised twice: first by a softmax over all experts, then by another over the chosen. The second "
    "takes exponentials of numbers between 0 and 1, which lie between 1 and e, so that the weights of two experts differ by a factor of e "
    "at most: 98 % against 2 % become 72 % against 28 %. They sum to 1 all the same, so only a comparison with the model's own router "
    "notices. The softmax of the chosen logits, or the chosen probabilities divided by their sum, is the same number; an exponential of a "
    "probability is not. Whether to divide at all is the model's choice, norm_topk_prob in its config.json.",
)
