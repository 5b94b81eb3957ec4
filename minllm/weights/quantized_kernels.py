"""The GEMVs and GEMMs of quantised weights, and which of them is chosen for how many rows of x.

one row    int4, NF4, int8 and fp8: the GEMV on tensor cores, from compute capability 8.0 (fp8: 8.9) on
few rows   int4 and NF4 on Hopper: the same for 2 to 8 rows, or to 16 with groups of 128 or more
W8A8       on Hopper a flat GEMM over the codes, then a wgmma GEMM; elsewhere a GEMV for up to 8 rows, then the widened matrix
fp8_block  a GEMV for one row; on Hopper a wgmma GEMM over the codes for more; elsewhere the GEMV for up to 8 rows, then the widened matrix
others     on Hopper the mixed-input GEMM beyond that; elsewhere a GEMV for up to 8 rows, then the widened matrix
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from minllm.kernels.activation.silu_quantized import silu_and_multiply_quantized
from minllm.kernels.arguments import rows_begin_on
from minllm.kernels.matmul.arguments import HALF_DTYPES, MOST_ROWS_OF_FLAT, MOST_ROWS_OF_GEMV
from minllm.kernels.matmul.quantized import fp8, fp8_block, fp8_block_wgmma, group_gemv, int4, int8, tensor_core
from minllm.kernels.matmul.quantized.many_rows import make_dequantized, make_widened, widened_matrix, widened_matrix_and_sums
from minllm.kernels.matmul.quantized.mixed_input import gemm
from minllm.kernels.matmul.quantized.row_groups import quantize_row_groups
from minllm.kernels.matmul.quantized.rows import QuantizedRows, quantize_rows
from minllm.kernels.matmul.quantized.tensor_core_gemv import gemv as tensor_core_gemv
from minllm.kernels.normalization.rms_norm_quantized import rms_norm_quantized
from minllm.kernels.quantization.decoder import INPUTS, Format
from minllm.kernels.quantization.fp8 import FP8
from minllm.kernels.quantization.fp8_block import FP8_BLOCKS
from minllm.kernels.quantization.int4 import INT4
from minllm.kernels.quantization.int8 import INT8
from minllm.kernels.quantization.int8_groups import INT8_GROUPS
from minllm.kernels.quantization.nf4 import NF4
from minllm.runtime.array_protocol import Array
from minllm.runtime.device import HOPPER, current_device
from minllm.weights.format import LinearKernels

GEMV, WIDENED, FLAT, WGMMA, TENSOR_CORE_GEMV = "gemv", "widened", "flat", "wgmma", "tensor_core_gemv"
FEWEST_ROWS_OF_TILES = 2  # fewest rows of x for which tiles are decoded for tensor cores, if the GEMV on tensor cores is not chosen
MOST_ROWS_OF_SHORT_GROUPS = 8  # most rows of x for the GEMV on tensor cores with groups of fewer inputs than a step
MOST_ROWS_OF_FLAT_CODES = 64  # most rows of x for the flat GEMM over codes; at 256 wgmma is faster for every weight


def on_hopper(array: Array) -> bool:
    """Whether the array is on a GPU with wgmma. The simulator multiplies the widened matrix faster."""
    return not isinstance(array, np.ndarray) and current_device().compute_capability == HOPPER


def suits_tensor_cores(found: Format, x: Array, weight: Any) -> bool:
    """Whether the GEMV on tensor cores is the fastest, which quantises x itself; other kernels run faster in the simulator."""
    in_simulator = isinstance(weight.codes, np.ndarray)
    return not in_simulator and not isinstance(x, QuantizedRows) and tensor_core_gemv.fits(found, x, weight)


def choose_anywhere(x: Array, weight: Any) -> str:
    """The variant of every GPU: a GEMV for few rows of x if a row of codes is whole 16-byte loads, else the widened matrix."""
    return GEMV if x.shape[0] <= MOST_ROWS_OF_GEMV and weight.codes.shape[1] % 16 == 0 else WIDENED


def choose_w8a8(found: Format, x: Array, weight: Any) -> str:
    """The variant of int8 or fp8; on Hopper the GEMMs over codes were faster on an H200 from one row on."""
    if suits_tensor_cores(found, x, weight):
        return TENSOR_CORE_GEMV
    if on_hopper(weight.codes) and rows_begin_on(16, weight.codes):
        return FLAT if x.shape[0] <= MOST_ROWS_OF_FLAT_CODES else WGMMA
    return choose_anywhere(x, weight)


def choose_four_bits(found: Format, x: Array, weight: Any) -> str:
    """The variant of int4 or NF4; on Hopper the GEMV on tensor cores for few rows, then the mixed-input GEMM."""
    has_long_groups = x.shape[1] // gemm.scale_arrays(weight)[0].shape[0] >= INPUTS
    few = x.shape[0] <= (tensor_core_gemv.MOST_ROWS if has_long_groups else MOST_ROWS_OF_SHORT_GROUPS)
    return TENSOR_CORE_GEMV if few and suits_tensor_cores(found, x, weight) else choose_mixed_input(x, weight)


def choose_mixed_input(x: Array, weight: Any) -> str:
    """The variant of int8 in groups: the mixed-input GEMM for the rows of x for which a GEMV took longer on an H100."""
    is_faster = x.shape[0] >= FEWEST_ROWS_OF_TILES and on_hopper(weight.codes) and gemm.fits(x, weight)
    return WGMMA if is_faster else choose_anywhere(x, weight)


def choose_fp8_block(x: Array, weight: Any) -> str:
    """The variant of fp8 in blocks; thresholds measured on an H200."""
    return WGMMA if x.shape[0] > 1 and on_hopper(weight.codes) and fp8_block_wgmma.fits(weight) else choose_anywhere(x, weight)


def gated_w8a8(launchers: Mapping[str, Callable], variant: str, x: Any, weight: Any, out_dtype: np.dtype) -> Callable | None:
    """LinearKernels.gated of int8 or fp8."""
    fits = out_dtype == x.dtype if variant == TENSOR_CORE_GEMV else out_dtype in HALF_DTYPES
    return launchers.get(variant) if fits else None


def gated_mixed_input(launchers: Mapping[str, Callable], variant: str, x: Array, weight: Any, out_dtype: np.dtype) -> Callable | None:
    """LinearKernels.gated of int4, NF4 and int8 in groups."""
    fits = gemm.fits(x, weight, True) if variant == WGMMA else out_dtype == x.dtype
    return launchers.get(variant) if fits else None


def gated_fp8_block(variant: str, x: Any, weight: Any, out_dtype: np.dtype) -> Callable | None:
    """LinearKernels.gated of fp8 in blocks."""
    fits = variant == WGMMA and out_dtype in HALF_DTYPES and fp8_block_wgmma.fits(weight)
    return fp8_block_wgmma.gated_fp8_block_wgmma if fits else None


def fits_normed(found: Format, x: Array, weight: Any) -> bool:
    """Whether the GEMV fused with the norm before it supports these arrays.

    x * norm is rounded before the division by the root mean square. Large activations would overflow float16, but not codes.
    """
    return x.shape[0] == 1 and tensor_core_gemv.fits(found, x, weight) and (found.codes is not None or x.dtype != np.float16)


def of_one_row(found: Format) -> dict[str, Any]:
    """The fields of LinearKernels for one row of x: the GEMV on tensor cores with its fusions."""
    return dict(
        fits_normed=partial(fits_normed, found),
        normed_linear=tensor_core_gemv.make_gemv(found),
        normed_gated=tensor_core_gemv.make_gated_gemv(found),
        normed_qkv=tensor_core_gemv.make_qkv_gemv(found),
    )


def w8a8(found: Format, gemv: Callable, widen: Callable) -> LinearKernels:
    """The kernels of int8 or fp8."""
    code, of_codes, fused = found.name, (GEMV, FLAT, WGMMA), of_one_row(found)
    quantize, runs = partial(quantize_rows, code=code), {FLAT: tensor_core.run_flat, WGMMA: tensor_core.run_wgmma}
    gated = {variant: tensor_core.make_gated_gemm(run, found) for variant, run in runs.items()}
    products = {variant: tensor_core.make_gemm(run, found) for variant, run in runs.items()}
    return LinearKernels(
        variants={GEMV: gemv, WIDENED: make_widened(widen), **products, TENSOR_CORE_GEMV: fused["normed_linear"]},
        choose=partial(choose_w8a8, found),
        most_rows={GEMV: MOST_ROWS_OF_GEMV, FLAT: MOST_ROWS_OF_FLAT, TENSOR_CORE_GEMV: 1},
        activations={WIDENED: partial(quantize, as_numbers=True)} | dict.fromkeys(of_codes, quantize),
        normed_activations=dict.fromkeys(of_codes, partial(rms_norm_quantized, code=code)),
        gated_activations=dict.fromkeys(of_codes, partial(silu_and_multiply_quantized, code=code)),
        workspaces={WIDENED: widened_matrix_and_sums},
        gated=partial(gated_w8a8, gated | {TENSOR_CORE_GEMV: fused["normed_gated"]}),
        **fused,
    )


def four_bits(found: Format, gemv: Callable, dequantize: Callable) -> LinearKernels:
    """The kernels of int4 or NF4."""
    fused, tiles = of_one_row(found), gemm.make_gemm(found)
    return LinearKernels(
        variants={GEMV: gemv, WIDENED: make_dequantized(dequantize), WGMMA: tiles, TENSOR_CORE_GEMV: fused["normed_linear"]},
        choose=partial(choose_four_bits, found),
        most_rows={GEMV: MOST_ROWS_OF_GEMV, TENSOR_CORE_GEMV: tensor_core_gemv.MOST_ROWS},
        workspaces={WIDENED: widened_matrix},
        gated=partial(gated_mixed_input, {WGMMA: gemm.make_gated_gemm(found), TENSOR_CORE_GEMV: fused["normed_gated"]}),
        **fused,
    )


OF_INT8_GROUPS = LinearKernels(
    variants={
        GEMV: group_gemv.int8_group_gemv, WIDENED: make_dequantized(group_gemv.dequantize_int8_groups), WGMMA: gemm.make_gemm(INT8_GROUPS)
    },
    choose=choose_mixed_input,
    most_rows={GEMV: MOST_ROWS_OF_GEMV},
    workspaces={WIDENED: widened_matrix},
    gated=partial(gated_mixed_input, {WGMMA: gemm.make_gated_gemm(INT8_GROUPS)}),
)  # fmt: skip
OF_FP8_BLOCK = LinearKernels(
    variants={
        GEMV: fp8_block.fp8_block_gemv, WIDENED: make_dequantized(fp8_block.dequantize_fp8_block), WGMMA: fp8_block_wgmma.fp8_block_wgmma
    },
    choose=choose_fp8_block,
    most_rows={GEMV: MOST_ROWS_OF_GEMV},
    activations={WIDENED: partial(quantize_row_groups, as_numbers=True)} | dict.fromkeys((GEMV, WGMMA), quantize_row_groups),
    workspaces={WIDENED: widened_matrix},
    gated=gated_fp8_block,
)  # fmt: skip
KERNELS = {  # by a Format's name
    INT8.name: w8a8(INT8, int8.int8_gemv, int8.widen_int8),
    FP8.name: w8a8(FP8, fp8.fp8_gemv, fp8.widen_fp8),
    FP8_BLOCKS.name: OF_FP8_BLOCK,
    INT8_GROUPS.name: OF_INT8_GROUPS,
    INT4.name: four_bits(INT4, int4.int4_gemv, int4.dequantize_int4),
    NF4.name: four_bits(NF4, group_gemv.nf4_gemv, group_gemv.dequantize_nf4),
}
