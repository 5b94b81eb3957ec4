"""Log-probabilities of the chosen token and of the most probable ones.

    log p(v) = x_v - max(x) - log Σ_w exp(x_w - max(x))            rank(v) = 1 + |{ w : x_w > x_v }|

in float32. They describe the model's own distribution, before bias, penalties, temperature and thresholds, as in vLLM. Tokens are
ordered by their logits, the lowest id first among equals. All are NaN in a row that holds NaN or +inf; a chosen token below 0, of a
row that has none (argmax.py), is read as 0.

4 bytes per logit, read once. As in argmax.py, a row is split over several blocks: each leaves its part's maximum, its sum of
exponentials, the number of logits larger than the chosen one, and its `top` best tokens, which are found one after the other: the best of
those that come after the previous one. A second launch, one block per row, reduces over the parts in the same way.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import cuda, float32, int32

from minllm.kernels.arguments import INDEX_DTYPES, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.reduction import block_sum
from minllm.kernels.sampling.argmax import NO_TOKEN, PART, QUADS_PER_THREAD, THREADS, WARPS, check_logits, load_quad, parts_of, warp_argmax
from minllm.runtime.array_protocol import Array
from minllm.runtime.kernel import check, kernel, launch
from minllm.tiles.warp import WARP

FLOAT = (np.dtype(np.float32),)
VALUES = 4 * QUADS_PER_THREAD  # logits per thread
MOST = 20  # the largest `top`


class LogProbabilities(NamedTuple):
    """For R rows: the chosen token's log-probability and rank, and the `top` most probable tokens, best first."""

    chosen: Array  # float32 [R]
    rank: Array  # int32 [R]; 1 = the most probable
    top_token_ids: Array  # int32 [R, top]
    top: Array  # float32 [R, top]

    @classmethod
    def allocate(cls, empty, rows: int, top: int) -> "LogProbabilities":
        """Allocate with `empty(shape, dtype)`, for instance np.empty or a device pool's."""
        shapes = ((rows,), np.float32), ((rows,), np.int32), ((rows, top), np.int32), ((rows, top), np.float32)
        return cls(*(empty(shape, dtype) for shape, dtype in shapes))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """log softmax over the last axis, float32; a row of only -inf gives -inf, and one with NaN or +inf gives NaN."""
    x = np.asarray(logits, np.float32)
    x = np.where((x < np.inf).all(axis=-1, keepdims=True), x, np.float32(np.nan))
    # exercise: sampling.log_softmax
    peak = x.max(axis=-1, keepdims=True)
    shifted = x - np.where(np.isfinite(peak), peak, np.float32(0))
    with np.errstate(divide="ignore"):
        total = np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted - np.where(np.isfinite(total), total, np.float32(0))
    # end exercise


def best_tokens(logits: np.ndarray, top: int) -> np.ndarray:
    """The `top` best tokens of one row, best first; among equals the lowest id first, and NaN last."""
    cost = -logits
    last = np.partition(cost, top - 1)[top - 1] if top else -np.inf
    found = np.flatnonzero(~(cost > last))  # in a vocabulary of 100,000 this takes a tenth of the time of sorting it
    return found[np.argsort(cost[found], kind="stable")[:top]]


def log_probabilities_reference(logits: np.ndarray, token_ids: np.ndarray, top: int = 0) -> LogProbabilities:
    """Log-probabilities from float32 logits [R, vocab] for the chosen token_ids [R] and the `top` best tokens (ties: lowest id first)."""
    scores = log_softmax(logits)
    columns = np.maximum(np.asarray(token_ids, np.int64), 0)[:, None]
    rank = (logits > np.take_along_axis(logits, columns, axis=1)).sum(axis=1) + 1
    top = min(top, scores.shape[1])
    best = np.array([best_tokens(row, top) for row in logits], np.int64).reshape(len(scores), top)
    chosen, of_best = np.take_along_axis(scores, columns, axis=1)[:, 0], np.take_along_axis(scores, best, axis=1)
    return LogProbabilities(chosen, rank.astype(np.int32), best.astype(np.int32), of_best)


@cuda.jit(device=True)
def thread_best(x, tokens, last_value, last_token):
    """The thread's best (value, token) among those that come after the last one."""
    best, best_token = float32(-np.inf), int32(NO_TOKEN)
    for i in range(VALUES):
        is_after = x[i] < last_value or (x[i] == last_value and tokens[i] > last_token)
        if is_after and (x[i] > best or (x[i] == best and tokens[i] < best_token)):
            best, best_token = x[i], tokens[i]
    return best, best_token


