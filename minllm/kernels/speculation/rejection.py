"""Acceptance of drafts that were drawn from a distribution: speculative sampling.

Draft f_i was drawn from q_i; the model, after the drafts before it, has the distribution p_i. With a uniform number u_i for each draft:

    f_i is accepted if u_i < p_i(f_i) / q_i(f_i);   a = the number of drafts before the first that is rejected
    new tokens: f_1 .. f_a and one more, drawn from the residual  p'(v) ∝ max(p(v) - q(v), 0)  of the rejected draft, or from p if a = k

A token v is then chosen with probability q(v) min(1, p(v) / q(v)) + (1 - Σ_w min(p(w), q(w))) p'(v) = min(p(v), q(v)) + max(p(v) - q(v), 0)
= p(v): the text has the distribution of the model, whatever the drafts are. Sources: Leviathan, Kalman, Matias, "Fast Inference from
Transformers via Speculative Decoding", ICML 2023, appendix A.1; C. Chen et al., "Accelerating Large Language Model Decoding with
Speculative Sampling", 2023, theorem 1.

A row from which the sampler could choose no token (sampling/argmax.py) ends its run, and its new token says so.

The residual is sampled by the Gumbel-max trick as in sampling/sample.py: argmax of log(p(v) - q(v)) + g(v). A position has four independent
streams of random numbers, one per use, selected by the third word of Philox's counter: 0 for the sampler, 1 for u, 2 for the residual's
noise; the draft's own draws use another key (row_sampling.py's salt).

Bytes: 8 per token of the vocabulary and run. Threads to data: one block per run; its first thread finds a, all threads draw.
"""

import math

import numpy as np
from numba import cuda, float32, int32, uint32

from minllm.kernels.arguments import INDEX_DTYPES, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.sampling.argmax import NO_TOKEN, THREADS, WARPS, warp_argmax
from minllm.kernels.sampling.philox import LARGEST_UNIFORM, TWO_TO_MINUS_32, gumbel, philox_4x32, philox_reference
from minllm.kernels.sampling.tensors import SamplingTensors
from minllm.kernels.speculation.distribution import FLOAT
from minllm.kernels.speculation.runs import begins_run, run_length, runs_of
from minllm.runtime.kernel import kernel, launch

ACCEPTANCE, RESIDUAL = 1, 2  # streams of random numbers: the third word of Philox's counter


def reject_reference(
    p: np.ndarray, q: np.ndarray, chosen: np.ndarray, computed: np.ndarray, slots: np.ndarray, sampling: SamplingTensors
) -> tuple[np.ndarray, np.ndarray]:
    """(the new tokens of each run in its first rows, their number in its first row and 0 in other rows), both int32 [R].

    p: log-probabilities of the model, float32 [R, vocab]; q: those of the drafts of each slot, float32 [S, K, vocab]; chosen: a draw from
    each row's p, int32 [R]; computed: the token that each row computed, int32 [T]; slots int32 [R]. The slots' seeds and steps are those
    before the run.
    """
    tokens, counts = chosen.copy(), np.zeros(len(slots), np.int32)
    runs, steps = runs_of(slots), sampling.step[slots].astype(np.int64)
    for first, length in runs:
        steps[first : first + length] += np.arange(length)
    uniforms = acceptance_uniforms_reference(sampling.seed[slots], steps)
    for first, length in runs:
        slot = slots[first]
        counts[first] = length
        for i, draft in enumerate(computed[first + 1 : first + length]):
            place = first + i
            if chosen[place] < 0:
                counts[first] = 1 + i
                break
            with np.errstate(divide="ignore"):
                if np.log(uniforms[place]) < p[place, draft] - q[slot, i, draft]:
                    tokens[place] = draft
                    continue
                residual = np.log(np.maximum(np.exp(p[place]) - np.exp(q[slot, i]), np.float32(0)))
            if np.isfinite(residual.max()):  # otherwise p = q except for rounding, and the draw from p is kept
                tokens[place] = np.argmax(residual + residual_noise(sampling.seed[slot], steps[place], len(residual)))
            counts[first] = 1 + i
            break
    return tokens, counts


def random_words(seed: np.ndarray, quads: np.ndarray, step: int | np.ndarray, stream: int) -> np.ndarray:
    """Random words for the counters (quad, step, stream, 0): uint32 [len(quads), 4]; seed, step: of each quad, or of all."""
    counter = np.zeros((len(quads), 4), np.uint32)
    counter[:, 0], counter[:, 1], counter[:, 2] = quads, step, stream
    return philox_reference(counter, np.asarray(seed, np.uint32))


def uniform_of(words: np.ndarray) -> np.ndarray:
    """Random words converted to uniform numbers from 0 to 1, float32."""
    uniform = words.astype(np.float32) * np.float32(TWO_TO_MINUS_32) + np.float32(TWO_TO_MINUS_32 / 2)
    return np.minimum(uniform, np.float32(LARGEST_UNIFORM))


