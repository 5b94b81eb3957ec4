"""Scores with Gumbel noise: the tokens of the m largest scores are m draws without replacement.

    scores_v = log q_v + g_v,   g = -log(-log u)              rows that are drawn
    scores_v = x_v                                            greedy rows: the m largest are the likeliest tokens

The largest is a draw from q, the second largest a draw from q without the first token, renormalised, and so on: drawing without
replacement (Kool, van Hoof, Welling, "Stochastic Beams and Where to Find Them", ICML 2019, section 2.3). So the children of a node of a
draft tree are different tokens, in the order in which reject_tree.py tries them. The noise is that of sampling/sample.py.

Bytes: 12 per logit. Threads to data: one thread per four tokens and row.
"""

import numpy as np
from numba import cuda, int32, uint32

from minllm.kernels.arguments import INDEX_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.sampling.argmax import check_logits
from minllm.kernels.sampling.philox import gumbel, gumbel_reference, philox_4x32
from minllm.kernels.sampling.tensors import SamplingTensors
from minllm.kernels.speculation.distribution import FLOAT
from minllm.runtime.kernel import kernel, launch

THREADS = 128


def perturb_reference(log_q: np.ndarray, logits: np.ndarray, sampling: SamplingTensors, slots: np.ndarray) -> np.ndarray:
    """Scores, float32 [R, vocab]; log_q, logits float32 [R, vocab]; slots int32 [R]: the slot of each row's parameters, -1 for greedy."""
    scores, tokens = logits.copy(), np.arange(logits.shape[1])
    for row, slot in enumerate(slots):
        if slot >= 0 and sampling.temperature[slot] > 0:
            scores[row] = log_q[row] + gumbel_reference(sampling.seed[slot], int(sampling.step[slot]), tokens)
    return scores


@kernel(dependent_launch=True)
def perturb_kernel(log_q, logits, slots, temperature, step, seed, scores):
    """log_q, logits, scores float32 [R, vocab]; slots int32 [R]; temperature float32 [S], step int32 [S], seed uint32 [S, 2]."""
    wait_for_predecessors()
    row, first = cuda.blockIdx.y, int32(4 * (cuda.blockIdx.x * THREADS + cuda.threadIdx.x))
    slot, vocab = slots[row], int32(logits.shape[1])
    is_drawn = False
    if slot >= 0:
        is_drawn = temperature[slot] > 0
    if is_drawn and first < vocab:
        words = philox_4x32(uint32(first >> 2), uint32(step[slot]), uint32(0), uint32(0), seed[slot, 0], seed[slot, 1])
        for i in range(4):
            if first + i < vocab:
                scores[row, first + i] = log_q[row, first + i] + gumbel(words[i])
    else:
        for i in range(4):
            if first + i < vocab:
                scores[row, first + i] = logits[row, first + i]


def perturb(log_q, logits, sampling: SamplingTensors, slots, scores, stream=None) -> None:
    """Write the result of `perturb_reference` to `scores`; all arrays NumPy or all on one device."""
    check_logits(logits)
    rows, vocab = logits.shape
    check_array("slots", slots, INDEX_DTYPES, rows=rows)
    for name, array in (("log_q", log_q), ("scores", scores)):
        check_array(name, array, FLOAT, rows=rows, vocab=vocab)
    arguments = (log_q, logits, slots, sampling.temperature, sampling.step, sampling.seed, scores)
    launch(perturb_kernel, (ceil_div(vocab, 4 * THREADS), rows), THREADS, arguments, stream)
