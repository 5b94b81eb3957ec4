"""Penalties for repetition, and min_tokens, which bans stop tokens early on.

c(v) is how often token v was generated so far; "seen" means generated or in the prompt:

    x_v ← x_v / ρ  if x_v > 0  else  x_v · ρ        for seen v         (repetition penalty ρ; Keskar et al. 2019, section 4.1)
    x_v ← x_v - φ · c(v)                                               (frequency penalty φ)
    x_v ← x_v - π                                   for c(v) > 0       (presence penalty π)
    x_v ← -inf        for stop tokens v while step < min_tokens

in this order, as vLLM and Hugging Face define them. Bytes per logit: 4 + 1 + 4 read (the 1 only if c(v) is 0) and 4 written, less
than one FLOP per byte; the ban is a separate kernel that reads and writes 4 more.
Threads to data: one thread per token, one grid row per batch row, in two kernels. Both may work in place.
"""

import numpy as np
from numba import cuda, float32, int32

from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.sampling.argmax import check_logits
from minllm.kernels.sampling.tensors import SamplingTensors
from minllm.runtime.kernel import check, kernel, launch

THREADS = 256


def penalize_reference(logits: np.ndarray, sampling: SamplingTensors) -> np.ndarray:
    """Penalised logits, float32 [R, vocab]; the input itself if no row has a penalty or a ban."""
    x = logits
    if sampling.penalized:
        counts = sampling.output_counts
        repetition, presence, frequency = (
            p[:, None] for p in (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
        )
        seen = (sampling.prompt_mask > 0) | (counts > 0)
        x = np.where(seen, np.where(x > 0, x / repetition, x * repetition), x)
        x = x - frequency * counts.astype(np.float32) - presence * (counts > 0)
    if sampling.bans_stop_tokens:
        x = x.copy() if x is logits else x
        rows, columns = np.nonzero((sampling.stop_token_ids >= 0) & (sampling.step < sampling.min_tokens)[:, None])
        x[rows, sampling.stop_token_ids[rows, columns]] = -np.inf
    return x


@kernel(dependent_launch=True)
def penalize_kernel(logits, prompt_mask, output_counts, repetition_penalty, presence_penalty, frequency_penalty, out):
    """logits, out float32 [R, vocab]; prompt_mask uint8 [R, vocab]; output_counts int32 [R, vocab]; penalties float32 [R]."""
    wait_for_predecessors()
    token = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    row = cuda.blockIdx.y
    # exercise: sampling.penalties
    if token < logits.shape[1]:
        x = logits[row, token]
        count = output_counts[row, token]
        if count > 0 or prompt_mask[row, token] > 0:
            if x > float32(0.0):
                x = x / repetition_penalty[row]
            else:
                x = x * repetition_penalty[row]
        x -= frequency_penalty[row] * float32(count)
        if count > 0:
            x -= presence_penalty[row]
        out[row, token] = x
    # end exercise


@kernel(dependent_launch=True)
def ban_stop_tokens_kernel(logits, stop_token_ids, step, min_tokens, out):
    """logits, out float32 [R, vocab]; stop_token_ids int32 [R, S], -1 = none; step, min_tokens int32 [R]."""
    wait_for_predecessors()
    token = int32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
    row = cuda.blockIdx.y
    if token < logits.shape[1]:
        x = logits[row, token]
        if step[row] < min_tokens[row]:
            for i in range(stop_token_ids.shape[1]):
                if stop_token_ids[row, i] == token:
                    x = float32(-np.inf)
        out[row, token] = x


def penalize(logits, sampling: SamplingTensors, out, stream=None) -> None:
    """Write the penalised logits, float32 [R, vocab], to `out`, which may be `logits`. Call it only if a row has a penalty or a ban."""
    check_logits(logits)
    check(tuple(out.shape) == tuple(logits.shape), f"out is {tuple(out.shape)}; it must be like the logits, {tuple(logits.shape)}")
    rows, vocab = logits.shape
    grid = (-(-vocab // THREADS), rows)
    if sampling.penalized:
        check(tuple(sampling.output_counts.shape) == (rows, vocab), f"output_counts {sampling.output_counts.shape} must be {(rows, vocab)}")
        arguments = (logits, sampling.prompt_mask, sampling.output_counts, sampling.repetition_penalty, sampling.presence_penalty)
        launch(penalize_kernel, grid, THREADS, (*arguments, sampling.frequency_penalty, out), stream)
        logits = out
    if sampling.bans_stop_tokens:
        launch(ban_stop_tokens_kernel, grid, THREADS, (logits, sampling.stop_token_ids, sampling.step, sampling.min_tokens, out), stream)
