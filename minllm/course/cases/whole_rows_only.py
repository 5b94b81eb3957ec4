"""Weights with a scale per row are multiplied right; with scales per group, some features are far too loud and others too quiet."""

import numpy as np
from numba import cuda, float32

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import expect
from minllm.runtime.kernel import kernel
from minllm.sim import unwritten


@kernel
def product_kernel(x, codes, scales, groups, out):
    """out [outputs] of x [inputs], codes [outputs, inputs] less their zero, scales [outputs * groups]; one thread per output."""
    n, total = cuda.threadIdx.x, float32(0)
    group_size = x.shape[0] // groups
    for k in range(x.shape[0]):
        scale = scales[k // group_size * out.shape[0] + n]
        total += x[k] * float32(codes[n, k]) * scale
    out[n] = total


@kernel
def mended_kernel(x, codes, scales, groups, out):
    """The same, with the scales of an output side by side, as they are stored."""
    n, total = cuda.threadIdx.x, float32(0)
    group_size = x.shape[0] // groups
    for k in range(x.shape[0]):
        scale = scales[n * groups + k // group_size]
        total += x[k] * float32(codes[n, k]) * scale
    out[n] = total


def examine(kernel):
    """A scale for each row, then four for each row."""
    random = np.random.default_rng(0)
    outputs, inputs = 6, 32
    x, codes = random.standard_normal(inputs).astype(np.float32), random.integers(-8, 8, (outputs, inputs)).astype(np.int8)
    for groups in (1, 4):
        scales = random.uniform(0.2, 5, (outputs, groups)).astype(np.float32)
        out = unwritten((outputs,), np.float32)
        kernel.simulate[1, outputs](x, codes, scales.reshape(-1), groups, out)
        weight = codes * np.repeat(scales, inputs // groups, axis=1).astype(np.float64)
        expect(f"out, {groups} {'scales' if groups > 1 else 'scale'} per row", out, weight @ x, ("output",))


CASE = Case(
    name="whole_rows_only",
    lesson=18,
    title="Whole rows only",
    story="Checkpoints with one scale per output feature answer well. With groups of 128 inputs, meant to be more exact, the same engine "
    "prints one word for ever. No index is out of bounds, and every scale is used exactly as often as it should be.",
    hint="The scales are one flat array. Which two are neighbours in it: two groups of an output, or two outputs of a group? And when does "
    "that make no difference?",
    broken=product_kernel,
    mended=mended_kernel,
    examine=examine,
    guilty="scale = scales[k // group_size * out.shape[0] + n]",
    solution="The scales are stored [outputs, groups], and this line reads them as [groups, outputs]. Both have the same number of "
    "elements, so nothing is out of bounds; with one group both are the same, so whole rows pass. Files do differ: AWQ and GPTQ store "
    "[groups, outputs], compressed-tensors [outputs, groups]. A reader of foreign files transposes, and must not merely reshape. Scales "
    "of very different size, as in this test, show it at once; scales that are all about equal hide it.",
)
