"""Products of one row of x with int8 and fp8 (W8A8): codes go to the tensor cores unchanged.

    low = (sum over k of x_code[k] * code[low, k]) * x_scale * scale[low]

A step is 64 inputs: two mma.sync of 32. Sums of int8 are exact int32; those of fp8 are float32. Hopper has no mma.sync for e4m3, so ptxas
converts the codes to float16, which is exact.
"""

import functools

from numba import cuda, float32, int32, uint32

from minllm.kernels.matmul.quantized.tensor_core_gemv.loads import CODE_WORDS, WORDS
from minllm.kernels.matmul.quantized.tensor_core_gemv.normed_x import make_prepare_codes
from minllm.kernels.matmul.quantized.tensor_core_gemv.products import Products, convert_nothing, load_nothing, scale_nothing
from minllm.kernels.matmul.quantized.tensor_core_gemv.tiling import TensorCoreGemvTiling
from minllm.kernels.quantization.decoder import LANE_BYTES, NO_TABLE, ROW_BYTES, RowCodes
from minllm.kernels.vector import load_words

INPUTS = ROW_BYTES  # inputs per step


@cuda.jit(device=True, forceinline=True)
def scale_of_row(weight, row):
    """Products.begin: the scale of a row, loaded long before its sums are complete."""
    return float32(weight.scales[row])


@cuda.jit(device=True, forceinline=True)
def finish(scales, total, factor):
    """Products.finish."""
    return float32(total[0]) * (factor * scales.low), float32(total[2]) * (factor * scales.high)


@functools.cache
def make_products_of_codes(code: RowCodes, k: int, tiling: TensorCoreGemvTiling, dtype: str) -> Products:
    """Return the Products of codes, for one row of x in `dtype`."""
    multiply_codes, steps = code.mma, k // INPUTS

    @cuda.jit(device=True, forceinline=True)
    def multiply(u, memory, decoding, registers, step):
        a, b, at = cuda.local.array(4, uint32), cuda.local.array(4, uint32), u * CODE_WORDS
        load_words(memory, step * (INPUTS // 4) + (int32(cuda.threadIdx.x) & 3) * (LANE_BYTES // 4), b, 0)
        for half in range(2):
            for i in range(2):
                a[2 * i], a[2 * i + 1] = registers.codes[at + 2 * half + i], registers.codes[at + WORDS + 2 * half + i]
            multiply_codes(registers.total, 0, a, 0, b, 2 * half)

    return Products(
        steps, 1, tiling.padded_steps(steps) * INPUTS, 1, 1, code.sum_type, NO_TABLE, make_prepare_codes(tiling, code, k, dtype),
        scale_of_row, 0, load_nothing, convert_nothing, multiply, 0, scale_nothing, finish,
    )  # fmt: skip
