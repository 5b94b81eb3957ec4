"""RMSNorm with output quantised for W8A8 in the same kernel: a code per number and a scale per token.

    r = x + residual                                       rounded to the dtype, and kept: the next layer adds to it
    y = r / sqrt(mean(r**2) + epsilon) * weight            float32, not rounded
    scale = max |y| / largest        code = round(y / scale)        largest: 127 (int8), 448 (fp8)

T tokens of H elements of b bytes: about 10 T H FLOPs; reads x, residual and weight, writes residual and codes: (3 b + 1) T H + b H bytes;
the norm followed by a quantising kernel would move (5 b + 1) T H. Threads and registers as in rms_norm.py; the maximum takes one
more exchange through shared memory. A row that is too long for registers, or not aligned, is normalised and then quantised by two kernels.

Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", equation 4; quantization/int8.py and fp8.py for the codes.
"""

import functools

import numpy as np
from numba import cuda, float32, uint32
from numba.cuda import libdevice

from minllm.kernels.arguments import FLOAT_DTYPES, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.matmul.quantized.rows import WORDS, QuantizedRows, make_write_codes, quantize_rows
from minllm.kernels.normalization.rms_norm import rms_norm
from minllm.kernels.normalization.row import LONG_BLOCK, SHORT_BLOCK, row_in_short_block
from minllm.kernels.reduction import block_sum
from minllm.kernels.vector import load_words, vector_access, vector_unpack
from minllm.runtime.kernel import kernel, launch
from minllm.tiles.warp import WARP

# Up to this many rows long blocks are faster within a step. The 8B shape in fp8 on an H200, with short and with long blocks: 2,979 and
# 2,934 µs for 16 sequences, 3,540 and 3,571 for 64.
FEW_ROWS = 32


@functools.cache
def rms_norm_quantized_kernel(code: str, dtype: np.dtype, pieces: int, has_residual: bool):
    """The kernel in which each thread holds `pieces` vectors of the row; code: "int8" or "fp8"."""
    (width, _, store), unpack = vector_access(dtype), vector_unpack(dtype)
    held, held_words, write_codes = pieces * width, pieces * WORDS, make_write_codes(code, width, pieces)

    @kernel(launch_bounds=(LONG_BLOCK, 1), dependent_launch=True)
    def rms_norm_quantized_kernel(x, residual, weight, codes, scales, epsilon):
        """x, residual: [T, H]; weight: [H]; codes: [T, H]; scales: [T]; one block per token."""
        token, hidden = cuda.blockIdx.x, x.shape[1]
        row, squares, partials = token * hidden, cuda.shared.array(WARP, float32), cuda.shared.array(WARP, float32)
        values, other = cuda.local.array(held, float32), cuda.local.array(width, float32)
        words, addends, weights = (
            cuda.local.array(held_words, uint32), cuda.local.array(held_words, uint32), cuda.local.array(held_words, uint32)
        )  # fmt: skip
        for piece in range(pieces):
            i = (piece * cuda.blockDim.x + cuda.threadIdx.x) * width
            if i < hidden:
                load_words(weight, i, weights, piece * WORDS)  # no kernel writes the weight, so this load may overlap the preceding kernel
        wait_for_predecessors()
        for piece in range(pieces):  # all loads are in flight before the first number is looked at
            i = (piece * cuda.blockDim.x + cuda.threadIdx.x) * width
            if i < hidden:
                load_words(x, row + i, words, piece * WORDS)
                if has_residual:
                    load_words(residual, row + i, addends, piece * WORDS)
        sum_of_squares = float32(0)
        for piece in range(pieces):
            i, at = (piece * cuda.blockDim.x + cuda.threadIdx.x) * width, piece * width
            if i < hidden:
                unpack(words, piece * WORDS, values, at)
                if has_residual:
                    unpack(addends, piece * WORDS, other, 0)
                    for k in range(width):
                        values[at + k] += other[k]
                    store(residual, row + i, values, at)
                for k in range(width):
                    sum_of_squares += values[at + k] * values[at + k]
        inverse_rms = libdevice.rsqrtf(block_sum(sum_of_squares, squares) / float32(hidden) + epsilon)
        for piece in range(pieces):
            if (piece * cuda.blockDim.x + cuda.threadIdx.x) * width < hidden:
                unpack(weights, piece * WORDS, other, 0)
                for k in range(width):
                    values[piece * width + k] *= inverse_rms * other[k]
        write_codes(values, token, codes, scales, partials)

    return rms_norm_quantized_kernel


def rms_norm_quantized(x, weight, empty, epsilon, residual=None, stream=None, code: str = "int8") -> QuantizedRows:
    """The QuantizedRows of the RMSNorm of `x` [T, hidden]; empty(shape, dtype) makes arrays.

    residual [T, hidden]: if given, first residual += x, in place. weight: [hidden]. These share one dtype: float32, float16 or bfloat16.
    code: "int8" or "fp8". Raises KernelArgumentError for anything else.
    """
    check_array("x", x, FLOAT_DTYPES, tokens=None, hidden=None)
    tokens, hidden = x.shape
    check_array("weight", weight, (x.dtype,), hidden=hidden)
    if residual is not None:
        check_array("residual", residual, (x.dtype,), tokens=tokens, hidden=hidden)
    wanted = LONG_BLOCK if tokens <= FEW_ROWS else SHORT_BLOCK
    shape = row_in_short_block(hidden, vector_access(x.dtype)[0], x, x if residual is None else residual, weight, wanted=wanted)
    if not shape:
        out = empty(x.shape, x.dtype)
        rms_norm(x, weight, out, epsilon, residual, stream)
        return quantize_rows(out, empty, stream, code)
    rows = QuantizedRows(empty(x.shape, np.dtype(np.uint8)), empty((tokens,), np.dtype(np.float32)))
    threads, pieces = shape
    chosen = rms_norm_quantized_kernel(code, x.dtype, pieces, residual is not None)
    launch(chosen, tokens, threads, (x, x if residual is None else residual, weight, *rows, float(epsilon)), stream)
    return rows
