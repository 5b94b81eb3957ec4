"""The matrix products of quantised weights: a GEMV over the codes for up to 8 rows of x, the widened matrix for more."""

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from minllm.kernels.matmul.arguments import MOST_ROWS_OF_GEMV
from minllm.kernels.matmul.quantized import fp8, fp8_block, int4, int4_tensor_core, int8, int8_groups, nf4
from minllm.kernels.matmul.quantized.many_rows import make_dequantized, make_widened, widened_matrix, widened_matrix_and_sums
from minllm.kernels.matmul.quantized.row_groups import quantize_row_groups
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


def dequantized(gemv: Any, dequantize: Any, activations: Mapping[str, Any] = MappingProxyType({})) -> LinearKernels:
    """Kernels of weights whose scales change along a row: many rows of x multiply the matrix that they stand for."""
    return LinearKernels(
        variants={"gemv": gemv, "widened": make_dequantized(dequantize)},
        choose=choose,
        most_rows={"gemv": MOST_ROWS_OF_GEMV},
        activations=activations,
        workspaces={"widened": widened_matrix},
    )


INT8, FP8 = w8a8("int8", int8.int8_gemv, int8.widen_int8), w8a8("fp8", fp8.fp8_gemv, fp8.widen_fp8)
INT4, NF4 = dequantized(int4.int4_gemv, int4.dequantize_int4), dequantized(nf4.nf4_gemv, nf4.dequantize_nf4)
INT4 = INT4._replace(  # for groups of 128, by name: it is not measured yet
    variants={**INT4.variants, "int4_tensor_core": int4_tensor_core.int4_tensor_core},
    most_rows={**INT4.most_rows, "int4_tensor_core": int4_tensor_core.MOST_ROWS},
)
INT8_GROUPS = dequantized(int8_groups.int8_group_gemv, int8_groups.dequantize_int8_groups)
ROW_GROUPS = {"gemv": quantize_row_groups, "widened": functools.partial(quantize_row_groups, as_numbers=True)}
FP8_BLOCK = dequantized(fp8_block.fp8_block_gemv, fp8_block.dequantize_fp8_block, ROW_GROUPS)
