"""The GEMVs and GEMMs of quantised weights, and which of them is chosen for how many rows of x.

one row    int4, NF4, int8 and fp8: a GEMV on tensor cores, from compute capability 8.0 (fp8: 8.9) on
few rows   int4 and NF4 on Hopper: the batched GEMV for 2 to 8 rows, or to 16 with groups of 128 or more
W8A8       on Hopper a flat GEMM over the codes, then a wgmma GEMM; elsewhere a GEMV for up to 8 rows, then the widened matrix
fp8_block  a GEMV for one row; on Hopper a wgmma GEMM over the codes for more; elsewhere the GEMV for up to 8 rows, then the widened matrix
others     on Hopper the mixed-input GEMM beyond that; elsewhere a GEMV for up to 8 rows, then the widened matrix
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from minllm.kernels.activation.silu_quantized import silu_and_multiply_quantized
from minllm.kernels.arguments import rows_begin_on
from minllm.kernels.matmul.arguments import HALF_DTYPES, MOST_ROWS_OF_FLAT, MOST_ROWS_OF_GEMV
from minllm.kernels.matmul.quantized import (
    fp8,
    fp8_block,
    fp8_block_wgmma,
    int4,
    int8,
    int8_groups,
    nf4,
    tensor_core,
)
from minllm.kernels.matmul.quantized.batched_gemv import gemv as batched_gemv
from minllm.kernels.matmul.quantized.int4_codes import LONG_GROUP
from minllm.kernels.matmul.quantized.many_rows import make_dequantized, make_widened, widened_matrix, widened_matrix_and_sums
from minllm.kernels.matmul.quantized.mixed_input import gemm
from minllm.kernels.matmul.quantized.mixed_input.int4 import gated_int4_gemm, int4_gemm
from minllm.kernels.matmul.quantized.mixed_input.int8 import gated_int8_group_gemm, int8_group_gemm
from minllm.kernels.matmul.quantized.mixed_input.nf4 import gated_nf4_gemm, nf4_gemm
from minllm.kernels.matmul.quantized.row_groups import quantize_row_groups
from minllm.kernels.matmul.quantized.rows import QuantizedRows, quantize_rows
from minllm.kernels.matmul.quantized.tensor_core_gemv import gemv as tensor_core_gemv
from minllm.kernels.normalization.rms_norm_quantized import rms_norm_quantized
from minllm.runtime.array_protocol import Array
from minllm.runtime.device import HOPPER, current_device
from minllm.weights.format import LinearKernels

GEMV, WIDENED, FLAT, WGMMA = "gemv", "widened", "flat", "wgmma"
TENSOR_CORE_GEMV, BATCHED_GEMV = "tensor_core_gemv", "batched_gemv"
FEWEST_ROWS_OF_TILES = 2  # fewest rows of x for which tiles are decoded for tensor cores, if the batched GEMV is not chosen
MOST_ROWS_OF_SHORT_GROUPS = 8  # most rows of x for the batched GEMV with groups of fewer inputs than LONG_GROUP
MOST_ROWS_OF_FLAT_CODES = 64  # most rows of x for the flat GEMM over codes; at 256 wgmma is faster for every weight


def on_hopper(array: Array) -> bool:
    """Whether the array is on a GPU with wgmma. The simulator multiplies the widened matrix faster."""
    return not isinstance(array, np.ndarray) and current_device().compute_capability == HOPPER


def suits_tensor_cores(one_row: tensor_core_gemv.Format, x: Array, weight: Any) -> bool:
    """Whether the GEMV on tensor cores is the fastest, which quantises x itself; other kernels run faster in the simulator."""
    in_simulator = isinstance(weight.codes, np.ndarray)
    return not in_simulator and not isinstance(x, QuantizedRows) and tensor_core_gemv.fits(one_row, x, weight)


def choose_anywhere(x: Array, weight: Any) -> str:
    """The variant of every GPU: a GEMV for few rows of x if a row of codes is whole 16-byte loads, else the widened matrix."""
    return GEMV if x.shape[0] <= MOST_ROWS_OF_GEMV and weight.codes.shape[1] % 16 == 0 else WIDENED


def choose_w8a8(one_row: tensor_core_gemv.Format, x: Array, weight: Any) -> str:
    """The variant of int8 or fp8; on Hopper the GEMMs over codes were faster on an H200 from one row on."""
    if suits_tensor_cores(one_row, x, weight):
        return TENSOR_CORE_GEMV
    if on_hopper(weight.codes) and rows_begin_on(16, weight.codes):
        return FLAT if x.shape[0] <= MOST_ROWS_OF_FLAT_CODES else WGMMA
    return choose_anywhere(x, weight)


def choose_four_bits(one_row: tensor_core_gemv.Format, few_rows: batched_gemv.Format, x: Array, weight: Any) -> str:
    """The variant of int4 or NF4; on Hopper the batched GEMV, which splits K over a cluster, or the mixed-input GEMM."""
    if suits_tensor_cores(one_row, x, weight):
        return TENSOR_CORE_GEMV
    has_long_groups = x.shape[1] // gemm.scale_arrays(weight)[0].shape[0] >= LONG_GROUP
    few = x.shape[0] <= (batched_gemv.MOST_ROWS if has_long_groups else MOST_ROWS_OF_SHORT_GROUPS)
    if few and on_hopper(weight.codes) and batched_gemv.fits(few_rows, x, weight):
        return BATCHED_GEMV
    return choose_mixed_input(x, weight)


def choose_mixed_input(x: Array, weight: Any) -> str:
    """The variant of int8 in groups: the mixed-input GEMM for the rows of x for which a GEMV took longer on an H100."""
    is_faster = x.shape[0] >= FEWEST_ROWS_OF_TILES and on_hopper(weight.codes) and gemm.fits(x, weight)
    return WGMMA if is_faster else choose_anywhere(x, weight)


def choose_fp8_block(x: Array, weight: Any) -> str:
    """The variant of fp8 in blocks; thresholds measured on an H200."""
    return WGMMA if x.shape[0] > 1 and on_hopper(weight.codes) and fp8_block_wgmma.fits(weight) else choose_anywhere(x, weight)


def make_gated(launchers: Mapping[str, Callable], fits_wgmma: Callable[[Any, Any], bool], any_dtype: bool = False) -> Callable:
    """LinearKernels.gated by the launchers that fuse silu(gate) * up. any_dtype: wgmma's takes outputs of float32, too."""

    def gated(variant: str, x: Array, weight: Any, out_dtype: np.dtype) -> Callable | None:
        if variant in (TENSOR_CORE_GEMV, BATCHED_GEMV):
            fits = out_dtype == x.dtype
        else:
            fits = (any_dtype or out_dtype in HALF_DTYPES) and (variant != WGMMA or fits_wgmma(x, weight))
        return launchers.get(variant) if fits else None

    return gated


