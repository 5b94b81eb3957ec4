"""int8 and fp8 (W8A8) as operands of mma.sync: codes go to the tensor cores unchanged.

    low = (sum over k of x_code[k] * code[low, k]) * x_scale * scale[low]

A step is 64 inputs: two mma.sync of 32. Sums of int8 are exact int32; those of fp8 are float32. Hopper has no mma.sync for e4m3, so ptxas
converts the codes to float16, which is exact.
"""

import functools
from typing import NamedTuple

from numba import cuda, float32, int32, uint32

from minllm.kernels.matmul.quantized.tensor_core_gemv.activations import make_prepare_codes
from minllm.kernels.matmul.quantized.tensor_core_gemv.operand import CODE_WORDS, Operand
from minllm.kernels.quantization.decoder import LANE_BYTES, NO_TABLE, ROW_BYTES, RowCodes
from minllm.kernels.vector import load_words

INPUTS = ROW_BYTES  # inputs per step


@cuda.jit(device=True, forceinline=True)
def load_nothing(weight, rows, kept, step, words, at):
    """Operand.load: the scales of rows are in `kept`."""


@cuda.jit(device=True, forceinline=True)
def first_step():
    """Operand.own_step: no steps are scaled."""
    return int32(0)


@cuda.jit(device=True, forceinline=True)
def scale_nothing(memory, decoder, kept, held, index, step, sums):
    """Operand.scale."""


class Scales(NamedTuple):
    """The scales of a lane's rows, loaded long before the sums are complete."""

    low: float
    high: float


@functools.cache
def make_codes_operand(code: RowCodes, k: int, tiling, dtype: str) -> Operand:
    """Return the Operand of codes, for x of `dtype`."""
    multiply_codes, padded_k = code.mma, tiling.padded_steps(k // INPUTS) * INPUTS

    @cuda.jit(device=True, forceinline=True)
    def multiply(memory, decoder, held, u, step, sums):
        a, b, at = cuda.local.array(4, uint32), cuda.local.array(4, uint32), u * CODE_WORDS
        load_words(memory, step * (INPUTS // 4) + (int32(cuda.threadIdx.x) & 3) * (LANE_BYTES // 4), b, 0)
        for half in range(2):
            for i in range(2):
                a[2 * i], a[2 * i + 1] = held.codes[at + 2 * half + i], held.codes[at + 4 + 2 * half + i]
            multiply_codes(sums.total, 0, a, 0, b, 2 * half)

    @cuda.jit(device=True, forceinline=True)
    def begin(weight, rows):
        return Scales(float32(weight.scales[rows.low]), float32(weight.scales[rows.high]))

    @cuda.jit(device=True, forceinline=True)
    def finish(kept, total, factor):
        return float32(total[0]) * (factor * kept.low), float32(total[2]) * (factor * kept.high)

    prepare = make_prepare_codes(k, padded_k, tiling.threads, dtype, code)
    return Operand(
        k // INPUTS, k, 1, 0, padded_k, NO_TABLE, code.sum_type, prepare, begin, first_step, load_nothing, multiply, scale_nothing, finish,
    )  # fmt: skip
