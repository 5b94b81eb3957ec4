"""A matrix to int4 codes, with a scale and perhaps a zero point per group: quantize_int4 of quantization/int4.py, bit for bit.

    symmetric    scale = half(max |w| / 7)                         code = round(w / scale) + 8
    with zeros   scale = half((max(w, 0) - min(w, 0)) / 15)        zero = round(-min(w, 0) / scale)        code = round(w / scale) + zero

N outputs of K inputs of b bytes: N K b bytes read and N K / 2 + 2 N K / group written, 3 with zeros; some 4 FLOPs per input: memory-bound.
Threads to data: lanes.py. The reciprocal of a scale is exact, and adding 1.5 * 2**23 rounds as rint does.
"""

import functools

import numpy as np
from numba import cuda, float32, uint8, uint16, uint32

from minllm.kernels.encoding.lanes import THREADS, grid_of
from minllm.kernels.quantization.int4 import LARGEST_CODE, MIDDLE
from minllm.kernels.quantization.lanes import EACH, ROUNDING, make_extremes, make_load_each, pack_nibbles_of
from minllm.ptx import float_as_uint, pack_f16x2, rcp_rn, store_32, unpack_f16x2
from minllm.runtime.kernel import kernel, launch


@functools.cache
def encode_int4_kernel(dtype, group, has_zeros):
    """The kernel for matrices of `dtype`; without zero points `zeros` is not used."""
    lanes = group // EACH
    load_inputs, extremes = make_load_each(dtype), make_extremes(lanes)
    levels = LARGEST_CODE if has_zeros else LARGEST_CODE - MIDDLE
    inverse_levels = float(np.float32(1 / levels))

    @kernel(launch_bounds=THREADS)
    def encode_int4_kernel(matrix, codes, scales, zeros):
        """matrix [N, K], codes [N, K / 2], scales [K / group, N] as the bits of float16, zeros [K / group, N]."""
        row, lane = cuda.blockIdx.x, cuda.blockIdx.y * THREADS + cuda.threadIdx.x
        values, bits = cuda.local.array(EACH, float32), cuda.local.array(EACH, uint32)
        is_inside = lane * EACH < matrix.shape[1]
        for k in range(EACH):
            values[k] = float32(0)
        if is_inside:
            load_inputs(matrix, row * matrix.shape[1] + lane * EACH, values)
        low, high = extremes(values)
        if has_zeros:
            low, high = min(low, float32(0)), max(high, float32(0))
            span = high - low
        else:
            span = max(abs(low), abs(high))
        half = pack_f16x2(span * float32(inverse_levels), float32(0))
        scale = unpack_f16x2(half)[0]
        inverse = rcp_rn(scale) if scale > float32(0) else float32(0)
        zero = uint32(MIDDLE)
        if has_zeros:
            zero = float_as_uint(min(max(-low * inverse, float32(0)), float32(LARGEST_CODE)) + float32(ROUNDING)) & uint32(LARGEST_CODE)
        lowest, highest = -float32(zero), float32(uint32(LARGEST_CODE) - zero)
        for k in range(EACH):
            bits[k] = float_as_uint(min(max(values[k] * inverse, lowest), highest) + float32(ROUNDING)) + zero
        if is_inside:
            store_32(codes, (row * matrix.shape[1] + lane * EACH) // 2, pack_nibbles_of(bits))
            if lane % lanes == 0:
                scales[lane // lanes, row] = uint16(half & uint32(0xFFFF))
                if has_zeros:
                    zeros[lane // lanes, row] = uint8(zero)

    return encode_int4_kernel


def encode_int4(matrix, empty, group, has_zeros=False, stream=None):
    """(codes, scales, zeros) of a matrix [outputs, inputs], as Int4Weight has them; zeros is None without zero points.

    matrix: float32, float16 or bfloat16; empty(shape, dtype) makes the arrays. NaN is not looked for.
    Raises KernelArgumentError for other dtypes, inputs that are not whole groups, and unaligned rows.
    """
    grid, (outputs, inputs) = grid_of(matrix, group), matrix.shape
    groups = inputs // group, outputs
    zeros = empty(groups, np.dtype(np.uint8)) if has_zeros else None
    codes, scales = empty((outputs, inputs // 2), np.dtype(np.uint8)), empty(groups, np.dtype(np.float16))
    chosen = encode_int4_kernel(matrix.dtype, group, has_zeros)
    launch(chosen, grid, THREADS, (matrix, codes, scales.view(np.uint16), codes if zeros is None else zeros), stream)
    return codes, scales, zeros
