"""Rows of x quantised for W8A8: the largest magnitude of a row becomes the largest code.

    scale[m] = max over k of |x[m, k]| / largest        code[m, k] = round(x[m, k] / scale[m])        largest: 127 (int8), 448 (fp8)

M rows of K numbers: about 5 M K FLOPs, 2 M K b bytes read (the second time from L1 or L2) and M K written; memory-bound. One block per row.
The results equal quantize_int8 and quantize_fp8 of weights/, bit for bit: the reciprocal is exact, and adding 1.5 * 2**23 rounds as rint.

For a GEMM of 16-bit numbers the codes are written as such: bfloat16 and float16 hold every code of both formats exactly.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, uint8, uint32

from minllm.kernels.arguments import FLOAT_DTYPES, check_array
from minllm.kernels.reduction import block_max
from minllm.ptx import float_as_uint, pack_e4m3x2, rcp_rn, unpack_e4m3x2
from minllm.runtime.kernel import kernel, launch

THREADS = 256
LARGEST = {"int8": 127, "fp8": 448}
ROUNDING = 12582912.0  # 1.5 * 2**23


class QuantizedRows(NamedTuple):
    """x [M, K] as codes and scales."""

    codes: Any  # uint8 [M, K], the bits of int8 or e4m3; or the codes as numbers in the dtype of x
    scales: Any  # float32 [M]


@cuda.jit(device=True)
def int8_bits(value):
    """The code of a number between -127 and 127."""
    return uint8(float_as_uint(value + float32(ROUNDING)) & uint32(255))


@cuda.jit(device=True)
def int8_number(value):
    """The same as a number."""
    return (value + float32(ROUNDING)) - float32(ROUNDING)


@cuda.jit(device=True)
def fp8_bits(value):
    """The code of a number between -448 and 448."""
    return uint8(pack_e4m3x2(value, value) & uint32(255))


@cuda.jit(device=True)
def fp8_number(value):
    """The same as a number."""
    return unpack_e4m3x2(pack_e4m3x2(value, value))[0]


CODES = {("int8", False): int8_bits, ("int8", True): int8_number, ("fp8", False): fp8_bits, ("fp8", True): fp8_number}


@functools.cache
def quantize_rows_kernel(code: str, as_numbers: bool):
    """The kernel for codes of "int8" or "fp8", as bits or as numbers."""
    largest, inverse_largest, code_of = float(LARGEST[code]), 1 / LARGEST[code], CODES[code, as_numbers]

    @kernel(launch_bounds=THREADS)
    def quantize_rows_kernel(x, codes, scales):
        """x [M, K], codes [M, K], scales [M]; one block per row."""
        row, partials = cuda.blockIdx.x, cuda.shared.array(32, float32)
        top = float32(0)
        for k in range(cuda.threadIdx.x, x.shape[1], THREADS):
            top = max(top, abs(float32(x[row, k])))
        scale = block_max(top, partials) * float32(inverse_largest)
        inverse = rcp_rn(scale) if scale > float32(0) else float32(0)
        if cuda.threadIdx.x == 0:
            scales[row] = scale
        for k in range(cuda.threadIdx.x, x.shape[1], THREADS):
            codes[row, k] = code_of(min(max(float32(x[row, k]) * inverse, float32(-largest)), float32(largest)))

    return quantize_rows_kernel


def quantize_rows(x, empty, stream=None, code: str = "int8", as_numbers: bool = False) -> QuantizedRows:
    """x [M, K], float32, float16 or bfloat16, as codes of "int8" or "fp8"; empty(shape, dtype) makes the arrays.

    as_numbers: codes in the dtype of x. Raises KernelArgumentError for another dtype.
    """
    check_array("x", x, FLOAT_DTYPES, M=None, K=None)
    rows = QuantizedRows(empty(x.shape, x.dtype if as_numbers else np.dtype(np.uint8)), empty((x.shape[0],), np.dtype(np.float32)))
    launch(quantize_rows_kernel(code, as_numbers), x.shape[0], THREADS, (x, *rows), stream)
    return rows
