"""Rows of x quantised to fp8 in groups of 128 inputs, one scale per group, for weights in blocks.

    scale[m, g] = max over k in g of |x[m, k]| / 448        code[m, k] = e4m3(x[m, k] / scale[m, g])

M rows of K numbers: about 5 M K FLOPs, M K b bytes read and M K written; memory-bound. A warp quantises one group, and keeps it in
registers, four numbers per lane, between the maximum and the codes. The results equal quantize_row_groups of quantization/fp8_block.py,
bit for bit.

For a GEMM of 16-bit numbers it writes code * scale instead, rounded to x's dtype.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32

from minllm.kernels.arguments import FLOAT_DTYPES, ceil_div, check_array
from minllm.kernels.quantization.fp8 import LARGEST, fp8_bits, fp8_number
from minllm.kernels.quantization.groups import FP8_BLOCK
from minllm.ptx import rcp_rn
from minllm.runtime.array_protocol import Array
from minllm.runtime.kernel import kernel, launch
from minllm.tiles.warp import WARP, warp_max

GROUP, WARPS, EACH = FP8_BLOCK, 8, 4


class RowGroups(NamedTuple):
    """x [M, K] as fp8 codes, and one scale per row and group of 128 inputs."""

    codes: Array  # uint8 [M, K], the bits of e4m3
    scales: Array  # float32 [M, groups]


@functools.cache
def quantize_row_groups_kernel(as_numbers: bool):
    """The kernel that writes codes and scales, or dequantised numbers."""

    @kernel(launch_bounds=WARPS * WARP)
    def quantize_row_groups_kernel(x, codes, scales):
        """x [M, K], codes [M, K], scales [M, groups] or None; one warp per group of a row."""
        row, lane, k = cuda.blockIdx.x, int32(cuda.threadIdx.x) & (WARP - 1), x.shape[1]
        group = cuda.blockIdx.y * WARPS + (int32(cuda.threadIdx.x) >> 5)
        first, values, top = int32(group * GROUP + lane), cuda.local.array(EACH, float32), float32(0)
        for i in range(EACH):
            at = first + i * WARP
            values[i] = float32(x[row, at]) if at < k else float32(0)
            top = max(top, abs(values[i]))
        scale = warp_max(top) * float32(1 / LARGEST)
        inverse = rcp_rn(scale) if scale > float32(0) else float32(0)
        if scales is not None and lane == 0 and first < k:
            scales[row, group] = scale
        for i in range(EACH):
            at = first + i * WARP
            if at < k:
                value = min(max(values[i] * inverse, float32(-LARGEST)), float32(LARGEST))
                if as_numbers:
                    codes[row, at] = fp8_number(value) * scale
                else:
                    codes[row, at] = fp8_bits(value)

    return quantize_row_groups_kernel


def quantize_row_groups(x, empty, stream=None, as_numbers: bool = False) -> Any:
    """Return x [M, K], float32, float16 or bfloat16, as RowGroups; empty(shape, dtype) makes the arrays.

    as_numbers: return the dequantised numbers [M, K] in the dtype of x instead. Raises KernelArgumentError for another dtype of x.
    """
    check_array("x", x, FLOAT_DTYPES, M=None, K=None)
    m, groups = x.shape[0], ceil_div(x.shape[1], GROUP)
    codes = empty(x.shape, x.dtype if as_numbers else np.dtype(np.uint8))
    scales = None if as_numbers else empty((m, groups), np.dtype(np.float32))
    grid = (m, ceil_div(groups, WARPS))
    launch(quantize_row_groups_kernel(as_numbers), grid, WARPS * WARP, (x, codes, scales), stream)
    return codes if as_numbers else RowGroups(codes, scales)
