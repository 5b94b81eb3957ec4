"""Rows of x quantised for W8A8: the largest magnitude of a row becomes the largest code.

    scale[m] = max over k of |x[m, k]| / largest        code[m, k] = round(x[m, k] / scale[m])        largest: 127 (int8), 448 (fp8)

M rows of K numbers: about 5 M K FLOPs, M K b bytes read and M K written; memory-bound. One block per row; its threads keep the row in
registers, as it is in memory, between the maximum and the codes. A row that is too long for that, or not aligned to 16 bytes, is read a
second time. The results equal quantize_int8 and quantize_fp8 of kernels/quantization, bit for bit: the reciprocal is exact, and
adding 1.5 * 2**23 rounds as rint does.

For a GEMM of 16-bit numbers the codes are written as 16-bit numbers: bfloat16 and float16 hold every code of both formats exactly. RMSNorm
writes codes itself (normalization/rms_norm_quantized.py).
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numba import cuda, float32, uint32

from minllm.kernels.arguments import FLOAT_DTYPES, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.normalization.row import LONG_BLOCK, SHORT_BLOCK, row_in_short_block
from minllm.kernels.quantization import fp8, int8
from minllm.kernels.reduction import block_max
from minllm.kernels.vector import VECTOR_BYTES, load_words, vector_access, vector_unpack
from minllm.ptx import rcp_rn, store_32, store_64
from minllm.runtime.array_protocol import Array
from minllm.runtime.kernel import kernel, launch
from minllm.tiles.warp import WARP

THREADS = 256
WORDS = VECTOR_BYTES // 4  # of a vector
FEW_ROWS = 128  # an SM gets one row at most, which more threads shorten


class QuantizedRows(NamedTuple):
    """x [M, K] as codes, and one scale per row."""

    codes: Array  # uint8 [M, K], the bits of int8 or e4m3; or the codes as numbers in the dtype of x
    scales: Array  # float32 [M]

    @property
    def shape(self) -> tuple[int, int]:
        """(M, K)."""
        return self.codes.shape


CODES = {"int8": int8.CODES, "fp8": fp8.CODES}


@functools.cache
def make_take(width: int):
    """take(held, at, values, to): the `unpack` of a row that is held as float32."""

    @cuda.jit(device=True)
    def take(held, at, values, to):
        for k in range(width):
            values[to + k] = held[at + k]

    return take


@functools.cache
def make_write_codes(code: str, width: int, pieces: int, unpack: Callable | None = None):
    """write_codes(held, row, codes, scales, partials): quantise a row in registers.

    held: `pieces` vectors of `width` numbers per thread, as words with their `unpack` (kernels/vector.py), or as float32. codes [M, K],
    scales [M]; partials: float32 [32] in shared memory, used by nothing else.
    """
    each, unpack = (width, make_take(width)) if unpack is None else (WORDS, unpack)
    found = CODES[code]
    largest, inverse_largest, word_of = float(found.largest), 1 / found.largest, found.word

    @cuda.jit(device=True)
    def write_codes(held, row, codes, scales, partials):
        length, top, values = codes.shape[1], float32(0), cuda.local.array(width, float32)
        for piece in range(pieces):
            if (piece * cuda.blockDim.x + cuda.threadIdx.x) * width < length:
                unpack(held, piece * each, values, 0)
                for k in range(width):
                    top = max(top, abs(values[k]))
        scale = block_max(top, partials) * float32(inverse_largest)
        inverse = rcp_rn(scale) if scale > float32(0) else float32(0)
        if cuda.threadIdx.x == 0:
            scales[row] = scale
        for piece in range(pieces):
            i = (piece * cuda.blockDim.x + cuda.threadIdx.x) * width
            if i < length:
                unpack(held, piece * each, values, 0)
                for k in range(width):
                    values[k] = min(max(values[k] * inverse, float32(-largest)), float32(largest))
                if width == 8:
                    store_64(codes, row * length + i, word_of(values, 0), word_of(values, 4))
                else:
                    store_32(codes, row * length + i, word_of(values, 0))

    return write_codes


@functools.cache
def quantize_vectors_kernel(code: str, dtype: np.dtype, pieces: int):
    """The kernel that keeps a row of `dtype` in registers as it is in memory, `pieces` vectors per thread; code: "int8" or "fp8"."""
    width, _, _ = vector_access(dtype)
    held_words, write_codes = pieces * WORDS, make_write_codes(code, width, pieces, vector_unpack(dtype))

    @kernel(launch_bounds=(LONG_BLOCK, 1), dependent_launch=True)
    def quantize_vectors_kernel(x, codes, scales):
        """x [M, K], codes [M, K], scales [M]; one block per row."""
        row, words, partials = cuda.blockIdx.x, cuda.local.array(held_words, uint32), cuda.shared.array(WARP, float32)
        wait_for_predecessors()
        for piece in range(pieces):  # all loads are in flight before the first number is looked at
            i = (piece * cuda.blockDim.x + cuda.threadIdx.x) * width
            if i < x.shape[1]:
                load_words(x, row * x.shape[1] + i, words, piece * WORDS)
        write_codes(words, row, codes, scales, partials)

    return quantize_vectors_kernel


@functools.cache
def quantize_rows_kernel(code: str, as_numbers: bool):
    """The kernel that reads a row of any length twice; code: "int8" or "fp8", written as bits or as numbers."""
    found = CODES[code]
    largest, inverse_largest, code_of = float(found.largest), 1 / found.largest, found.number if as_numbers else found.bits

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
    """Return x [M, K], float32, float16 or bfloat16, as QuantizedRows; empty(shape, dtype) makes the arrays.

    code: "int8" or "fp8". as_numbers: codes as numbers in the dtype of x. Raises KernelArgumentError for another dtype of x.
    """
    check_array("x", x, FLOAT_DTYPES, M=None, K=None)
    rows = QuantizedRows(empty(x.shape, x.dtype if as_numbers else np.dtype(np.uint8)), empty((x.shape[0],), np.dtype(np.float32)))
    # A maximum does not depend on the order of its terms: a row's codes are the same in both.
    wanted = LONG_BLOCK if x.shape[0] <= FEW_ROWS else SHORT_BLOCK
    if not as_numbers and (shape := row_in_short_block(x.shape[1], WORDS, x, wanted=wanted)):
        threads, pieces = shape
        launch(quantize_vectors_kernel(code, x.dtype, pieces), x.shape[0], threads, (x, *rows), stream)
        return rows
    launch(quantize_rows_kernel(code, as_numbers), x.shape[0], THREADS, (x, *rows), stream)
    return rows
