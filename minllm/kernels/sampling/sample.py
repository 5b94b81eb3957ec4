"""The next token of every row: penalties, thresholds, and one argmax.

A greedy row (T = 0) takes the largest logit, the lowest id among equals. A row that draws takes

    argmax_v  x_v + T · g_v      over tokens v with x_v ≥ threshold,      g_v = -log(-log u_v) independent uniforms u_v,

which is a draw from softmax(x / T) over those tokens (the Gumbel-max trick: Gumbel 1954; Maddison, Tarlow, Minka, "A* sampling", NIPS
2014, section 2). It needs neither the softmax's sum nor a scan, so its result does not depend on the order in which tokens are visited:
the GPU, the simulator and NumPy pick the same token from the same logits.

4 bytes per logit; about 200 integer and 60 floating-point operations per four tokens, for the noise. Threads to data: as in argmax, a
row spans several blocks; a thread makes the noise of its four tokens with one call of Philox.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda, float32, int32, uint32

from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.sampling.argmax import (
    NO_TOKEN,
    PART,
    QUADS_PER_THREAD,
    THREADS,
    argmax,
    argmax_of_parts_kernel,
    argmax_reference,
    check_parts,
    load_quad,
    parts_of,
    store_block_argmax,
)  # fmt: skip
from minllm.kernels.sampling.penalties import penalize, penalize_reference
from minllm.kernels.sampling.philox import gumbel, gumbel_reference, philox_4x32
from minllm.kernels.sampling.tensors import SamplingTensors
from minllm.kernels.sampling.thresholds import thresholds_reference, write_thresholds
from minllm.runtime.kernel import kernel, launch
from minllm.tiles.warp import WARP


def sample_reference(logits: np.ndarray, sampling: SamplingTensors) -> np.ndarray:
    """Draw one token per row: float32 logits [R, vocab] -> int32 [R]. Changes neither the logits nor the sampling tensors."""
    x = penalize_reference(logits, sampling)
    token_ids = argmax_reference(x)
    if sampling.all_greedy:
        return token_ids
    thresholds = thresholds_reference(x, sampling)
    for row in np.flatnonzero(sampling.temperature > 0):
        kept = np.flatnonzero(x[row] >= thresholds[row])
        if len(kept):
            noise = gumbel_reference(sampling.seed[row], int(sampling.step[row]), kept)
            token_ids[row] = kept[np.argmax(x[row, kept] + sampling.temperature[row] * noise)]
    return token_ids


@kernel(dependent_launch=True)
def draw_parts_kernel(logits, thresholds, temperature, seed, step, part_values, part_tokens):
    """logits float32 [R, vocab]; thresholds, temperature float32 [R]; seed uint32 [R, 2]; step int32 [R]; part_* [R, parts]."""
    wait_for_predecessors()
    row = cuda.blockIdx.y
    scale = temperature[row]
    threshold = thresholds[row]
    first = int32(cuda.blockIdx.x * PART + cuda.threadIdx.x * 4)
    best = float32(-np.inf)
    best_token = int32(NO_TOKEN)
    for pass_ in range(QUADS_PER_THREAD):
        token = int32(first + pass_ * (THREADS * 4))
        quad = load_quad(logits, row, token)
        if scale > float32(0.0):
            words = philox_4x32(uint32(token >> 2), uint32(step[row]), uint32(0), uint32(0), seed[row, 0], seed[row, 1])
            for i in range(4):
                if quad[i] >= threshold:
                    score = quad[i] + scale * gumbel(words[i])
                    if score > best:
                        best = score
                        best_token = int32(token + i)
        else:
            for i in range(4):
                if quad[i] > best:
                    best = quad[i]
                    best_token = int32(token + i)
    store_block_argmax(best, best_token, part_values, part_tokens)


@dataclass
class SampleScratch:
    """Buffers that `sample` needs besides its arguments; see `SampleScratch.allocate`."""

    penalized: Any  # float32 [R, vocab], or None without penalties and bans
    thresholds: Any  # float32 [R], or None if every row is greedy
    part_values: Any  # float32 [R, parts]
    part_tokens: Any  # int32 [R, parts]

    @classmethod
    def allocate(cls, empty, rows: int, vocab: int, sampling: SamplingTensors) -> "SampleScratch":
        """Allocate with `empty(shape, dtype)`, for instance np.empty or a device pool's."""
        changes_logits = sampling.penalized or sampling.bans_stop_tokens
        return cls(
            penalized=empty((rows, vocab), np.float32) if changes_logits else None,
            thresholds=None if sampling.all_greedy else empty((rows,), np.float32),
            part_values=empty((rows, parts_of(vocab)), np.float32),
            part_tokens=empty((rows, parts_of(vocab)), np.int32),
        )


def sample(logits, sampling: SamplingTensors, out, scratch: SampleScratch, stream=None) -> None:
    """Write one token per row to out int32 [R]; logits float32 [R, vocab] stay unchanged. All arrays are NumPy, or on one device."""
    check_parts(logits, out, scratch.part_values, scratch.part_tokens)
    rows, vocab = logits.shape
    if scratch.penalized is not None:
        penalize(logits, sampling, scratch.penalized, stream)
        logits = scratch.penalized
    if sampling.all_greedy:
        argmax(logits, out, scratch.part_values, scratch.part_tokens, stream)
        return
    write_thresholds(logits, sampling, scratch.thresholds, stream)
    random = (sampling.temperature, sampling.seed, sampling.step)
    parts = (scratch.part_values, scratch.part_tokens)
    launch(draw_parts_kernel, (parts_of(vocab), rows), THREADS, (logits, scratch.thresholds, *random, *parts), stream)
    launch(argmax_of_parts_kernel, rows, WARP, (*parts, out), stream)