def acceptance_uniforms_reference(seeds: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """The uniform numbers, from 0 to 1, that decide whether the drafts of these steps are accepted; seeds uint32 [n, 2], steps [n]."""
    return uniform_of(random_words(seeds, np.zeros_like(steps), steps, ACCEPTANCE))[:, 0]


def residual_noise(seed: np.ndarray, step: int, vocab: int) -> np.ndarray:
    """The Gumbel noise for a draw from a residual, float32 [vocab]."""
    words = random_words(seed, np.arange(-(-vocab // 4)), step, RESIDUAL)
    return -np.log(-np.log1p(-uniform_of(words).reshape(-1)[:vocab]))


@cuda.jit(device=True)
def acceptance_uniform(seed, slot, step):
    """The uniform number, from 0 to 1, that decides whether the draft of this step is accepted."""
    word = philox_4x32(uint32(0), uint32(step), uint32(ACCEPTANCE), uint32(0), seed[slot, 0], seed[slot, 1])[0]
    return min(float32(word) * float32(TWO_TO_MINUS_32) + float32(TWO_TO_MINUS_32 / 2), float32(LARGEST_UNIFORM))


@cuda.jit(device=True)
def is_accepted(p, q, row, slot, index, draft, step, seed):
    """Whether draft number `index` of a run is accepted; row: the row of the token before it."""
    return math.log(acceptance_uniform(seed, slot, step)) < p[row, draft] - q[slot, index, draft]


@cuda.jit(device=True)
def residual_draw(p, q, row, slot, index, step, seed, warp_values, warp_tokens):
    """A draw from the residual of a rejected draft, in thread 0; NO_TOKEN if the residual is 0. warp_* [WARPS] are in shared memory."""
    best, best_token, vocab = float32(-np.inf), int32(NO_TOKEN), int32(p.shape[1])
    token = int32(cuda.threadIdx.x * 4)
    while token < vocab:
        words = philox_4x32(uint32(token >> 2), uint32(step), uint32(RESIDUAL), uint32(0), seed[slot, 0], seed[slot, 1])
        for i in range(4):
            if token + i < vocab:
                left = math.exp(p[row, token + i]) - math.exp(q[slot, index, token + i])
                if left > float32(0.0):
                    score = math.log(left) + gumbel(words[i])
                    if score > best:
                        best, best_token = score, int32(token + i)
        token += 4 * THREADS
    best, best_token = warp_argmax(best, best_token)
    if cuda.threadIdx.x & 31 == 0:
        warp_values[cuda.threadIdx.x >> 5], warp_tokens[cuda.threadIdx.x >> 5] = best, best_token
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        for warp in range(1, WARPS):
            if warp_values[warp] > best or (warp_values[warp] == best and warp_tokens[warp] < best_token):
                best, best_token = warp_values[warp], warp_tokens[warp]
    return best_token


@kernel(dependent_launch=True)
def reject_kernel(p, q, chosen, computed, slots, step, seed, tokens, counts):
    """p float32 [R, vocab]; q float32 [S, K, vocab]; chosen, slots, tokens, counts int32 [R]; computed int32 [T]; step int32 [S]; seed
    uint32 [S, 2]."""
    wait_for_predecessors()
    warp_values, warp_tokens = cuda.shared.array(WARPS, float32), cuda.shared.array(WARPS, int32)
    accepted = cuda.shared.array(1, int32)
    first, thread = int32(cuda.blockIdx.x), int32(cuda.threadIdx.x)
    if not begins_run(slots, first):
        if thread == 0:
            counts[first] = 0
            if slots[first] < 0:
                tokens[first] = chosen[first]
        return
    slot, length = slots[first], run_length(slots, first)
    if thread == 0:
        count = int32(0)
        while count + 1 < length:
            draft = computed[first + count + 1]
            if chosen[first + count] < 0 or not is_accepted(p, q, first + count, slot, count, draft, step[slot] + count, seed):
                break
            tokens[first + count] = draft
            count += int32(1)
        for row in range(first + count, first + length):
            tokens[row] = chosen[row]
        counts[first], accepted[0] = count + 1, count
    cuda.syncthreads()
    count = accepted[0]
    if count + 1 < length and chosen[first + count] >= 0:
        token = residual_draw(p, q, first + count, slot, count, step[slot] + count, seed, warp_values, warp_tokens)
        if thread == 0 and token != NO_TOKEN:
            tokens[first + count] = token


def reject(p, q, chosen, computed, slots, sampling: SamplingTensors, tokens, counts, stream=None) -> None:
    """Write the results of `reject_reference` to `tokens` and `counts`; all arrays NumPy or all on one device."""
    rows = slots.shape[0]
    check_array("p", p, FLOAT, rows=rows, vocab=None)
    check_array("q", q, FLOAT, slots=sampling.step.shape[0], drafts=None, vocab=p.shape[1])
    check_array("computed", computed, INDEX_DTYPES, tokens=None)
    for name, array in (("chosen", chosen), ("slots", slots), ("tokens", tokens), ("counts", counts)):
        check_array(name, array, INDEX_DTYPES, rows=rows)
    arrays = (p, q, chosen, computed, slots, sampling.step, sampling.seed, tokens, counts)
    launch(reject_kernel, rows, THREADS, arrays, stream)
