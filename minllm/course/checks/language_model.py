"""Ladders for the numbers of a language model: log-probabilities and perplexity."""

import numpy as np

from minllm.course.checks.mismatch import expect
from minllm.course.exercise import Exercise, Rung
from minllm.engine.scoring import windows

VOCABULARY = 6
ALL_HIDDEN = "NaN: a row of -inf has the maximum -inf, and -inf - -inf is not a number; subtract a maximum only where it is finite."
UNSHIFTED = "the maximum was not subtracted: exp of a large logit is infinite, and of a very negative one 0, whose logarithm is -inf."


def log_probabilities(log_softmax, logits):
    """Compare log_softmax of float32 logits [..., vocab] with float64."""
    logits = np.asarray(logits, np.float32)
    exact = logits.astype(np.float64)
    with np.errstate(all="ignore"):
        shifted = exact - np.where(np.isfinite(exact.max(-1, keepdims=True)), exact.max(-1, keepdims=True), 0)
        total = np.log(np.exp(shifted).sum(-1, keepdims=True))
        expected = shifted - np.where(np.isfinite(total), total, 0)
        whole = shifted - np.log(np.exp(shifted).sum())
        log_sum = np.log(np.exp(logits).sum(-1, keepdims=True))  # in float32, where exp of a large logit is infinite
        suspects = [
            ("these are probabilities; what is wanted is their logarithm.", np.exp(expected)),
            ("this is the logarithm to base 2; the natural one is wanted.", expected / np.log(2)),
            ("the sum went over the whole array: every row has its own, so sum over the last axis.", whole),
            ("the maximum was subtracted, the logarithm of the sum was not.", shifted),
            ("the logarithm of the sum was added; it is subtracted.", 2 * shifted - expected),
            (
                "the maximum of each column was subtracted; every row has its own: axis=-1.",
                exact - exact.max(0) - np.log(np.exp(exact - exact.max(0)).sum(-1, keepdims=True)),
            ),
        ]
        if np.isfinite(exact).all():
            suspects += [(UNSHIFTED, exact - log_sum), (UNSHIFTED, exact - np.where(np.isfinite(log_sum), log_sum, 0))]
        else:
            suspects.append((ALL_HIDDEN, exact - exact.max(-1, keepdims=True)))
    expect("log_softmax(logits)", log_softmax(logits), expected, ("row", "token") if logits.ndim == 2 else ("token",), suspects)


def perplexity(scorer_class, log_likelihoods, window=None, stride=None):
    """Score a text in windows, with these log-likelihoods of its tokens after the first; compare with exp(-mean)."""
    log_likelihoods = np.asarray(log_likelihoods, np.float32)
    tokens = list(range(len(log_likelihoods) + 1))

    class Scripted(scorer_class):
        """A scorer with scripted log-likelihoods."""

        def __init__(self):
            pass

        def log_likelihoods(self, token_ids, first_target=1):
            """Log-likelihoods of tokens from first_target on; token ids are positions in the text."""
            return log_likelihoods[[token - 1 for token in token_ids[first_target:]]]

    exact = log_likelihoods.astype(np.float64)
    suspects = [
        ("the sum was divided by the number of tokens; the first has nothing before it and is not "
         "counted.", np.exp(-exact.sum() / len(tokens))),
        ("the sign is missing: log-likelihoods are negative, and perplexity is exp of minus their mean.", np.exp(exact.mean())),
        ("exp of the sum; it is exp of the mean.", np.exp(-exact.sum())),
        ("the mean itself; perplexity is exp of it.", -exact.mean()),
        ("this is to base 2; exp goes with the natural logarithm.", np.exp2(-exact.mean())),
    ]  # fmt: skip
    window, stride = window or len(tokens), stride or len(tokens)
    slices = [(begin, first, end) for begin, end, first in windows(len(tokens), window, stride)]
    again = sum(exact[begin : end - 1].sum() for begin, _, end in slices)
    within = sum(exact[begin + first - 1 : end - 1].sum() for begin, first, end in slices)
    last = exact[slices[-1][1] - 1 : slices[-1][2] - 1].sum()
    suspects += [
        ("first_target counts in the whole text; within a window it is first_target - begin.", np.exp(-within / len(exact))),
        ("only the last window was counted: add up with +=.", np.exp(-last / len(exact))),
        ("tokens that two windows share were counted twice: pass first_target - begin, so that only new ones are scored.",
         np.exp(-again / len(exact))),
        *[("the sum was kept in too few bits: ask for .sum(dtype=np.float64).", np.exp(-log_likelihoods.sum(dtype=few) / len(exact)))
          for few in (np.float32, np.float16)],
    ]  # fmt: skip
    got = Scripted().perplexity(tokens, window, stride)
    expect("perplexity", np.float64(got), np.float64(np.exp(-exact.mean())), (), suspects, tolerance=1e-6)