@cuda.jit(device=True)
def block_best(value, token, warp_values, warp_tokens, turn):
    """The best of the threads' (value, token), in every thread.

    warp_values, warp_tokens: [2, WARPS] in shared memory. turn: alternates between 0 and 1 from call to call.
    """
    lane, warp = int32(cuda.threadIdx.x & 31), int32(cuda.threadIdx.x >> 5)
    value, token = warp_argmax(value, token)
    if lane == 0:
        warp_values[turn, warp], warp_tokens[turn, warp] = value, token
    cuda.syncthreads()
    value, token = float32(-np.inf), int32(NO_TOKEN)
    if lane < WARPS:
        value, token = warp_values[turn, lane], warp_tokens[turn, lane]
    return warp_argmax(value, token)


@cuda.jit(device=True)
def finite_or_zero(x):
    """x, or 0 if x is infinite: the number to subtract before an exponential."""
    return x if float32(-np.inf) < x < float32(np.inf) else float32(0.0)


@kernel(dependent_launch=True)
def log_probability_parts_kernel(logits, token_ids, top, part_peaks, part_sums, part_ranks, part_values, part_tokens):
    """logits float32 [R, vocab]; token_ids int32 [R]; of each part: its largest logit, its sum of exponentials and its number of logits
    above the chosen token's [R, parts]; its best tokens, part_values float32, part_tokens int32 [R, parts, top]."""
    wait_for_predecessors()
    warp_values, warp_tokens = cuda.shared.array((2, WARPS), float32), cuda.shared.array((2, WARPS), int32)
    sums, ranks = cuda.shared.array(WARP, float32), cuda.shared.array(WARP, float32)
    x, tokens = cuda.local.array(VALUES, float32), cuda.local.array(VALUES, int32)
    row, part, thread = cuda.blockIdx.y, cuda.blockIdx.x, int32(cuda.threadIdx.x)
    for load in range(QUADS_PER_THREAD):
        token = int32(part * PART + load * (THREADS * 4) + thread * 4)
        x[4 * load], x[4 * load + 1], x[4 * load + 2], x[4 * load + 3] = load_quad(logits, row, token)  # NaN beyond the end
        for i in range(4):
            tokens[4 * load + i] = token + i
    mine, my_token = thread_best(x, tokens, float32(np.inf), int32(-1))
    best, best_token = block_best(mine, my_token, warp_values, warp_tokens, 0)
    chosen, shift = logits[row, max(token_ids[row], 0)], finite_or_zero(best)
    total = larger = float32(0.0)
    for i in range(VALUES):
        if x[i] > chosen:
            larger += float32(1.0)
        if tokens[i] < logits.shape[1]:
            total += math.exp(x[i] - shift)
    total, larger = block_sum(total, sums), block_sum(larger, ranks)
    if thread == 0:
        part_peaks[row, part], part_sums[row, part], part_ranks[row, part] = best, total, int32(larger)
    for i in range(top):
        if thread == 0:
            part_values[row, part, i], part_tokens[row, part, i] = best, best_token
        if i + 1 < top:
            if my_token == best_token:
                mine, my_token = thread_best(x, tokens, best, best_token)
            best, best_token = block_best(mine, my_token, warp_values, warp_tokens, (i + 1) & 1)


