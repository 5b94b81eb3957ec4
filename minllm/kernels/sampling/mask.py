"""Masks logits: of the tokens, those that a structured output excludes get -inf.

    x_v ← x_v     if bit v mod 32 of word v // 32 of the row's mask is 1
    x_v ← -inf    otherwise

A row without a mask, with index -1, is copied. Bytes per logit: 4 read, 4 written, and 1/8 of the mask, which the host has written
(engine/requests/grammar.py). Threads to data: one thread per token, one grid row per batch row, so the 32 tokens of a word are those of a
warp, which loads it once.
"""

import numpy as np
from numba import cuda, float32

from minllm.kernels.arguments import INDEX_DTYPES, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.sampling.argmax import check_logits
from minllm.runtime.kernel import check, kernel, launch

THREADS = 256


def mask_logits_reference(logits: np.ndarray, indices: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """The masked logits, float32 [R, vocab]: row r has mask indices[r], int32 [R]; masks int32 [M, words]."""
    out, vocab = logits.copy(), logits.shape[1]
    bits = np.unpackbits(masks.astype("<i4", copy=False).view(np.uint8), axis=1, count=vocab, bitorder="little")  # [M, vocab]
    rows = np.flatnonzero(indices >= 0)
    out[rows] = np.where(bits[indices[rows]] > 0, logits[rows], np.float32(-np.inf))
    return out


@kernel(dependent_launch=True)
def mask_logits_kernel(logits, indices, masks, out):
    """logits, out float32 [R, vocab]; indices int32 [R]; masks int32 [M, words]."""
    wait_for_predecessors()
    token = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
    row = cuda.blockIdx.y
    index = indices[row]
    if token < logits.shape[1]:
        x = logits[row, token]
        if index >= 0 and (masks[index, token >> 5] >> (token & 31)) & 1 == 0:
            x = float32(-np.inf)
        out[row, token] = x


def mask_logits(logits, indices, masks, out, stream=None) -> None:
    """Write the masked logits, float32 [R, vocab], to `out`, which may be `logits`.

    indices: int32 [R], the mask of each row, -1 for none. masks: int32 [M, words of 32 tokens].
    """
    check_logits(logits)
    rows, vocab = logits.shape
    check_array("indices", indices, INDEX_DTYPES, rows=rows)
    check_array("masks", masks, INDEX_DTYPES, masks=None, words=-(-vocab // 32))
    check(tuple(out.shape) == (rows, vocab), f"out is {tuple(out.shape)}; it must be like the logits, {(rows, vocab)}")
    launch(mask_logits_kernel, (-(-vocab // THREADS), rows), THREADS, (logits, indices, masks, out), stream)