def overlapping(scorer_class):
    """Windows of 4 tokens, 2 apart: 9 tokens, each counted once."""
    perplexity(scorer_class, -np.linspace(0.1, 2, 9), window=4, stride=2)


def long_text(scorer_class):
    """100,000 tokens: a float32 sum would lose the last digits."""
    perplexity(scorer_class, np.full(100_000, -1.1), window=30_000, stride=20_000)


EXERCISES = (
    Exercise(
        name="sampling.log_softmax",
        lesson=1,
        title="from logits to log-probabilities, in NumPy",
        module="minllm.kernels.sampling.log_probabilities",
        entry="log_softmax",
        task="log p(v) = x_v - max(x) - log of the sum of exp(x_w - max(x)), each row by itself (the last axis). A row of -inf alone stays "
        "-inf: subtract a maximum, and a logarithm, only where they are finite.",
        hints=(
            "x.max(axis=-1, keepdims=True) gives each row's maximum in a shape that can be subtracted from x.",
            "np.where(np.isfinite(peak), peak, np.float32(0)) keeps -inf - -inf, which is NaN, from happening.",
        ),
        rungs=(
            Rung("two equal logits", "two equal logits share the probability: log 1/2 each.", lambda f: log_probabilities(f, [0, 0])),
            Rung("several rows", "each row is a distribution of its own.", lambda f: log_probabilities(f, [[0, 1, 2], [5, 0, -5]])),
            Rung("huge logits", "exp(1000) overflows; subtracting the maximum first changes nothing else.",
                 lambda f: log_probabilities(f, [[1000, 999], [-1000, -1002]])),
            Rung("forbidden tokens", "a logit of -inf has probability 0, and log 0 is -inf.",
                 lambda f: log_probabilities(f, [1, -np.inf, 0])),
            Rung("nothing allowed", "a row of -inf alone gives -inf, not NaN.", lambda f: log_probabilities(f, [[-np.inf] * 2, [0, 1]])),
        ),
    ),
    Exercise(
        name="engine.perplexity",
        lesson=1,
        title="how well a model predicts a text, in one number",
        module="minllm.engine.scoring",
        entry="Scorer",
        task="A long text is read in windows. Add up self.log_likelihoods(token_ids[begin:end], first_target - begin), an array, over "
        "the (begin, end, first_target) that windows(len(token_ids), window, stride) gives, in float64. Return exp of minus the mean over "
        "all tokens but the first, as a float.",
        hints=(
            "`for begin, end, first_target in windows(len(token_ids), window, stride):` walks the text. A window reads tokens begin to end "
            "and counts those from first_target on: `log_likelihoods` returns log p of each of them.",
            "first_target counts in the whole text, and log_likelihoods wants it within the window.",
        ),
        rungs=(
            Rung("a uniform model", "a model that finds 6 tokens equally likely has perplexity 6.",
                 lambda scorer: perplexity(scorer, np.full(5, -np.log(VOCABULARY)))),
            Rung("tokens of different likelihood", "the mean is that of the logarithms.", lambda scorer: perplexity(scorer, [-1, -2, -4])),
            Rung("overlapping windows", "a window's first tokens are there to be seen, not counted again.", overlapping),
            Rung("a long text", "a sum of 100,000 numbers needs float64.", long_text),
        ),
    ),
)  # fmt: skip
