"""The matrix products of quantised weights: a GEMV over the codes for up to 8 rows of x, the widened matrix for more."""

import functools
from typing import Any

from minllm.kernels.matmul.arguments import MOST_ROWS_OF_GEMV
from minllm.kernels.matmul.quantized import fp8, int4, int8, nf4
from minllm.kernels.matmul.quantized.many_rows import make_dequantized, make_widened, widened_matrix, widened_matrix_and_sums
from minllm.kernels.matmul.quantized.rows import quantize_rows
from minllm.weights.format import LinearKernels


def choose(x: Any, weight: Any) -> str:
    """"gemv" for few rows of whole 16-byte loads of codes, else "widened"."""
    return "gemv" if x.shape[0] <= MOST_ROWS_OF_GEMV and weight.codes.shape[1] % 16 == 0 else "widened"


def w8a8(code: str, gemv: Any, widen: Any) -> LinearKernels:
    """Kernels of 8-bit weights, whose activations are quantised first."""
    quantise = functools.partial(quantize_rows, code=code)
    return LinearKernels(
        variants={"gemv": gemv, "widened": make_widened(widen)},
        choose=choose,
        most_rows={"gemv": MOST_ROWS_OF_GEMV},
        activations={"gemv": quantise, "widened": functools.partial(quantise, as_numbers=True)},
        workspaces={"widened": widened_matrix_and_sums},
    )


def w4a16(gemv: Any, dequantize: Any) -> LinearKernels:
    """Kernels of 4-bit weights, whose activations stay as they are."""
    return LinearKernels(
        variants={"gemv": gemv, "widened": make_dequantized(dequantize)},
        choose=choose,
        most_rows={"gemv": MOST_ROWS_OF_GEMV},
        workspaces={"widened": widened_matrix},
    )


INT8, FP8 = w8a8("int8", int8.int8_gemv, int8.widen_int8), w8a8("fp8", fp8.fp8_gemv, fp8.widen_fp8)
INT4, NF4 = w4a16(int4.int4_gemv, int4.dequantize_int4), w4a16(nf4.nf4_gemv, nf4.dequantize_nf4)
