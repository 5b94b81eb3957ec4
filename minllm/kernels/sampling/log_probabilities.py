"""Log-probabilities of the chosen token and of the most probable ones, on the host.

    log p(v) = x_v - max(x) - log Σ_w exp(x_w - max(x))

in float32. They are requested rarely and few at a time, so NumPy is fast enough; they describe the model's own distribution, before
penalties, temperature and thresholds, as in vLLM.
"""

from typing import NamedTuple

import numpy as np


class LogProbabilities(NamedTuple):
    """For R rows: the chosen token's log-probability and rank, and the `top` most probable tokens, best first."""

    chosen: np.ndarray  # float32 [R]
    rank: np.ndarray  # int32 [R]; 1 = the most probable
    top_token_ids: np.ndarray  # int32 [R, top]
    top: np.ndarray  # float32 [R, top]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """log softmax over the last axis, float32; a row of only -inf gives -inf."""
    x = np.asarray(logits, np.float32)
    # exercise: sampling.log_softmax
    peak = x.max(axis=-1, keepdims=True)
    shifted = x - np.where(np.isfinite(peak), peak, np.float32(0))
    with np.errstate(divide="ignore"):
        total = np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted - np.where(np.isfinite(total), total, np.float32(0))
    # end exercise


def log_probabilities(logits: np.ndarray, token_ids: np.ndarray, top: int = 0) -> LogProbabilities:
    """Log-probabilities from float32 logits [R, vocab] for the chosen token_ids [R] and the `top` best tokens (ties: lowest id first)."""
    scores = log_softmax(logits)
    chosen = np.take_along_axis(scores, np.asarray(token_ids, np.int64)[:, None], axis=1)
    rank = (scores > chosen).sum(axis=1) + 1
    top = min(top, scores.shape[1])
    best = np.argsort(-scores, axis=1, kind="stable")[:, :top] if top else np.zeros((len(scores), 0), np.int64)
    return LogProbabilities(chosen[:, 0], rank.astype(np.int32), best.astype(np.int32), np.take_along_axis(scores, best, axis=1))
