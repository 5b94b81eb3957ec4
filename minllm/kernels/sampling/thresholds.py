"""Top-k, top-p and min-p as one number per row: the smallest logit that may still be drawn.

All three rules keep the most probable tokens, so each is a threshold on the logit, and together they are the largest of the three:

    top-k:   the k-th largest logit (ties with it are kept)
    top-p:   of what top-k kept, with p_v ∝ exp((x_v - max x) / T): the smallest set of most probable tokens with Σ p_v ≥ p (ties are kept)
    min-p:   max x + T · log(min_p)

No sorting: the k-th largest number is found by radix selection. A float's bits, with the sign folded in, order like the float; a histogram
of their first 11 bits says in which bin the k-th largest lies, a histogram of the next 11 bits inside that bin narrows it, the last 10
bits name it. Top-p is the same search with every token counting exp((x_v - max) / T) instead of 1. These weights are integers,
in units of 2^-31 of the largest, so sums do not depend on the order of additions: every run and every processor finds the same set.

Bytes: 4 per logit and pass; 1 pass for the maximum, 3 for top-k, 3 for top-p. Mapping: one block of 1,024 threads a row, histograms in
shared memory. A bin is two 32-bit words, since shared memory adds 32-bit words natively: the carry goes to the high word.
"""

import numpy as np

from minllm.kernels.sampling.tensors import SamplingTensors

THREADS = 1024
WARPS = THREADS // 32
BINS = 2048
GROUP = 32  # bins that one warp sums at a time
GROUPS = BINS // GROUP
UNIT = 2.0**31  # the weight of the most probable token
FULL_WARP = 0xFFFFFFFF


def thresholds_reference(logits: np.ndarray, sampling: SamplingTensors) -> np.ndarray:
    """The smallest logit that each row may draw, float32 [R], -inf where nothing is restricted; logits float32 [R, vocab]."""
    thresholds = np.full(len(logits), -np.inf, np.float32)
    for row in np.flatnonzero(sampling.temperature > 0):
        rules = int(sampling.top_k[row]), sampling.top_p[row], sampling.min_p[row]
        thresholds[row] = _row_threshold(logits[row], sampling.temperature[row], *rules)
    return thresholds


def _row_threshold(x: np.ndarray, temperature: np.float32, top_k: int, top_p: np.float32, min_p: np.float32) -> np.float32:
    threshold = np.float32(-np.inf)
    if 0 < top_k < len(x):
        threshold = np.partition(x, len(x) - top_k)[len(x) - top_k]
    if top_p < 1:
        weights = _weights(x, temperature)
        candidates = np.flatnonzero((x >= threshold) & (weights > 0))
        candidates = candidates[np.argsort(-x[candidates])]
        mass = np.cumsum(weights[candidates])
        threshold = x[candidates[np.searchsorted(mass, _target(top_p, mass[-1]))]]
    if min_p > 0:
        threshold = np.maximum(threshold, x.max() + temperature * np.log(min_p))
    return threshold


def _weights(x: np.ndarray, temperature: np.float32) -> np.ndarray:
    """exp((x - max x) / T) in units of 2^-31, rounded down, int64."""
    peak = x.max()
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = np.where(x == peak, np.float32(0), (x - peak) / temperature)
    return (np.exp(scaled) * np.float32(UNIT)).astype(np.int64)


def _target(top_p: np.float32, total: np.int64) -> np.int64:
    """The smallest integer mass that is at least top_p of the total, and at least 1."""
    return max(np.int64(1), np.int64(np.ceil(np.float64(top_p) * np.float64(total))))
