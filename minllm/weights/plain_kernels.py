"""The matrix products of plain weights, and what is fused with them."""

from collections.abc import Callable
from typing import Any

from minllm.kernels.matmul import MAX_ROWS_OF_X, VARIANTS, choose_for, matmul_silu_and_multiply
from minllm.kernels.matmul.flat.flat import MOST_ROWS as MOST_ROWS_OF_FLAT
from minllm.kernels.matmul.flat.flat import fits_flat, gated_flat
from minllm.kernels.matmul.gemv.gemv import gated_gemv, matmul_gemv
from minllm.kernels.matmul.gemv.gemv_qkv import gemv_qkv_rope_append
from minllm.kernels.matmul.wgmma.wgmma import fits as fits_wgmma
from minllm.weights.format import LinearKernels


def gated(variant: str, x: Any, weight: Any) -> Callable | None:
    """The launcher of silu(gate) * up within this variant; None if it has none for these arrays."""
    if variant == "gemv":
        return gated_gemv
    if variant == "flat" and fits_flat(x, weight):
        return gated_flat
    return matmul_silu_and_multiply if variant == "wgmma" and fits_wgmma(x, weight) else None


KERNELS = LinearKernels(
    variants=VARIANTS,
    choose=choose_for,
    most_rows={"gemv": MAX_ROWS_OF_X, "flat": MOST_ROWS_OF_FLAT},
    gated=gated,
    normed_linear=matmul_gemv,
    normed_gated=gated_gemv,
    normed_qkv=gemv_qkv_rope_append,
)
