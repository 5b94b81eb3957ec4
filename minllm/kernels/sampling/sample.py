"""The next token of every row: penalties, thresholds, and one argmax.

A greedy row (T = 0) takes the largest logit, the lowest id among equals. A row from which no token can be chosen gives NOT_FINITE or
NOTHING_ALLOWED, as in argmax.py, by its logits after the penalties. A row that draws takes

    argmax_v  x_v + T · g_v      over tokens v with x_v ≥ threshold,      g_v = -log(-log u_v) independent uniforms u_v,

which is a draw from softmax(x / T) over those tokens (the Gumbel-max trick: Gumbel 1954; Maddison, Tarlow, Minka, "A* sampling", NIPS
2014, section 2). It needs neither the softmax's sum nor a scan, so its result does not depend on the order in which tokens are visited:
the GPU, the simulator and NumPy pick the same token from the same logits.

4 bytes per logit; about 200 integer and 60 floating-point operations per four tokens, for the noise. Threads to data: as in argmax, a
row spans several blocks; a thread computes the noise of its four tokens with one call of Philox.
"""

from dataclasses import dataclass

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
    nan_as_infinity,
    parts_of,
    store_block_argmax,
)  # fmt: skip
from minllm.kernels.sampling.penalties import penalize, penalize_reference
from minllm.kernels.sampling.philox import gumbel, gumbel_reference, philox_4x32
from minllm.kernels.sampling.tensors import SamplingKind, SamplingTensors
from minllm.kernels.sampling.thresholds import thresholds_reference, write_thresholds
from minllm.runtime.array_protocol import Array
from minllm.runtime.kernel import kernel, launch
from minllm.tiles.warp import WARP

LOGITS_TOGETHER = 2**17  # sample_reference makes the noise of rows with at most so many logits at once, which bounds its memory


def sample_reference(logits: np.ndarray, sampling: SamplingTensors, slots: np.ndarray) -> np.ndarray:
    """One token per row, int32 [R], from float32 logits [R, vocab], for the slots int32 [R]; 0 for slot -1. Changes no argument.

    A row from which no token can be chosen gives NOTHING_ALLOWED or NOT_FINITE.
    """
    x = penalize_reference(logits, sampling, slots) if sampling.kind is SamplingKind.ADJUSTED else logits
    token_ids = np.where(slots >= 0, argmax_reference(x), np.int32(0))
    if sampling.kind is SamplingKind.GREEDY:
        return token_ids
    thresholds = thresholds_reference(x, sampling, slots)
    drawn = np.flatnonzero((slots >= 0) & (sampling.temperature[slots] > 0) & (token_ids >= 0))
    together = max(1, LOGITS_TOGETHER // x.shape[1])
    for first in range(0, len(drawn), together):
        rows = drawn[first : first + together]
        slot, kept = slots[rows], x[rows] >= thresholds[rows, None]
        tokens = np.flatnonzero(kept.any(axis=0))
        noise = gumbel_reference(sampling.seed[slot], sampling.step[slot], tokens)
        perturbed = x[rows[:, None], tokens] + sampling.temperature[slot, None] * noise
        token_ids[rows] = tokens[np.argmax(np.where(kept[:, tokens], perturbed, np.float32(-np.inf)), axis=1)]
    return token_ids


@kernel(dependent_launch=True)
def draw_parts_kernel(logits, slots, thresholds, temperature, seed, step, part_values, part_tokens):
    """logits float32 [R, vocab]; slots int32, thresholds float32 [R]; temperature float32, step int32 [S]; seed uint32 [S, 2];
    part_* [R, parts]."""
    wait_for_predecessors()
    row = cuda.blockIdx.y
    slot = slots[row]
    first = int32(cuda.blockIdx.x * PART + cuda.threadIdx.x * 4)
    best = float32(-np.inf)
    best_token = int32(NO_TOKEN)
    if slot >= 0:
        scale = temperature[slot]
        threshold = thresholds[row]
        for pass_ in range(QUADS_PER_THREAD):
            token = int32(first + pass_ * (THREADS * 4))
            quad = load_quad(logits, row, token)
            if scale > float32(0.0):
                words = philox_4x32(uint32(token >> 2), uint32(step[slot]), uint32(0), uint32(0), seed[slot, 0], seed[slot, 1])
                for i in range(4):
                    x = nan_as_infinity(quad[i])
                    if not x < threshold and token + i < logits.shape[1]:  # a row of NaN alone may have NaN as its threshold
                        score = x + scale * gumbel(words[i])
                        if score > best:
                            best = score
                            best_token = int32(token + i)
            else:
                for i in range(4):
                    x = nan_as_infinity(quad[i])
                    if x > best and token + i < logits.shape[1]:
                        best = x
                        best_token = int32(token + i)
    store_block_argmax(best, best_token, part_values, part_tokens)


@dataclass
class SampleScratch:
    """Buffers that `sample` needs besides its arguments; see `SampleScratch.allocate`."""

    adjusted: Array  # float32 [R, vocab] for SamplingKind.ADJUSTED, else None
    thresholds: Array  # float32 [R], None for SamplingKind.GREEDY
    part_values: Array  # float32 [R, parts]
    part_tokens: Array  # int32 [R, parts]

    @classmethod
    def allocate(cls, empty, rows: int, vocab: int, kind: SamplingKind) -> "SampleScratch":
        """Allocate with `empty(shape, dtype)`, for instance np.empty or a device pool's."""
        return cls(
            adjusted=empty((rows, vocab), np.float32) if kind is SamplingKind.ADJUSTED else None,
            thresholds=None if kind is SamplingKind.GREEDY else empty((rows,), np.float32),
            part_values=empty((rows, parts_of(vocab)), np.float32),
            part_tokens=empty((rows, parts_of(vocab)), np.int32),
        )


def sample(logits, sampling: SamplingTensors, slots, out, scratch: SampleScratch, stream=None) -> None:
    """Write one token per row to out int32 [R]: row r of the logits, float32 [R, vocab], belongs to slots[r], int32 [R]; -1 gives token 0.

    Launches the kernels of `sampling.kind`. All arrays are NumPy, or on one device; the logits stay unchanged.
    """
    check_parts(logits, slots, out, scratch.part_values, scratch.part_tokens)
    rows, vocab = logits.shape
    if sampling.kind is SamplingKind.GREEDY:
        argmax(logits, slots, out, scratch.part_values, scratch.part_tokens, stream)
        return
    if sampling.kind is SamplingKind.ADJUSTED:
        penalize(logits, sampling, slots, scratch.adjusted, stream)
        logits = scratch.adjusted
    write_thresholds(logits, sampling, slots, scratch.thresholds, stream)
    random = (sampling.temperature, sampling.seed, sampling.step)
    parts = (scratch.part_values, scratch.part_tokens)
    launch(draw_parts_kernel, (parts_of(vocab), rows), THREADS, (logits, slots, scratch.thresholds, *random, *parts), stream)
    launch(argmax_of_parts_kernel, rows, WARP, (*parts, slots, out), stream)
