"""GEMV over int8 weights in groups that share a scale (W8A16), and their dequantisation.

    w[n, k] = code[n, k] * scale[n, g],  g = k // group_size
    out[m, n] = sum over groups of scale[n, g] * (sum over the group of x[m, k] * code[n, k]) + bias[n]          M <= 8

2 M N K FLOPs on N K bytes of codes, each read once: 2 M FLOPs per byte, memory-bound. Work is divided as in int4.py, with 16 codes per
load. The equation in NumPy is dequantize_int8_groups_reference
(kernels/quantization/int8_groups.py).

Source: ggml-common.h, block_q8_0 (groups of 32).
"""

import functools

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.quantized.arguments import WARPS, check_groups, check_rows
from minllm.kernels.matmul.quantized.sums import make_add_products, make_store_column
from minllm.kernels.quantization.int8 import unpack_int8
from minllm.kernels.vector import load_words, vector_access
from minllm.runtime.kernel import kernel, launch
from minllm.tiles.warp import WARP

EACH = 16  # codes per load of 16 bytes


@functools.cache
def int8_group_gemv_kernel(m: int, group_size: int, dtype: str):
    """The kernel for `m` rows of x in `dtype`."""
    add_products, store_column = make_add_products(m, EACH, dtype), make_store_column(m)

    @kernel(launch_bounds=WARPS * WARP)
    def int8_group_gemv_kernel(x, codes, scales, bias, out):
        """x [M, K], codes [N, K], scales [groups, N], bias [N] or None, out [M, N]; one warp per column of out."""
        lane, n = int32(cuda.threadIdx.x) & (WARP - 1), cuda.blockIdx.x * WARPS + (int32(cuda.threadIdx.x) >> 5)
        if n >= out.shape[1]:
            return
        k, words, sums = x.shape[1], cuda.local.array(4, uint32), cuda.local.array(m, float32)
        weight, row = cuda.local.array(EACH, float32), cuda.local.array(EACH, float32)
        for i in range(m):
            sums[i] = float32(0)
        for vector in range(lane, k // EACH, WARP):
            load_words(codes, int64(n) * k + vector * EACH, words, 0)
            for word in range(4):
                unpack_int8(words[word], None, weight, 4 * word)
            scale = float32(scales[vector * EACH // group_size, n])
            add_products(x, vector * EACH, weight, scale, row, sums)
        store_column(sums, lane, n, bias, out)

    return int8_group_gemv_kernel


@functools.cache
def dequantize_int8_groups_kernel(group_size: int, dtype: str):
    """The kernel that writes the dequantised matrix in `dtype`."""
    width, _, store = vector_access(dtype)

    @kernel(launch_bounds=WARPS * WARP)
    def dequantize_int8_groups_kernel(codes, scales, out):
        """codes [N, K], scales [groups, N], out [N, K]; one block per row, 16 numbers per thread."""
        n, k, words, values = cuda.blockIdx.x, out.shape[1], cuda.local.array(4, uint32), cuda.local.array(EACH, float32)
        for vector in range(int32(cuda.threadIdx.x), k // EACH, WARPS * WARP):
            load_words(codes, int64(n) * k + vector * EACH, words, 0)
            for word in range(4):
                unpack_int8(words[word], None, values, 4 * word)
            scale = float32(scales[vector * EACH // group_size, n])
            for j in range(EACH):
                values[j] *= scale
            for at in range(0, EACH, width):
                store(out, int64(n) * k + vector * EACH + at, values, at)

    return dequantize_int8_groups_kernel


def int8_group_gemv(x, weight, out, bias=None, stream=None) -> None:
    """Write x @ weight.T + bias into `out` [M, N].

    x [M, K], M <= 8, K % 16 == 0, float32, float16 or bfloat16; weight: an Int8GroupWeight; bias [N] or None. Raises KernelArgumentError
    (see check_rows and check_groups).
    """
    m, n = check_rows(x, weight.codes, out, bias, EACH)
    check_groups(n, x.shape[1], EACH, scales=weight.scales)
    chosen = int8_group_gemv_kernel(m, x.shape[1] // weight.scales.shape[0], x.dtype.name)
    launch(chosen, ceil_div(n, WARPS), WARPS * WARP, (x, *weight, bias, out), stream)


def dequantize_int8_groups(weight, out, stream=None) -> None:
    """Dequantise an Int8GroupWeight into `out` [N, K], rounded to the dtype of `out`. Raises KernelArgumentError (see check_groups)."""
    check_groups(*out.shape, EACH, scales=weight.scales)
    chosen = dequantize_int8_groups_kernel(out.shape[1] // weight.scales.shape[0], out.dtype.name)
    launch(chosen, out.shape[0], WARPS * WARP, (*weight, out), stream)
