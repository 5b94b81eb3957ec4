"""Attention with one maximum for all keys, whose guard misses some scores that leave its band."""

import warnings

import numpy as np
from numba import cuda, float32, int32

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import expect
from minllm.ptx import ex2
from minllm.runtime.kernel import kernel
from minllm.sim import unwritten

TILE = 4  # keys
BAND = 60.0  # powers of 2 by which a score may exceed phi
MINUS_INFINITY = -np.inf


@kernel
def unified_kernel(scores, values, phi, out, failed):
    """out = softmax of base 2 over scores, times values, with phi in place of the maximum; one thread per component.

    scores [keys], values [keys, head_dim]; failed [1]: 1 if the caller has to compute again, with a running maximum.
    """
    i = cuda.threadIdx.x
    total, result, highest = float32(0.0), float32(0.0), float32(MINUS_INFINITY)
    for first in range(0, scores.shape[0], TILE):
        highest = float32(MINUS_INFINITY)
        for key in range(first, min(first + TILE, scores.shape[0])):
            highest = max(highest, scores[key])
            weight = ex2(scores[key] - phi)
            total += weight
            result += weight * values[key, i]
    out[i] = result / total
    if i == 0:
        failed[0] = int32(1) if highest - phi > float32(BAND) else int32(0)


@kernel
def mended_kernel(scores, values, phi, out, failed):
    """The same, but the guard sees the highest score of all tiles."""
    i = cuda.threadIdx.x
    total, result, highest = float32(0.0), float32(0.0), float32(MINUS_INFINITY)
    for first in range(0, scores.shape[0], TILE):
        for key in range(first, min(first + TILE, scores.shape[0])):
            highest = max(highest, scores[key])
            weight = ex2(scores[key] - phi)
            total += weight
            result += weight * values[key, i]
    out[i] = result / total
    if i == 0:
        failed[0] = int32(1) if highest - phi > float32(BAND) else int32(0)


def running_maximum(scores, values):
    """The way back: base-2 softmax with the true maximum, in NumPy."""
    weights = np.exp2(np.float64(scores) - scores.max())
    return weights / weights.sum() @ values


def examine(kernel):
    """Ten ordinary keys, then one score far above phi: at the end, and at the beginning."""
    random = np.random.default_rng(0)
    values = random.standard_normal((10, 8)).astype(np.float32)
    for place in (9, 1):
        scores = random.standard_normal(10).astype(np.float32)
        scores[place] = 200.0  # 2^200 is more than float32 holds
        out, failed = unwritten((8,), np.float32), unwritten((1,), np.int32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # inf / inf is what the case is about
            kernel.simulate[1, 8](scores, values, np.float32(0.0), out, failed)
        answer = running_maximum(scores, values) if failed[0] else out
        expect(f"out, the huge score at key {place}", answer, running_maximum(scores, values), ("component",))


CASE = Case(
    name="rare_nan",
    lesson=10,
    title="One answer in a thousand is NaN",
    story="Attention with a unified maximum was in use for a week. Its guard was tested: a huge score is noticed, and the tiles are "
    "computed again with a running maximum. Still about one request in a thousand ends in NaN, always one whose system prompt holds "
    "a certain word, and never one in which that word is the last.",
    hint="The test put its huge score at the end of the keys. For how long does the guard remember a score?",
    broken=unified_kernel,
    mended=mended_kernel,
    examine=examine,
    guilty="        highest = float32(MINUS_INFINITY)",
    solution="The highest score is set back to -inf at every tile, as a running maximum would not be. After the loop the guard sees "
    "the last tile alone. A huge score in an earlier tile has made a weight of infinity by then, and infinity over infinity is NaN. "
    "The highest score belongs before the loop. A guard has to be tested at every place at which its event can happen: first tile, "
    "last tile, and a tile between.",
)
