"""SiLU and multiply with output quantised for W8A8 in the same kernel: a code per number and a scale per token.

    y = silu(gate) * up                                    float32, not rounded
    scale = max |y| / largest        code = round(y / scale)        largest: 127 (int8), 448 (fp8)

T tokens of I intermediate elements of b bytes: about 11 T I FLOPs; reads 2 T I b bytes and writes T I; SiLU followed by a quantising
kernel would move (4 b + 1) T I. One block per token; its threads hold the row in registers between the maximum and the codes; a row
that is too long for them, or not aligned, is computed and then quantised by two kernels.

On Hopper the GEMM of gate and up applies SiLU in its epilogue. No block there has a whole row, so a separate kernel quantises: 5 T I bytes
in all, compared with 9 for a GEMM that writes gate and up, followed by this kernel.

Source: Shazeer 2020, "GLU Variants Improve Transformer", equation 6; quantization/int8.py and fp8.py for the codes.
"""

import functools

import numpy as np
from numba import cuda, float32, uint32

from minllm.kernels.activation.sigmoid import sigmoid
from minllm.kernels.activation.silu import silu_and_multiply
from minllm.kernels.arguments import FLOAT_DTYPES, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.matmul.quantized.rows import WORDS, QuantizedRows, make_write_codes, quantize_rows
from minllm.kernels.normalization.row import LONG_BLOCK, row_in_short_block
from minllm.kernels.vector import load_words, vector_access, vector_unpack
from minllm.runtime.kernel import check, kernel, launch
from minllm.tiles.warp import WARP


@functools.cache
def silu_quantized_kernel(code: str, dtype: np.dtype, pieces: int):
    """The kernel in which each thread holds `pieces` vectors of the row; code: "int8" or "fp8"."""
    (width, _, _), unpack = vector_access(dtype), vector_unpack(dtype)
    held, held_words, write_codes = pieces * width, pieces * WORDS, make_write_codes(code, width, pieces)

    @kernel(launch_bounds=(LONG_BLOCK, 1), dependent_launch=True)
    def silu_quantized_kernel(gate_up, codes, scales):
        """gate_up: [T, 2 * I]; codes: [T, I]; scales: [T]; one block per token."""
        token, intermediate, partials = cuda.blockIdx.x, codes.shape[1], cuda.shared.array(WARP, float32)
        values, up, row = cuda.local.array(held, float32), cuda.local.array(width, float32), token * 2 * intermediate
        gates, ups = cuda.local.array(held_words, uint32), cuda.local.array(held_words, uint32)
        wait_for_predecessors()
        for piece in range(pieces):  # all loads are in flight before the first number is looked at
            i = (piece * cuda.blockDim.x + cuda.threadIdx.x) * width
            if i < intermediate:
                load_words(gate_up, row + i, gates, piece * WORDS)
                load_words(gate_up, row + intermediate + i, ups, piece * WORDS)
        for piece in range(pieces):
            i, at = (piece * cuda.blockDim.x + cuda.threadIdx.x) * width, piece * width
            if i < intermediate:
                unpack(gates, piece * WORDS, values, at)
                unpack(ups, piece * WORDS, up, 0)
                for k in range(width):
                    values[at + k] *= sigmoid(values[at + k]) * up[k]
        write_codes(values, token, codes, scales, partials)

    return silu_quantized_kernel


def silu_and_multiply_quantized(gate_up, empty, stream=None, code: str = "int8") -> QuantizedRows:
    """The QuantizedRows of silu(gate) * up; empty(shape, dtype) makes arrays.

    gate_up: [T, 2 * intermediate], the gate in its first half: float32, float16 or bfloat16. code: "int8" or "fp8". Raises
    KernelArgumentError for anything else.
    """
    check_array("gate_up", gate_up, FLOAT_DTYPES, tokens=None, gate_and_up=None)
    tokens, both = gate_up.shape
    check(both % 2 == 0, f"gate_up has rows of {both}, which are no gate and as many numbers that it multiplies")
    shape = row_in_short_block(both // 2, vector_access(gate_up.dtype)[0], gate_up)
    if not shape:
        out = empty((tokens, both // 2), gate_up.dtype)
        silu_and_multiply(gate_up, out, stream)
        return quantize_rows(out, empty, stream, code)
    rows = QuantizedRows(empty((tokens, both // 2), np.dtype(np.uint8)), empty((tokens,), np.dtype(np.float32)))
    threads, pieces = shape
    launch(silu_quantized_kernel(code, gate_up.dtype, pieces), tokens, threads, (gate_up, *rows), stream)
    return rows