@kernel(dependent_launch=True)
def log_probabilities_of_parts_kernel(
    logits, token_ids, top, part_peaks, part_sums, part_ranks, part_values, part_tokens, chosen, rank, top_token_ids, top_values
):  # fmt: skip
    """Arrays of the parts as above, part_values and part_tokens [R, parts * top]; results as in LogProbabilities. One block per row."""
    wait_for_predecessors()
    warp_values, warp_tokens = cuda.shared.array((2, WARPS), float32), cuda.shared.array((2, WARPS), int32)
    sums, ranks = cuda.shared.array(WARP, float32), cuda.shared.array(WARP, float32)
    x, tokens = cuda.local.array(VALUES, float32), cuda.local.array(VALUES, int32)
    row, thread, parts = cuda.blockIdx.x, int32(cuda.threadIdx.x), int32(part_peaks.shape[1])
    peak = float32(-np.inf)
    for part in range(parts):
        peak = max(peak, part_peaks[row, part])
    shift = finite_or_zero(peak)
    total = larger = float32(0.0)
    part = thread
    while part < parts:
        if part_sums[row, part] != float32(0.0):  # NaN too
            total += part_sums[row, part] * math.exp(finite_or_zero(part_peaks[row, part]) - shift)
        larger += float32(part_ranks[row, part])
        part += THREADS
    total, larger = block_sum(total, sums), block_sum(larger, ranks)
    log_total = float32(0.0)
    if total != float32(0.0):
        log_total = math.log(total) if total < float32(np.inf) else float32(np.nan)
    if thread == 0:
        chosen[row] = (logits[row, max(token_ids[row], 0)] - shift) - log_total
        rank[row] = int32(larger) + 1
    if top > 0:
        for i in range(VALUES):
            x[i], tokens[i] = float32(np.nan), int32(NO_TOKEN)
            if i * THREADS + thread < parts * top:
                x[i], tokens[i] = part_values[row, i * THREADS + thread], part_tokens[row, i * THREADS + thread]
        best, best_token = float32(np.inf), int32(-1)
        mine, my_token = thread_best(x, tokens, best, best_token)
        for i in range(top):
            if my_token == best_token:
                mine, my_token = thread_best(x, tokens, best, best_token)
            best, best_token = block_best(mine, my_token, warp_values, warp_tokens, i & 1)
            if thread == 0:  # NO_TOKEN: the other logits are NaN
                top_token_ids[row, i] = 0 if best_token == NO_TOKEN else best_token
                top_values[row, i] = (best - shift) - log_total


@dataclass
class LogProbabilitiesScratch:
    """The results of the parts of each row, which the second launch reduces."""

    peaks: Array  # float32 [R, parts]
    sums: Array  # float32 [R, parts]
    ranks: Array  # int32 [R, parts]
    values: Array  # float32 [R, parts, top]
    tokens: Array  # int32 [R, parts, top]

    @classmethod
    def allocate(cls, empty, rows: int, vocab: int, top: int) -> "LogProbabilitiesScratch":
        """Allocate with `empty(shape, dtype)`, for instance np.empty or a device pool's."""
        parts, best = (rows, parts_of(vocab)), (rows, parts_of(vocab), max(top, 1))
        shapes = (parts, np.float32), (parts, np.float32), (parts, np.int32), (best, np.float32), (best, np.int32)
        return cls(*(empty(shape, dtype) for shape, dtype in shapes))


def log_probabilities(logits, token_ids, out: LogProbabilities, scratch: LogProbabilitiesScratch, stream=None) -> None:
    """Write the result of `log_probabilities_reference` to `out`; out.top is [R, top].

    All arrays are NumPy, or on one device. Raises KernelArgumentError for shapes and dtypes that do not fit, or too large a `top`.
    """
    check_logits(logits)
    rows, vocab = logits.shape
    top, parts = out.top.shape[1], parts_of(vocab)
    check(top <= min(MOST, vocab), f"top is {top}; it must be at most {MOST}, and at most the vocabulary's {vocab} tokens")
    check(parts * top <= PART, f"{top} tokens of {parts} parts are {parts * top} candidates; the second launch takes {PART}")
    check_array("token_ids", token_ids, INDEX_DTYPES, rows=rows)
    check_array("chosen", out.chosen, FLOAT, rows=rows)
    check_array("rank", out.rank, INDEX_DTYPES, rows=rows)
    check_array("top_token_ids", out.top_token_ids, INDEX_DTYPES, rows=rows, top=top)
    check_array("top", out.top, FLOAT, rows=rows, top=top)
    for name in ("peaks", "sums", "ranks"):
        array = getattr(scratch, name)
        check_array(name, array, INDEX_DTYPES if name == "ranks" else FLOAT, rows=rows, parts=parts)
    check_array("values", scratch.values, FLOAT, rows=rows, parts=parts, top=max(top, 1))
    check_array("tokens", scratch.tokens, INDEX_DTYPES, rows=rows, parts=parts, top=max(top, 1))
    of_parts = (scratch.peaks, scratch.sums, scratch.ranks)
    given = (logits, token_ids, top, *of_parts)
    launch(log_probability_parts_kernel, (parts, rows), THREADS, (*given, scratch.values, scratch.tokens), stream)
    best = (scratch.values.reshape(rows, -1), scratch.tokens.reshape(rows, -1))
    launch(log_probabilities_of_parts_kernel, rows, THREADS, (*given, *best, *out), stream)
