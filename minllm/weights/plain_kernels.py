"""The GEMMs and GEMVs of plain weights, and their fused forms."""

from collections.abc import Callable
from typing import Any

import numpy as np

from minllm.kernels.matmul import VARIANTS
from minllm.kernels.matmul.choice import choose_for
from minllm.kernels.matmul.flat import fused
from minllm.kernels.matmul.flat.fixed_order import fits_gated, gated_fixed_order
from minllm.kernels.matmul.flat.flat import fits_flat, gated_flat
from minllm.kernels.matmul.gemv.gemv import gated_gemv, matmul_gemv
from minllm.kernels.matmul.gemv.gemv_qkv import gemv_qkv_rope_append
from minllm.kernels.matmul.wgmma.wgmma import fits as fits_wgmma
from minllm.kernels.matmul.wgmma.wgmma import matmul_silu_and_multiply
from minllm.runtime.array_protocol import Array
from minllm.weights.format import LinearKernels, StreamKernels


def gated(variant: str, x: Array, weight: Any, out_dtype: np.dtype) -> Callable | None:
    """The launcher of this variant that fuses silu(gate) * up; None if it has none for these arrays."""
    if variant == "gemv":
        return gated_gemv
    if variant == "flat" and fits_flat(x, weight):
        return gated_flat
    if variant == "fixed_order" and fits_gated(x, weight):
        return gated_fixed_order
    return matmul_silu_and_multiply if variant == "wgmma" and fits_wgmma(x, weight) else None


KERNELS = LinearKernels(
    variants=VARIANTS,
    choose=choose_for,
    most_rows={name: found.most_rows for name, found in VARIANTS.entries.items() if found.most_rows is not None},
    gated=gated,
    normed_linear=matmul_gemv,
    normed_gated=gated_gemv,
    normed_qkv=gemv_qkv_rope_append,
    stream=StreamKernels(fused.fits_fused, fused.linear_add, fused.gated, fused.qkv_rope_append),
)
