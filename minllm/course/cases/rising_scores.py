"""Online softmax that is right or wrong depending on the order of the keys."""

import numpy as np
from numba import cuda, float32

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import Mismatch, expect
from minllm.ptx import ex2
from minllm.runtime.kernel import kernel
from minllm.sim import unwritten

LOG2_E = 1.4426950408889634
MINUS_INFINITY = -np.inf
TILE = 4  # keys


@kernel
def online_softmax_kernel(scores, values, out):
    """out = softmax(scores) @ values, TILE keys at a time, one thread per component; scores [keys], values [keys, head_dim]."""
    i = cuda.threadIdx.x
    maximum, total, result = float32(MINUS_INFINITY), float32(0.0), float32(0.0)
    for first in range(0, scores.shape[0], TILE):
        new_maximum = maximum
        for key in range(first, min(first + TILE, scores.shape[0])):
            new_maximum = max(new_maximum, scores[key])
        correction = ex2((maximum - new_maximum) * float32(LOG2_E))  # earlier weights are relative to the old maximum
        total = total * correction
        for key in range(first, min(first + TILE, scores.shape[0])):
            weight = ex2((scores[key] - new_maximum) * float32(LOG2_E))
            total += weight
            result += weight * values[key, i]
        maximum = new_maximum
    out[i] = result / total


@kernel
def mended_kernel(scores, values, out):
    """The same, but the output is rescaled too."""
    i = cuda.threadIdx.x
    maximum, total, result = float32(MINUS_INFINITY), float32(0.0), float32(0.0)
    for first in range(0, scores.shape[0], TILE):
        new_maximum = maximum
        for key in range(first, min(first + TILE, scores.shape[0])):
            new_maximum = max(new_maximum, scores[key])
        correction = ex2((maximum - new_maximum) * float32(LOG2_E))
        total = total * correction
        result = result * correction
        for key in range(first, min(first + TILE, scores.shape[0])):
            weight = ex2((scores[key] - new_maximum) * float32(LOG2_E))
            total += weight
            result += weight * values[key, i]
        maximum = new_maximum
    out[i] = result / total


def examine(kernel):
    """The same keys in three orders: falling scores, original order, rising scores."""
    random = np.random.default_rng(0)
    scores, values = (random.standard_normal(shape).astype(np.float32) for shape in (9, (9, 8)))
    weights = np.exp(np.float64(scores))
    expected = weights / weights.sum() @ values
    complaints = {}
    for order, keys in (("falling", np.argsort(-scores)), ("as they come", np.arange(9)), ("rising", np.argsort(scores))):
        out = unwritten((8,), np.float32)
        kernel.simulate[1, 8](scores[keys], values[keys], out)
        try:
            expect("out", out, expected, ("component",))
            complaints[order] = "right"
        except Mismatch as error:
            complaints[order] = str(error).splitlines()[0]
    if set(complaints.values()) != {"right"}:
        raise Mismatch("\n".join(f"scores {order}: {complaint}" for order, complaint in complaints.items()))


CASE = Case(
    name="rising_scores",
    lesson=7,
    title="Right in the morning, wrong in the evening",
    story="This attention is right for short prompts, and for some long ones. Others come out wrong, though nothing is NaN and nothing "
    "overflows: it is as if the beginning of the prompt counted for too much. Putting the most important sentence first makes "
    "the error disappear.",
    hint="Softmax does not care about the order of its keys, so this kernel must not either. Which of its running numbers are measured "
    "from the maximum, and which of them learn that it has changed?",
    broken=online_softmax_kernel,
    mended=mended_kernel,
    examine=examine,
    guilty="total = total * correction",
    solution="The running result is a sum of weights times values, and those weights were measured from the old maximum, as the "
    "running total's were. When a tile brings a larger score, both have to be multiplied by exp(old maximum - new maximum). "
    "Here only the total is. What the early tiles brought stays too heavy. While the maximum does not rise after the first "
    "tile, the factor is 1 and nothing is wrong: short prompts are one tile, and an important first sentence holds the "
    "largest scores. A test with random scores of small spread may pass within its tolerance; one with rising scores cannot.",
)
