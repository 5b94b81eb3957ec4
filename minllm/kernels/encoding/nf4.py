"""A matrix to NF4 codes, with the largest magnitude of each block: `quantize_blocks` of quantization/nf4.py, bit for bit.

    absmax = max |w|        code = the nearest of the 16 NF4_CODES to w / absmax

N outputs of K inputs of b bytes: N K b bytes read and N K (1 / 2 + 4 / 64) written; 15 comparisons per input, as many as there are
middles between neighbouring codes. Threads to data: lanes.py. Double quantisation needs the mean of all magnitudes of the matrix, so it
follows on the host, on a 64th of the numbers (`double_quantize`).
"""

import functools

import numpy as np
from numba import cuda, float32, uint32

from minllm.kernels.encoding.lanes import THREADS, grid_of
from minllm.kernels.quantization.groups import NF4_BLOCK
from minllm.kernels.quantization.lanes import EACH, make_extremes, make_load_each
from minllm.ptx import rcp_rn, store_32
from minllm.runtime.kernel import kernel, launch

LANES = NF4_BLOCK // EACH


@functools.cache
def encode_nf4_kernel(dtype, middles):
    """The kernel for matrices of `dtype`; middles: 15 float32 between neighbouring codes, ascending."""

    @cuda.jit(device=True)
    def nearest_code(value):
        """The index of the nearest code: the number of middles below the value."""
        code = uint32(0)
        for middle in middles:
            code += uint32(value > float32(middle))
        return code

    load_inputs, extremes = make_load_each(dtype), make_extremes(LANES)

    @kernel(launch_bounds=THREADS)
    def encode_nf4_kernel(matrix, codes, absmax):
        """matrix [N, K], codes [N, K / 2], absmax [N, K / 64]."""
        row, lane = cuda.blockIdx.x, cuda.blockIdx.y * THREADS + cuda.threadIdx.x
        values, is_inside = cuda.local.array(EACH, float32), lane * EACH < matrix.shape[1]
        for k in range(EACH):
            values[k] = float32(0)
        if is_inside:
            load_inputs(matrix, row * matrix.shape[1] + lane * EACH, values)
        low, high = extremes(values)
        largest, word = max(abs(low), abs(high)), uint32(0)
        inverse = rcp_rn(largest) if largest > float32(0) else float32(0)
        for k in range(0, EACH, 2):  # the first of two codes is in the upper half of their byte
            pair = nearest_code(values[k] * inverse) << uint32(4) | nearest_code(values[k + 1] * inverse)
            word |= pair << uint32(4 * k)
        if is_inside:
            store_32(codes, (row * matrix.shape[1] + lane * EACH) // 2, word)
            if lane % LANES == 0:
                absmax[row, lane // LANES] = largest

    return encode_nf4_kernel


def encode_nf4_blocks(matrix, table, empty, stream=None):
    """(codes, absmax) of a matrix [outputs, inputs]: uint8 [outputs, inputs / 2], packed, and float32 [outputs, inputs / 64].

    matrix: float32, float16 or bfloat16; table: the 16 codes, float32, ascending, on the host; empty(shape, dtype) makes the
    arrays. NaN is not looked for. Raises KernelArgumentError for other dtypes, inputs that are not whole blocks, and unaligned rows.
    """
    grid, (outputs, inputs) = grid_of(matrix, NF4_BLOCK), matrix.shape
    codes, absmax = empty((outputs, inputs // 2), np.dtype(np.uint8)), empty((outputs, inputs // NF4_BLOCK), np.dtype(np.float32))
    middles = tuple(map(float, (table[:-1] + table[1:]) / 2))
    launch(encode_nf4_kernel(matrix.dtype, middles), grid, THREADS, (matrix, codes, absmax), stream)
    return codes, absmax
