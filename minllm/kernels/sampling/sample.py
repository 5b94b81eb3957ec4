"""The next token of every row: penalties, thresholds, and one argmax.

A greedy row (T = 0) takes the largest logit, the lowest id among equals. A row that draws takes

    argmax_v  x_v + T · g_v      over tokens v with x_v ≥ threshold,      g_v = -log(-log u_v) independent uniforms u_v,

which is a draw from softmax(x / T) over those tokens (the Gumbel-max trick: Gumbel 1954; Maddison, Tarlow, Minka, "A* sampling", NIPS
2014, section 2). It needs neither the softmax's sum nor a scan, so its result does not depend on the order in which tokens are visited:
the GPU, the simulator and NumPy pick the same token from the same logits.
"""

import numpy as np

from minllm.kernels.sampling.penalties import penalize_reference
from minllm.kernels.sampling.philox import gumbel_reference
from minllm.kernels.sampling.tensors import SamplingTensors
from minllm.kernels.sampling.thresholds import thresholds_reference


def sample_reference(logits: np.ndarray, sampling: SamplingTensors) -> np.ndarray:
    """Draw one token per row: float32 logits [R, vocab] -> int32 [R]. Neither the logits nor the sampling tensors are changed."""
    x = penalize_reference(logits, sampling)
    token_ids = np.nanargmax(np.where(np.isnan(x), -np.inf, x), axis=1).astype(np.int32)
    if sampling.all_greedy:
        return token_ids
    thresholds = thresholds_reference(x, sampling)
    for row in np.flatnonzero(sampling.temperature > 0):
        kept = np.flatnonzero(x[row] >= thresholds[row])
        if len(kept):
            noise = gumbel_reference(sampling.seed[row], int(sampling.step[row]), kept)
            token_ids[row] = kept[np.argmax(x[row, kept] + sampling.temperature[row] * noise)]
    return token_ids
