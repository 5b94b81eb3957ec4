"""The GEMVs and GEMMs of quantised weights, and which of them is chosen for how many rows of x.

one row    int4, NF4, int8 and fp8: a GEMV on tensor cores, from compute capability 8.0 (fp8: 8.9) on
few rows   int4 and NF4 on Hopper: the batched GEMV for 2 to 8 rows, or to 16 with groups of 128 or more
W8A8       on Hopper a flat GEMM over the codes, then a wgmma GEMM; elsewhere a GEMV for up to 8 rows, then the widened matrix
fp8_block  a GEMV for one row; on Hopper a wgmma GEMM over the codes for more; elsewhere the GEMV for up to 8 rows, then the widened matrix
others     on Hopper the mixed-input GEMM beyond that; elsewhere a GEMV for up to 8 rows, then the widened matrix
"""

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
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
from minllm.runtime.device import HOPPER, current_device
from minllm.weights.format import LinearKernels

TENSOR_CORE_GEMV, BATCHED_GEMV = "tensor_core_gemv", "batched_gemv"
OF_CODES = ("gemv", "flat", "wgmma")  # variants that multiply the codes themselves
FEWEST_ROWS_OF_TILES = 2  # fewest rows of x for which tiles are decoded for tensor cores, if the batched GEMV is not chosen
MOST_ROWS_OF_SHORT_GROUPS = 8  # most rows of x for the batched GEMV with groups of fewer inputs than LONG_GROUP
MOST_ROWS_OF_FLAT_CODES = 64  # most rows of x for the flat GEMM over codes; at 256 wgmma is faster for every weight


def choose(x: Any, weight: Any) -> str:
    """ "gemv" for at most MOST_ROWS_OF_GEMV rows of x if a row of codes is whole 16-byte loads, else "widened"."""
    return "gemv" if x.shape[0] <= MOST_ROWS_OF_GEMV and weight.codes.shape[1] % 16 == 0 else "widened"


def on_hopper(array: Any) -> bool:
    """Whether the array is on a GPU with wgmma. The simulator multiplies the widened matrix faster."""
    return not isinstance(array, np.ndarray) and current_device().compute_capability == HOPPER


def choose_mixed_input(x: Any, weight: Any) -> str:
    """The mixed-input GEMM for the rows of x for which a GEMV took longer on an H100; else `choose`."""
    is_faster = x.shape[0] >= FEWEST_ROWS_OF_TILES and on_hopper(weight.codes) and gemm.fits(x, weight)
    return "wgmma" if is_faster else choose(x, weight)


def choose_fp8_block(x: Any, weight: Any) -> str:
    """The variant of fp8 in blocks; thresholds measured on an H200."""
    return "wgmma" if x.shape[0] > 1 and on_hopper(weight.codes) and fp8_block_wgmma.fits(weight) else choose(x, weight)


def gated_fp8_block(variant: str, x: Any, weight: Any, out_dtype: np.dtype) -> Any:
    """The launcher of this variant that fuses silu(gate) * up; None if it has none for these arrays."""
    fits = variant == "wgmma" and out_dtype in HALF_DTYPES and fp8_block_wgmma.fits(weight)
    return fp8_block_wgmma.gated_fp8_block_wgmma if fits else None


def choose_w8a8(x: Any, weight: Any) -> str:
    """The variant of W8A8: on Hopper the GEMMs over codes, which were faster on an H200 from one row on."""
    if not on_hopper(weight.codes) or not rows_begin_on(16, weight.codes):
        return choose(x, weight)
    return "flat" if x.shape[0] <= MOST_ROWS_OF_FLAT_CODES else "wgmma"


def w8a8(code: str, dtype: str, gemv: Any, widen: Any) -> LinearKernels:
    """The kernels of W8A8. code: "int8" or "fp8"; dtype: that of the codes on tensor cores."""
    quantise, on_tensor_cores = functools.partial(quantize_rows, code=code), {"flat": tensor_core.run_flat, "wgmma": tensor_core.run_wgmma}
    products = {variant: tensor_core.make_gemm(run, dtype) for variant, run in on_tensor_cores.items()}
    gated = {variant: tensor_core.make_gated_gemm(run, dtype) for variant, run in on_tensor_cores.items()}
    return LinearKernels(
        variants={"gemv": gemv, "widened": make_widened(widen), **products},
        choose=choose_w8a8,
        most_rows={"gemv": MOST_ROWS_OF_GEMV, "flat": MOST_ROWS_OF_FLAT},
        activations={"widened": functools.partial(quantise, as_numbers=True)} | dict.fromkeys(OF_CODES, quantise),
        normed_activations=dict.fromkeys(OF_CODES, functools.partial(rms_norm_quantized, code=code)),
        gated_activations=dict.fromkeys(OF_CODES, functools.partial(silu_and_multiply_quantized, code=code)),
        workspaces={"widened": widened_matrix_and_sums},
        gated=lambda variant, x, weight, out_dtype: gated.get(variant) if out_dtype in HALF_DTYPES else None,
    )


def dequantized(gemv: Any, dequantize: Any, activations: Mapping[str, Any] = MappingProxyType({})) -> LinearKernels:
    """Kernels of weights with several scales per row: a GEMV, and for more rows of x the widened matrix."""
    return LinearKernels(
        variants={"gemv": gemv, "widened": make_dequantized(dequantize)},
        choose=choose,
        most_rows={"gemv": MOST_ROWS_OF_GEMV},
        activations=activations,
        workspaces={"widened": widened_matrix},
    )


