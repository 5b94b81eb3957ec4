"""Adjusts logits before a token is chosen: bias, penalties for repetition, and bans.

b(v) is the request's bias for token v, c(v) how often v was generated so far; "seen" means generated or in the prompt:

    x_v ← x_v + b(v)                                                   (logit bias)
    x_v ← x_v / ρ  if x_v > 0  else  x_v · ρ        for seen v         (repetition penalty ρ; Keskar et al. 2019, section 4.1)
    x_v ← x_v - φ · c(v)                                               (frequency penalty φ)
    x_v ← x_v - π                                   for c(v) > 0       (presence penalty π)
    x_v ← -inf        for banned v, and while step < min_tokens for v that end the text

in the order of vLLM V1 (vllm.v1.sample.sampler), which bans first; the result is the same, because -inf stays -inf. Bytes per logit: 4
read and 4 written; a slot with penalties reads 4 + 1 more, with a bias 4, with bans 1; less than one FLOP per byte.
Threads to data: one thread per token, one grid row per batch row. out may be logits.
"""

import numpy as np
from numba import cuda, float32

from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.sampling.argmax import check_logits, check_slots
from minllm.kernels.sampling.flags import Adjustment, TokenFlag
from minllm.kernels.sampling.tensors import VOCABULARY_FIELDS, SamplingTensors
from minllm.runtime.kernel import check, kernel, launch

THREADS = 256
PENALTIES, BIAS, BANS = map(int, (Adjustment.PENALTIES, Adjustment.BIAS, Adjustment.BANS))
IN_PROMPT, ENDS, BANNED = map(int, (TokenFlag.IN_PROMPT, TokenFlag.ENDS, TokenFlag.BANNED))


def penalize_reference(logits: np.ndarray, sampling: SamplingTensors, slots: np.ndarray) -> np.ndarray:
    """The adjusted logits, float32 [R, vocab], for the slots int32 [R].

    Rows of slots without adjustments stay unchanged.
    """
    out = logits.copy()
    for row in np.flatnonzero((slots >= 0) & (sampling.adjustments[slots] != 0)):
        slot, x = slots[row], out[row]  # x [vocab] is changed in place
        adjustments, flags = sampling.adjustments[slot], sampling.token_flags[slot]
        if adjustments & Adjustment.BIAS:
            x += sampling.logit_bias[slot]
        if adjustments & Adjustment.PENALTIES:
            counts, repetition = sampling.output_counts[slot], sampling.repetition_penalty[slot]
            seen = (flags & TokenFlag.IN_PROMPT > 0) | (counts > 0)
            with np.errstate(over="ignore"):
                x[seen] = np.where(x > 0, x / repetition, x * repetition)[seen]
            x -= sampling.frequency_penalty[slot] * counts.astype(np.float32)
            x -= sampling.presence_penalty[slot] * (counts > 0)
        if adjustments & Adjustment.BANS:
            x[flags & TokenFlag.BANNED > 0] = -np.inf
            if sampling.step[slot] < sampling.min_tokens[slot]:
                x[flags & TokenFlag.ENDS > 0] = -np.inf
    return out


@kernel(dependent_launch=True)
def penalize_kernel(
    logits, slots, adjustments, token_flags, output_counts, logit_bias, repetition_penalty, presence_penalty, frequency_penalty,
    step, min_tokens, out,
):  # fmt: skip
    """logits, out float32 [R, vocab]; slots int32 [R]; token_flags uint8, output_counts int32, logit_bias float32 [S, vocab];
    penalties float32, adjustments, step, min_tokens int32 [S]."""
    wait_for_predecessors()
    token = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    row = cuda.blockIdx.y
    slot = slots[row]
    if token < logits.shape[1]:
        x = logits[row, token]
        kinds = adjustments[slot] if slot >= 0 else 0
        if kinds & BIAS:
            x += logit_bias[slot, token]
        if kinds & PENALTIES:
            count = output_counts[slot, token]
            # exercise: sampling.penalties
            if count > 0 or token_flags[slot, token] & IN_PROMPT:
                if x > float32(0.0):
                    x = x / repetition_penalty[slot]
                else:
                    x = x * repetition_penalty[slot]
            x -= frequency_penalty[slot] * float32(count)
            if count > 0:
                x -= presence_penalty[slot]
            # end exercise
        if kinds & BANS:
            flags = token_flags[slot, token]
            if flags & BANNED or (flags & ENDS and step[slot] < min_tokens[slot]):
                x = float32(-np.inf)
        out[row, token] = x


def penalize(logits, sampling: SamplingTensors, slots, out, stream=None) -> None:
    """Write the adjusted logits, float32 [R, vocab], to `out`, which may be `logits`.

    `sampling` must have its vocabulary arrays. Raises KernelArgumentError for shapes that do not fit.
    """
    check_logits(logits)
    check(tuple(out.shape) == tuple(logits.shape), f"out is {tuple(out.shape)}; it must be like the logits, {tuple(logits.shape)}")
    rows, vocab = logits.shape
    check_slots(slots, rows)
    wide = sampling.token_flags, sampling.output_counts, sampling.logit_bias
    for name, array in zip(VOCABULARY_FIELDS, wide, strict=True):
        shape = (sampling.adjustments.shape[0], vocab)
        fits = array is not None and tuple(array.shape) == shape
        given = None if array is None else tuple(array.shape)
        check(fits, f"{name} is {given}; it must be {shape}: see SamplingTensors.with_vocabulary_arrays")
    penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
    arguments = (logits, slots, sampling.adjustments, *wide, *penalties, sampling.step, sampling.min_tokens, out)
    launch(penalize_kernel, (-(-vocab // THREADS), rows), THREADS, arguments, stream)
