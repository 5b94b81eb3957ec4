"""Sampled text with a draft model is fluent, and leans to what the draft would say."""

import numpy as np
from numba import cuda, float32

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import expect
from minllm.runtime.kernel import kernel
from minllm.sim import unwritten

P = np.float32([2, 2, 2, 2]) / np.float32(8)  # the model's distribution
Q = np.float32([4, 2, 1, 1]) / np.float32(8)  # the draft's


@kernel
def choose_kernel(p, q, drafts, of_acceptance, of_draw, tokens):
    """A token per draft: p, q [V]; drafts, tokens int32 [N]; two uniform numbers per draft, float32 [N] both."""
    i = cuda.grid(1)
    if i < drafts.shape[0]:
        token = drafts[i]
        if of_acceptance[i] * q[token] >= p[token]:  # rejected
            total = float32(0)
            for v in range(p.shape[0]):
                total += p[v]
            left, token = of_draw[i] * total, 0
            while left >= p[token]:
                left -= p[token]
                token += 1
        tokens[i] = token


@kernel
def mended_kernel(p, q, drafts, of_acceptance, of_draw, tokens):
    """The same, but what replaces a rejected draft is drawn from max(p - q, 0)."""
    i = cuda.grid(1)
    if i < drafts.shape[0]:
        token = drafts[i]
        if of_acceptance[i] * q[token] >= p[token]:  # rejected
            total = float32(0)
            for v in range(p.shape[0]):
                total += max(p[v] - q[v], float32(0))
            left, token = of_draw[i] * total, 0
            while left >= max(p[token] - q[token], float32(0)):
                left -= max(p[token] - q[token], float32(0))
                token += 1
        tokens[i] = token


def examine(kernel):
    """Each combination of a draft, as often as q says, and of uniform numbers from a grid: shares are exact, and no chance is involved."""
    drafts = np.repeat(np.arange(4), np.int32(8 * Q)).astype(np.int32)
    of_acceptance, of_draw = (np.float32(np.arange(1, 2 * n, 2) / (2 * n)) for n in (2, 8))
    grid = [axis.ravel() for axis in np.meshgrid(drafts, of_acceptance, of_draw)]
    tokens = unwritten((grid[0].size,), np.int32)
    kernel.simulate[grid[0].size // 32, 32](P, Q, *grid, tokens)
    expect("share of the tokens", np.bincount(tokens, minlength=4) / tokens.size, P.astype(np.float64), ("token",))


CASE = Case(
    name="too_agreeable",
    lesson=19,
    title="Too agreeable",
    story="Speculation with a draft model is on, and three quarters of the drafts are accepted, as computed. Greedy answers are those of "
    "before, to the last token. At temperature 1 nothing is wrong with any single answer. But a survey of ten thousand finds the draft's "
    "favourite phrases more often than the large model alone writes them, and the rarer words of the large model less often.",
    hint="Where does a token come from that the draft proposes too often? It is proposed, and sometimes accepted; and it can come a "
    "second time, after a rejection. Add both for the token 0 of p = (1/4, 1/4, 1/4, 1/4) and q = (1/2, 1/4, 1/8, 1/8).",
    broken=choose_kernel,
    mended=mended_kernel,
    examine=examine,
    guilty="total += p[v]",
    solution="A token that the draft proposes too often, q > p, is accepted just as often as the model wants it: min(p, q) = p. It must "
    "not come again. A draw from p after a rejection gives it a second chance: p + (1 - a) p in all, here 0.25 + 0.25 / 4 = 0.31, and "
    "tokens that the draft proposes too rarely miss that. What is left to hand out is max(p - q, 0), the residual. At temperature 0 the "
    "model's distribution is one token, which is not the rejected one, so p and the residual are the same, and no test with "
    "greedy decoding finds this. Counting on a small vocabulary does.",
)