def fits_normed(one_row: tensor_core_gemv.Format, x: Array, weight: Any) -> bool:
    """Whether the GEMV fused with the norm before it supports these arrays.

    x * norm is rounded before the division by the root mean square. Large activations would overflow float16, but not codes.
    """
    return tensor_core_gemv.fits(one_row, x, weight) and (one_row.multiplies_codes or x.dtype != np.float16)


def of_one_row(one_row: tensor_core_gemv.Format) -> dict[str, Any]:
    """The fields of LinearKernels for one row of x: the GEMV on tensor cores with its fusions."""
    return dict(
        fits_normed=functools.partial(fits_normed, one_row),
        normed_linear=tensor_core_gemv.make_gemv(one_row),
        normed_gated=tensor_core_gemv.make_gated_gemv(one_row),
        normed_qkv=tensor_core_gemv.make_qkv_gemv(one_row),
    )


def w8a8(code: str, dtype: str, gemv: Callable, widen: Callable, one_row: tensor_core_gemv.Format) -> LinearKernels:
    """The kernels of int8 or fp8. code: the format's name; dtype: that of the codes on tensor cores."""
    quantise, of_codes, fused = functools.partial(quantize_rows, code=code), (GEMV, FLAT, WGMMA), of_one_row(one_row)
    runs = {FLAT: tensor_core.run_flat, WGMMA: tensor_core.run_wgmma}
    products = {variant: tensor_core.make_gemm(run, dtype) for variant, run in runs.items()}
    gated = {variant: tensor_core.make_gated_gemm(run, dtype) for variant, run in runs.items()}
    return LinearKernels(
        variants={GEMV: gemv, WIDENED: make_widened(widen), **products, TENSOR_CORE_GEMV: fused["normed_linear"]},
        choose=functools.partial(choose_w8a8, one_row),
        most_rows={GEMV: MOST_ROWS_OF_GEMV, FLAT: MOST_ROWS_OF_FLAT, TENSOR_CORE_GEMV: 1},
        activations={WIDENED: functools.partial(quantise, as_numbers=True)} | dict.fromkeys(of_codes, quantise),
        normed_activations=dict.fromkeys(of_codes, functools.partial(rms_norm_quantized, code=code)),
        gated_activations=dict.fromkeys(of_codes, functools.partial(silu_and_multiply_quantized, code=code)),
        workspaces={WIDENED: widened_matrix_and_sums},
        gated=make_gated(gated | {TENSOR_CORE_GEMV: fused["normed_gated"]}, lambda x, weight: True),
        **fused,
    )


