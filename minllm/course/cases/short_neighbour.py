"""Split attention that is right for each sequence alone, and NaN for a short one beside a long one."""

import numpy as np
from numba import cuda, float32

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import expect
from minllm.ptx import ex2
from minllm.runtime.kernel import kernel
from minllm.sim import unwritten

LOG2_E = 1.4426950408889634
MINUS_INFINITY = -np.inf
SPLIT = 8  # keys per split
HEAD_DIM = 8


@kernel
def split_kernel(scores, values, context_lens, maxima, sums, parts):
    """Softmax of each split by itself, one block per (split, sequence), one thread per component.

    scores [sequences, keys], values [sequences, keys, head_dim]; maxima, sums [sequences, splits], parts [sequences, splits, head_dim].
    """
    split, sequence, i = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    first = split * SPLIT
    stop = min(first + SPLIT, context_lens[sequence])
    if first >= stop:
        return  # this split has no keys
    maximum = float32(MINUS_INFINITY)
    for key in range(first, stop):
        maximum = max(maximum, scores[sequence, key])
    total, part = float32(0.0), float32(0.0)
    for key in range(first, stop):
        weight = ex2((scores[sequence, key] - maximum) * float32(LOG2_E))
        total += weight
        part += weight * values[sequence, key, i]
    parts[sequence, split, i] = part
    if i == 0:
        maxima[sequence, split], sums[sequence, split] = maximum, total


@kernel
def mended_kernel(scores, values, context_lens, maxima, sums, parts):
    """The same, but a split without keys writes the empty state: sum and part 0, maximum -inf."""
    split, sequence, i = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    first = split * SPLIT
    stop = min(first + SPLIT, context_lens[sequence])
    maximum = float32(MINUS_INFINITY)
    for key in range(first, stop):
        maximum = max(maximum, scores[sequence, key])
    total, part = float32(0.0), float32(0.0)
    for key in range(first, stop):
        weight = ex2((scores[sequence, key] - maximum) * float32(LOG2_E))
        total += weight
        part += weight * values[sequence, key, i]
    parts[sequence, split, i] = part
    if i == 0:
        maxima[sequence, split], sums[sequence, split] = maximum, total


@kernel
def merge_kernel(maxima, sums, parts, out):
    """out [sequences, head_dim] = the splits of a sequence, rescaled to one maximum and added. It is right."""
    sequence, i = cuda.blockIdx.x, cuda.threadIdx.x
    maximum = float32(MINUS_INFINITY)
    for split in range(maxima.shape[1]):
        maximum = max(maximum, maxima[sequence, split])
    total, result = float32(0.0), float32(0.0)
    for split in range(maxima.shape[1]):
        correction = ex2((maxima[sequence, split] - maximum) * float32(LOG2_E))
        total += correction * sums[sequence, split]
        result += correction * parts[sequence, split, i]
    out[sequence, i] = result / total


def examine(kernel):
    """A context of 20 keys beside one of 5: three splits, only one of them used by the short context."""
    random = np.random.default_rng(0)
    scores, values = (random.standard_normal(shape).astype(np.float32) for shape in ((2, 24), (2, 24, HEAD_DIM)))
    context_lens = np.int32([20, 5])
    splits = 3
    maxima, sums, parts = (unwritten(shape, np.float32) for shape in ((2, splits), (2, splits), (2, splits, HEAD_DIM)))
    out = unwritten((2, HEAD_DIM), np.float32)
    kernel.simulate[(splits, 2), HEAD_DIM](scores, values, context_lens, maxima, sums, parts)
    merge_kernel.simulate[2, HEAD_DIM](maxima, sums, parts, out)
    weights = np.where(np.arange(24) < context_lens[:, None], np.exp(np.float64(scores)), 0)
    weights /= weights.sum(1, keepdims=True)
    expect("out", out, np.einsum("sk,ski->si", weights, values), ("sequence", "component"))


CASE = Case(
    name="short_neighbour",
    lesson=9,
    title="A bad neighbour",
    story="Each request, sent alone, is answered correctly. In a batch, the short ones are sometimes answered with nonsense, and "
    "sometimes with NaN; the longest one never is. The second batch after a restart is worse than the first.",
    hint="The number of splits is that of the longest sequence. What do the splits of a short one that lie behind its end write into "
    "the workspace, and what does the merge read there?",
    broken=split_kernel,
    mended=mended_kernel,
    examine=examine,
    guilty="return  # this split has no keys",
    solution="A split without keys returns, which looks like a saving, and leaves its place in the workspace as it was. The merge "
    "reads it: a maximum, a sum and a part of whatever used the memory before. Zeros from a fresh allocation do harm only "
    "where all true scores are below 0; the last batch's numbers always do. An empty split has a result like any other: "
    "maximum -inf, sum 0, part 0. With it the merge needs no special case, as long as at least one split has keys. The "
    "simulator's finding lies in the merge; the mend in the split.",
)
