"""int8 and fp8 (W8A8) as operands of mma.sync: codes go to the tensor cores unchanged.

    low = (sum over k of x_code[k] * code[low, k]) * x_scale * scale[low]

A step is 64 inputs: two mma.sync of 32. Sums of int8 are exact int32; those of fp8 are float32. Hopper has no mma.sync for e4m3, so ptxas
converts the codes to float16, which is exact.
"""

import functools
from typing import NamedTuple

from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.kernels.matmul.quantized.tensor_core_gemv.activations import make_prepare_codes
from minllm.kernels.matmul.quantized.tensor_core_gemv.operand import (
    CODE_WORDS,
    LANE_BYTES,
    Operand,
    fill_nothing,
    first_step,
    load_nothing,
    no_decoder,
    scale_nothing,
)
from minllm.kernels.vector import load_words
from minllm.runtime.array_protocol import Array

INPUTS = 64
MULTIPLY = {"int8": ptx.mma_m16n8k32_s8, "fp8": ptx.mma_m16n8k32_e4m3}


class Codes(NamedTuple):
    """A weight [N, K]: codes [N * K], scales [N]."""

    codes: Array
    scales: Array


class Scales(NamedTuple):
    """The scales of a lane's rows, loaded long before the sums are complete."""

    low: float
    high: float


@functools.cache
def make_codes_operand(code: str, k: int, tiling, dtype: str) -> Operand:
    """Return the Operand of "int8" or "fp8" codes, for x of `dtype`."""
    multiply_codes, sum_type, padded_k = MULTIPLY[code], int32 if code == "int8" else float32, tiling.padded_steps(k // INPUTS) * INPUTS

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
        k // INPUTS, k, 1, 0, padded_k, 0, sum_type, fill_nothing, prepare, no_decoder, begin, first_step, load_nothing, multiply,
        scale_nothing, finish,
    )  # fmt: skip