def with_mixed_input(kernels: LinearKernels, launcher: Any, gated_launcher: Any) -> LinearKernels:
    """These kernels and the mixed-input GEMM as "wgmma". launcher, gated_launcher: without and with silu(gate) * up."""
    return kernels._replace(
        variants={**kernels.variants, "wgmma": launcher},
        choose=choose_mixed_input,
        gated=lambda variant, x, weight, out_dtype: gated_launcher if variant == "wgmma" and gemm.fits(x, weight, True) else None,
    )


INT8 = w8a8("int8", "int8", int8.int8_gemv, int8.widen_int8)
FP8 = w8a8("fp8", "float8_e4m3fn", fp8.fp8_gemv, fp8.widen_fp8)
INT4, NF4 = dequantized(int4.int4_gemv, int4.dequantize_int4), dequantized(nf4.nf4_gemv, nf4.dequantize_nf4)
INT4 = with_mixed_input(INT4, int4_gemm, gated_int4_gemm)
NF4 = with_mixed_input(NF4, nf4_gemm, gated_nf4_gemm)
INT8_GROUPS = dequantized(int8_groups.int8_group_gemv, int8_groups.dequantize_int8_groups)
INT8_GROUPS = with_mixed_input(INT8_GROUPS, int8_group_gemm, gated_int8_group_gemm)
ROW_GROUPS = {"gemv": quantize_row_groups, "wgmma": quantize_row_groups, "widened": functools.partial(quantize_row_groups, as_numbers=True)}
FP8_BLOCK = dequantized(fp8_block.fp8_block_gemv, fp8_block.dequantize_fp8_block, ROW_GROUPS)
FP8_BLOCK = FP8_BLOCK._replace(
    variants={**FP8_BLOCK.variants, "wgmma": fp8_block_wgmma.fp8_block_wgmma}, choose=choose_fp8_block, gated=gated_fp8_block,
)  # fmt: skip


def with_variant(
    kernels: LinearKernels, name: str, launchers: tuple[Any, Any], is_chosen: Callable[[Any, Any], bool], most_rows: int
) -> LinearKernels:
    """These kernels and the variant `name`, used if is_chosen. launchers: (matmul, fused silu(gate) * up)."""
    gemv, gated_gemv = launchers

    def gated(variant: str, x: Any, weight: Any, out_dtype: np.dtype) -> Any:
        if variant == name:
            return gated_gemv if out_dtype == x.dtype else None
        return kernels.gated(variant, x, weight, out_dtype)

    return kernels._replace(
        variants={**kernels.variants, name: gemv},
        choose=lambda x, weight: name if is_chosen(x, weight) else kernels.choose(x, weight),
        most_rows={**kernels.most_rows, name: most_rows},
        gated=gated,
    )


def with_tensor_core_gemv(kernels: LinearKernels, found: tensor_core_gemv.Format) -> LinearKernels:
    """These kernels and, for one row of x, the GEMV on tensor cores with its fusions; it quantises x itself."""
    gemv, gated_gemv, fits = tensor_core_gemv.make_gemv(found), tensor_core_gemv.make_gated_gemv(found), tensor_core_gemv.fits

    def is_chosen(x: Any, weight: Any) -> bool:
        in_simulator = isinstance(weight.codes, np.ndarray)  # other kernels run faster there
        return not in_simulator and not isinstance(x, QuantizedRows) and fits(found, x, weight)

    def fits_normed(x: Any, weight: Any) -> bool:
        # x * norm is rounded before the division by the root mean square. Large activations would overflow float16, but not codes.
        return fits(found, x, weight) and (found.multiplies_codes or x.dtype != np.float16)

    return with_variant(kernels, TENSOR_CORE_GEMV, (gemv, gated_gemv), is_chosen, 1)._replace(
        fits_normed=fits_normed, normed_linear=gemv, normed_gated=gated_gemv, normed_qkv=tensor_core_gemv.make_qkv_gemv(found)
    )


def with_batched_gemv(kernels: LinearKernels, found: batched_gemv.Format) -> LinearKernels:
    """These kernels with the batched GEMV, which splits K over a cluster, for up to 16 rows of x on Hopper."""
    launchers = batched_gemv.make_gemv(found), batched_gemv.make_gated_gemv(found)

    def is_chosen(x: Any, weight: Any) -> bool:
        has_long_groups = x.shape[1] // gemm.scale_arrays(weight)[0].shape[0] >= LONG_GROUP
        few = x.shape[0] <= (batched_gemv.MOST_ROWS if has_long_groups else MOST_ROWS_OF_SHORT_GROUPS)
        return few and on_hopper(weight.codes) and batched_gemv.fits(found, x, weight)

    return with_variant(kernels, BATCHED_GEMV, launchers, is_chosen, batched_gemv.MOST_ROWS)


INT4, NF4 = with_batched_gemv(INT4, batched_gemv.INT4), with_batched_gemv(NF4, batched_gemv.NF4)
INT8, FP8 = with_tensor_core_gemv(INT8, tensor_core_gemv.INT8), with_tensor_core_gemv(FP8, tensor_core_gemv.FP8)
INT4, NF4 = with_tensor_core_gemv(INT4, tensor_core_gemv.INT4), with_tensor_core_gemv(NF4, tensor_core_gemv.NF4)