def four_bits(
    gemv: Callable, dequantize: Callable, tiles: Any, gated_tiles: Any, one_row: tensor_core_gemv.Format, few_rows: batched_gemv.Format
) -> LinearKernels:
    """The kernels of int4 or NF4. tiles, gated_tiles: the mixed-input GEMM, without and with silu(gate) * up."""
    fused, batched, gated_batched = of_one_row(one_row), batched_gemv.make_gemv(few_rows), batched_gemv.make_gated_gemv(few_rows)
    gated = {WGMMA: gated_tiles, TENSOR_CORE_GEMV: fused["normed_gated"], BATCHED_GEMV: gated_batched}
    several = {WIDENED: make_dequantized(dequantize), WGMMA: tiles, BATCHED_GEMV: batched}
    return LinearKernels(
        variants={GEMV: gemv, **several, TENSOR_CORE_GEMV: fused["normed_linear"]},
        choose=functools.partial(choose_four_bits, one_row, few_rows),
        most_rows={GEMV: MOST_ROWS_OF_GEMV, BATCHED_GEMV: batched_gemv.MOST_ROWS, TENSOR_CORE_GEMV: 1},
        workspaces={WIDENED: widened_matrix},
        gated=make_gated(gated, fits_gated_tiles, any_dtype=True),
        **fused,
    )


def fits_gated_tiles(x: Array, weight: Any) -> bool:
    """Whether the mixed-input GEMM fused with silu(gate) * up supports these arrays."""
    return gemm.fits(x, weight, True)


INT8 = w8a8("int8", "int8", int8.int8_gemv, int8.widen_int8, tensor_core_gemv.INT8)
FP8 = w8a8("fp8", "float8_e4m3fn", fp8.fp8_gemv, fp8.widen_fp8, tensor_core_gemv.FP8)
INT4 = four_bits(int4.int4_gemv, int4.dequantize_int4, int4_gemm, gated_int4_gemm, tensor_core_gemv.INT4, batched_gemv.INT4)
NF4 = four_bits(nf4.nf4_gemv, nf4.dequantize_nf4, nf4_gemm, gated_nf4_gemm, tensor_core_gemv.NF4, batched_gemv.NF4)
INT8_GROUPS = LinearKernels(
    variants={GEMV: int8_groups.int8_group_gemv, WIDENED: make_dequantized(int8_groups.dequantize_int8_groups), WGMMA: int8_group_gemm},
    choose=choose_mixed_input,
    most_rows={GEMV: MOST_ROWS_OF_GEMV},
    workspaces={WIDENED: widened_matrix},
    gated=make_gated({WGMMA: gated_int8_group_gemm}, fits_gated_tiles, any_dtype=True),
)
FP8_BLOCK = LinearKernels(
    variants={
        GEMV: fp8_block.fp8_block_gemv,
        WIDENED: make_dequantized(fp8_block.dequantize_fp8_block),
        WGMMA: fp8_block_wgmma.fp8_block_wgmma,
    },
    choose=choose_fp8_block,
    most_rows={GEMV: MOST_ROWS_OF_GEMV},
    activations={
        GEMV: quantize_row_groups,
        WIDENED: functools.partial(quantize_row_groups, as_numbers=True),
        WGMMA: quantize_row_groups,
    },
    workspaces={WIDENED: widened_matrix},
    gated=make_gated({WGMMA: fp8_block_wgmma.gated_fp8_block_wgmma}, lambda x, weight: fp8_block_wgmma.fits(weight)),
)
