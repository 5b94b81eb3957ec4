"""A 4-bit model answers a little worse than it should, as if every weight were larger than it is."""

import numpy as np
from numba import cuda, float32, int32, uint32

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import expect
from minllm.runtime.kernel import kernel
from minllm.sim import unwritten

GROUP = 4  # inputs that share a scale and a zero point


@kernel
def product_kernel(x, codes, scales, zero_words, out):
    """out [outputs] = weight @ x [inputs]; codes [inputs, outputs], scales [groups, outputs], zero_words [groups] of 8 4-bit zeros."""
    n, total = cuda.threadIdx.x, float32(0)
    for k in range(x.shape[0]):
        group = k // GROUP
        zero = int32((zero_words[group] >> uint32(4 * n)) & uint32(15))
        total += x[k] * float32(int32(codes[k, n]) - zero) * scales[group, n]
    out[n] = total


@kernel
def mended_kernel(x, codes, scales, zero_words, out):
    """The same with 1 added to the zero points, which the file stores minus one."""
    n, total = cuda.threadIdx.x, float32(0)
    for k in range(x.shape[0]):
        group = k // GROUP
        zero = int32((zero_words[group] >> uint32(4 * n)) & uint32(15)) + int32(1)
        total += x[k] * float32(int32(codes[k, n]) - zero) * scales[group, n]
    out[n] = total


def stored(zeros):
    """Zero points [groups, 8], 1 to 16, as such a file stores them: each minus one, eight per word, uint32 [groups]."""
    return ((zeros - 1).astype(np.uint32) << (4 * np.arange(8, dtype=np.uint32))).sum(axis=-1, dtype=np.uint32)


def examine(kernel):
    """Run the kernel on inputs that sum to zero, then on positive inputs, as they are after an activation."""
    random = np.random.default_rng(0)
    inputs, outputs = 3 * GROUP, 8
    codes, zeros = random.integers(0, 16, (inputs, outputs), np.uint8), random.integers(6, 11, (inputs // GROUP, outputs))
    scales = random.uniform(0.5, 1, zeros.shape).astype(np.float32)
    weight = (codes - np.repeat(zeros, GROUP, axis=0).astype(np.float64)) * np.repeat(scales, GROUP, axis=0)
    alternating = np.where(np.arange(inputs) % 2, -1, 1).astype(np.float32)
    for name, x in (("inputs 1, -1, 1, ...", alternating), ("positive inputs", np.ones(inputs, np.float32))):
        out = unwritten((outputs,), np.float32)
        kernel.simulate[1, outputs](x, codes, scales, stored(zeros), out)
        expect(f"out, {name}", out, x.astype(np.float64) @ weight, ("output",))


CASE = Case(
    name="slightly_bright",
    lesson=18,
    title="Slightly too bright",
    story="A GPTQ checkpoint with zero points answers in whole sentences, but its perplexity is twice that of its maker's table. A "
    "GPTQ checkpoint without zero points, in which all are 8, comes from a newer program and is fine. The test of the kernel "
    "passes: its inputs are drawn from a normal distribution, and its tolerance is that of 4 bits.",
    hint="Write the product as the sum of x times (code - zero) times scale, and add 1 to every zero. What changes if a group's x add "
    "up to 0? And if all are positive?",
    broken=product_kernel,
    mended=mended_kernel,
    examine=examine,
    guilty="zero = int32((zero_words[group] >> uint32(4 * n)) & uint32(15))",
    solution="The older version of GPTQ's format stores each zero point less one, and the newer one as it is. Here every weight comes "
    "out one step too large. An output then errs by scale times the sum of the group's inputs: nothing in the first test, "
    "whose inputs cancel, and much behind an activation. Labels in files are not always right about the version. This package asks the "
    "codes (minllm/models/quantized/gptq.py): trained weights have a mean near 0, so the mean code of a matrix is its mean zero point.",
)
