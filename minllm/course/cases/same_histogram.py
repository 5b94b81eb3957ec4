"""A 4-bit checkpoint loads, the histogram of its weights is right, and the model speaks no language."""

import numpy as np
from numba import cuda, float32, uint32

from minllm.course.cases.case import Case
from minllm.course.checks.mismatch import expect
from minllm.runtime.kernel import kernel
from minllm.sim import unwritten

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the column of each nibble, lowest bits first, in the words of AWQ's files
MIDDLE = 8


@kernel
def unpack_kernel(words, scales, weight):
    """weight [inputs, outputs] of words [inputs, outputs / 8] and scales [outputs]; one thread per word."""
    row, at = cuda.blockIdx.x, cuda.threadIdx.x
    word = words[row, at]
    for nibble in range(8):
        column = 8 * at + nibble
        code = (word >> uint32(4 * nibble)) & uint32(15)
        weight[row, column] = (float32(code) - float32(MIDDLE)) * scales[column]


@kernel
def mended_kernel(words, scales, weight):
    """The same; nibble n holds column 2 n, or 2 n - 7 for the upper four."""
    row, at = cuda.blockIdx.x, cuda.threadIdx.x
    word = words[row, at]
    for nibble in range(8):
        column = 8 * at + 2 * (nibble & 3) + (nibble >> 2)
        code = (word >> uint32(4 * nibble)) & uint32(15)
        weight[row, column] = (float32(code) - float32(MIDDLE)) * scales[column]


def packed(codes):
    """codes [inputs, outputs], 0 to 15, in the file's words, uint32 [inputs, outputs / 8]."""
    in_order = codes.reshape(len(codes), -1, 8)[..., list(ORDER)].astype(np.uint32)
    return (in_order << (4 * np.arange(8, dtype=np.uint32))).sum(axis=-1, dtype=np.uint32)


def examine(kernel):
    """A matrix whose codes all are 8 but for those of column 1, which are 15: then random ones."""
    random = np.random.default_rng(0)
    one_column = np.full((1, 16), MIDDLE)
    one_column[:, 1] = 15
    for name, codes in (("column 1 alone", one_column), ("random codes", random.integers(0, 16, (3, 32)))):
        scales = random.uniform(1, 2, codes.shape[1]).astype(np.float32)
        weight = unwritten(codes.shape, np.float32)
        kernel.simulate[len(codes), codes.shape[1] // 8](packed(codes), scales, weight)
        expect(f"weight, {name}", weight, (codes - MIDDLE) * scales.astype(np.float64), ("input", "output"))


CASE = Case(
    name="same_histogram",
    lesson=18,
    title="The same histogram",
    story="A checkpoint in 4 bits, made by another program, loads without a complaint. Shapes fit, no scale is NaN, and the histogram of "
    "the codes is the one that its maker prints. Yet every answer is a random string of tokens, and perplexity is near the "
    "vocabulary's size. The same model in 16 bits is fine.",
    hint="A histogram does not change if numbers trade places. Take a matrix in which one column alone is not zero: where does it arrive?",
    broken=unpack_kernel,
    mended=mended_kernel,
    examine=examine,
    guilty="column = 8 * at + nibble",
    solution="The nibbles of a word are not in the order of their columns. AWQ packs columns 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits "
    "up, so that a kernel finds neighbours 16 bits apart, as a pair of half-precision numbers needs them. Read in the natural "
    "order, six of eight columns trade places within each word, and they get their neighbours' scales too. GPTQ, compressed-tensors, "
    "GGUF and bitsandbytes each have their own order: it is part of a format, as the byte order of integers is. A test with random weights "
    "against the packing code of the same author cannot find it; a matrix with one column can.",
)
