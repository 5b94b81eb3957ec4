"""The distribution that each row is drawn from, as log-probabilities after temperature and thresholds.

    log p_v = (x_v - max x) / T - log Σ_w exp((x_w - max x) / T)          over the tokens with x ≥ threshold, -inf for others
    T = 0:  log p_v = 0 for the largest logit, the lowest id among equals, -inf for others

With the limit T → 0, greedy decoding follows the same rule as drawing, so acceptance (rejection.py) treats both alike. A row from which no
token can be chosen (sampling/argmax.py) gives all probability to token 0, as which such a draft is stored (draft_rows.py).

Bytes: 4 per logit, read twice and written once. Threads to data: one block of 1,024 threads per row.
"""

import math

import numpy as np
from numba import cuda, float32, int32

from minllm.kernels.arguments import check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.reduction import block_sum
from minllm.kernels.sampling.argmax import NO_TOKEN, check_logits, check_slots, nan_as_infinity, warp_argmax
from minllm.kernels.sampling.tensors import SamplingTensors
from minllm.runtime.kernel import kernel, launch
from minllm.tiles.warp import WARP

THREADS = 1024
WARPS = THREADS // WARP
FLOAT = (np.dtype(np.float32),)


def distribution_reference(logits: np.ndarray, thresholds: np.ndarray, sampling: SamplingTensors, slots: np.ndarray) -> np.ndarray:
    """log p, float32 [R, vocab]; logits float32 [R, vocab], thresholds float32 [R], slots int32 [R]. Rows of slot -1 have T = 0."""
    x = np.where(np.isnan(logits), np.float32(np.inf), logits)
    best, temperature = np.argmax(x, axis=1), np.where(slots >= 0, sampling.temperature[slots], np.float32(0))
    out = np.full(x.shape, -np.inf, np.float32)
    for row, peak in enumerate(x[np.arange(len(x)), best]):
        if temperature[row] == 0 or not np.isfinite(peak):
            out[row, best[row] if np.isfinite(peak) else 0] = 0
        else:
            kept = x[row] >= thresholds[row]
            scaled = (x[row, kept] - peak) / temperature[row]
            out[row, kept] = scaled - np.log(np.exp(scaled).sum())
    return out


@cuda.jit(device=True)
def block_argmax(value, token, warp_values, warp_tokens):
    """The largest value over the block's threads and its token, in every thread. warp_* [WARPS] are in shared memory."""
    value, token = warp_argmax(value, token)
    if cuda.threadIdx.x & 31 == 0:
        warp_values[cuda.threadIdx.x >> 5], warp_tokens[cuda.threadIdx.x >> 5] = value, token
    cuda.syncthreads()
    lane = cuda.threadIdx.x & 31
    return warp_argmax(warp_values[lane], warp_tokens[lane])


@kernel(launch_bounds=(THREADS, 1), dependent_launch=True)
def distribution_kernel(logits, thresholds, slots, temperature, out):
    """logits, out float32 [R, vocab]; thresholds float32, slots int32 [R]; temperature float32 [S]."""
    wait_for_predecessors()
    warp_values, warp_tokens, sums = cuda.shared.array(WARPS, float32), cuda.shared.array(WARPS, int32), cuda.shared.array(WARP, float32)
    row, vocab = cuda.blockIdx.x, int32(logits.shape[1])
    scale = temperature[slots[row]] if slots[row] >= 0 else float32(0.0)
    best, best_token = float32(-np.inf), int32(NO_TOKEN)
    token = int32(cuda.threadIdx.x)
    while token < vocab:
        x = nan_as_infinity(logits[row, token])
        if x > best:
            best, best_token = x, token
        token += THREADS
    peak, best_token = block_argmax(best, best_token, warp_values, warp_tokens)
    is_certain = scale == float32(0.0)
    if not float32(-np.inf) < peak < float32(np.inf):
        is_certain, best_token = True, int32(0)
    total, threshold = float32(0.0), thresholds[row]
    token = int32(cuda.threadIdx.x)
    while token < vocab and not is_certain:
        if logits[row, token] >= threshold:
            total += math.exp((logits[row, token] - peak) / scale)
        token += THREADS
    log_total = math.log(block_sum(total, sums))
    token = int32(cuda.threadIdx.x)
    while token < vocab:
        x = float32(-np.inf)
        if is_certain:
            if token == best_token:
                x = float32(0.0)
        elif logits[row, token] >= threshold:
            x = (logits[row, token] - peak) / scale - log_total
        out[row, token] = x
        token += THREADS


def distribution(logits, thresholds, sampling: SamplingTensors, slots, out, stream=None) -> None:
    """Write the result of `distribution_reference` to `out`; all arrays NumPy or all on one device."""
    check_logits(logits)
    rows, vocab = logits.shape
    check_slots(slots, rows)
    check_array("thresholds", thresholds, FLOAT, rows=rows)
    check_array("out", out, FLOAT, rows=rows, vocab=vocab)
    launch(distribution_kernel, rows, THREADS, (logits, thresholds, slots, sampling.temperature, out), stream)
