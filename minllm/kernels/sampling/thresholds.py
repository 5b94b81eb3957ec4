"""Min-p, top-k and top-p as one number per row: the smallest logit that may still be drawn.

All three rules keep the most probable tokens, so each is a threshold on the logit, and their combination is the largest of the three:

    min-p:   max x + T · log(min_p)
    top-k:   the k-th largest logit (ties with it are kept)
    top-p:   the smallest set of most probable tokens with Σ p_v ≥ p, p_v ∝ exp((x_v - max x) / T) over the tokens that the other two
             rules keep (ties with the last one are kept)

So top-p counts last, as in vLLM V1 (vllm.v1.sample.sampler); transformers applies min-p after it.

The k-th largest logit and the one at which the probability reaches p are found by radix selection (radix_select.py), not by sorting.
4 bytes per logit and pass; 1 pass for the maximum, 3 for top-k, 3 for top-p. Threads to data: one block of 1,024 threads per row.
"""

import math

import numpy as np
from numba import cuda, float32, int64, uint32

from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.sampling.argmax import check_logits, check_slots
from minllm.kernels.sampling.radix_select import BINS, GROUPS, THREADS, UNIT, WARPS, block_maximum, ordered, ordered_inverse, select_key
from minllm.kernels.sampling.tensors import SamplingTensors
from minllm.runtime.kernel import check, kernel, launch


def thresholds_reference(logits: np.ndarray, sampling: SamplingTensors, slots: np.ndarray) -> np.ndarray:
    """The smallest logit that each row may draw, float32 [R], -inf without restrictions; logits float32 [R, vocab], slots int32 [R]."""
    thresholds = np.full(len(logits), -np.inf, np.float32)
    for row in np.flatnonzero((slots >= 0) & (sampling.temperature[slots] > 0)):
        slot = slots[row]
        x = np.where(np.isnan(logits[row]), np.float32(-np.inf), logits[row])
        rules = sampling.min_p[slot], int(sampling.top_k[slot]), sampling.top_p[slot]
        thresholds[row] = _row_threshold(x, sampling.temperature[slot], *rules)
    return thresholds


def _row_threshold(x: np.ndarray, temperature: np.float32, min_p: np.float32, top_k: int, top_p: np.float32) -> np.float32:
    threshold = np.float32(-np.inf)
    if min_p > 0:
        threshold = x.max() + temperature * np.log(min_p)
    if 0 < top_k < len(x):
        threshold = np.maximum(threshold, np.partition(x, len(x) - top_k)[len(x) - top_k])
    if top_p < 1:
        weights = _weights(x, temperature)
        candidates = np.flatnonzero((x >= threshold) & (weights > 0))
        candidates = candidates[np.argsort(-x[candidates])]
        mass = np.cumsum(weights[candidates])
        threshold = x[candidates[np.searchsorted(mass, _target(top_p, mass[-1]))]]
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


@kernel(launch_bounds=(THREADS, 1), dependent_launch=True)
def thresholds_kernel(logits, slots, temperature, top_k, top_p, min_p, out):
    """logits float32 [R, vocab]; slots int32, out float32 [R]; temperature, top_p, min_p float32, top_k int32 [S]. One block per row."""
    wait_for_predecessors()
    warp_values = cuda.shared.array(WARPS, float32)
    low = cuda.shared.array(BINS, uint32)
    high = cuda.shared.array(BINS, uint32)
    group_sums = cuda.shared.array(GROUPS, int64)
    found = cuda.shared.array(2, int64)
    row = cuda.blockIdx.x
    slot = slots[row]
    scale = float32(0.0)
    if slot >= 0:
        scale = temperature[slot]
    threshold = float32(-np.inf)
    if scale > float32(0.0):
        peak = float32(0.0)
        k = int64(top_k[slot])
        if k > 0 and k < logits.shape[1]:
            key = select_key(logits, row, uint32(0), peak, scale, False, k, float32(1.0), low, high, group_sums, found)
            threshold = ordered_inverse(key)
        if top_p[slot] < float32(1.0) or min_p[slot] > float32(0.0):
            peak = block_maximum(logits, row, warp_values)
        if min_p[slot] > float32(0.0):
            threshold = max(threshold, peak + scale * math.log(min_p[slot]))
        if top_p[slot] < float32(1.0):
            floor = ordered(threshold if threshold != float32(0.0) else float32(-0.0))  # the two zeros are equal, their keys are not
            key = select_key(logits, row, floor, peak, scale, True, int64(0), top_p[slot], low, high, group_sums, found)
            threshold = ordered_inverse(key)
    if cuda.threadIdx.x == 0:
        out[row] = threshold


def write_thresholds(logits, sampling: SamplingTensors, slots, out, stream=None) -> None:
    """Write the smallest logit that each row may draw to out float32 [R]; logits float32 [R, vocab], slots int32 [R]."""
    check_logits(logits)
    check(tuple(out.shape) == (logits.shape[0],) and out.dtype == np.float32, f"out is {out.dtype} {out.shape}; it must be float32 [rows]")
    check_slots(slots, logits.shape[0])
    rules = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
    launch(thresholds_kernel, logits.shape[0], THREADS, (logits, slots, *rules, out), stream)
