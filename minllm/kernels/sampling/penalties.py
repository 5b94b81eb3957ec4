"""Penalties for repeating, and the ban on stopping early.

With c(v) how often token v was generated so far, and "seen" meaning generated or in the prompt:

    x_v ← x_v / ρ  if x_v > 0  else  x_v · ρ        for seen v         (repetition penalty ρ; Keskar et al. 2019, section 4.1)
    x_v ← x_v - φ · c(v)                                               (frequency penalty φ)
    x_v ← x_v - π                                   for c(v) > 0       (presence penalty π)
    x_v ← -inf        for stop tokens v while step < min_tokens

in this order, as vLLM and Hugging Face define them. Bytes: 4 + 1 + 4 read and 4 written per logit, less than one FLOP a byte.
Mapping: a thread a token, a grid row a row of the batch; the ban is one small block a row. Both may work in place.
"""

import numpy as np

from minllm.kernels.sampling.tensors import SamplingTensors


def penalize_reference(logits: np.ndarray, sampling: SamplingTensors) -> np.ndarray:
    """Penalised logits, float32 [R, vocab]; the input itself if no row asks for anything."""
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
