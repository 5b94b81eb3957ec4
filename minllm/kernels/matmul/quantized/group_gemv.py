"""GEMV over NF4 weights and over int8 in groups (W4A16, W8A16) on CUDA cores, and their dequantisation.

    w[n, k] = number(code[n, k]) * scale[n, g],  g = k // group_size
    out[m, n] = sum over groups of scale[n, g] * (sum over the group of x[m, k] * number(code[n, k])) + bias[n]          M <= 8

number: the code itself, or an entry of NF4's table (kernels/quantization/int8_groups.py and nf4.py). 2 M N K FLOPs on N K or N K / 2 bytes
of codes, each read once: 2 or 4 M FLOPs per byte, memory-bound. Work is divided as in int4.py: a lane loads 16 bytes of codes of one group.
"""

import functools
from collections.abc import Callable

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.arguments import ceil_div, check_array
from minllm.kernels.matmul.arguments import FLOAT32
from minllm.kernels.matmul.quantized.arguments import UINT8, WARPS, check_groups, check_rows
from minllm.kernels.matmul.quantized.sums import make_add_products, make_store_column
from minllm.kernels.quantization.decoder import Format, make_unpack
from minllm.kernels.quantization.int8_groups import INT8_GROUPS
from minllm.kernels.quantization.nf4 import BLOCK_SHIFT, NF4
from minllm.kernels.vector import load_words, vector_access
from minllm.runtime.kernel import kernel, launch
from minllm.tiles.warp import WARP

LOAD = 16  # bytes of codes per load
ABSMAX_DTYPES = UINT8, FLOAT32  # with and without double quantisation


@functools.cache
def group_gemv_kernel(m: int, found: Format, kind: tuple, dtype: str):
    """The kernel for `m` rows of x in `dtype`, and weights of this kind."""
    each, shift, decoder, unpack = LOAD * found.per_byte, found.per_byte - 1, found.groups(*kind), make_unpack(found.unpack, found.per_byte)
    add_products, store_column, (entries, fill, scale_of) = make_add_products(m, each, dtype), make_store_column(m), decoder

    @kernel(launch_bounds=WARPS * WARP)
    def group_gemv_kernel(x, weight, bias, out):
        """x [M, K], weight [N, K]: the format's arrays, bias [N] or None, out [M, N]; one warp per column of out."""
        table = cuda.shared.array(entries, float32)
        fill(table, weight)
        lane, n = int32(cuda.threadIdx.x) & (WARP - 1), cuda.blockIdx.x * WARPS + (int32(cuda.threadIdx.x) >> 5)
        if n >= out.shape[1]:
            return
        k, words, sums = x.shape[1], cuda.local.array(4, uint32), cuda.local.array(m, float32)
        numbers, row = cuda.local.array(each, float32), cuda.local.array(each, float32)
        for i in range(m):
            sums[i] = float32(0)
        for vector in range(lane, k // each, WARP):
            load_words(weight.codes, (int64(n) * k + vector * each) >> shift, words, 0)
            unpack(words, table, numbers)
            add_products(x, vector * each, numbers, scale_of(weight, n, vector * each), row, sums)
        store_column(sums, lane, n, bias, out)

    return group_gemv_kernel


@functools.cache
def dequantize_groups_kernel(found: Format, kind: tuple, dtype: str):
    """The kernel that writes the dequantised matrix in `dtype`."""
    each, shift, decoder, unpack = LOAD * found.per_byte, found.per_byte - 1, found.groups(*kind), make_unpack(found.unpack, found.per_byte)
    (width, _, store), (entries, fill, scale_of) = vector_access(dtype), decoder

    @kernel(launch_bounds=WARPS * WARP)
    def dequantize_groups_kernel(weight, out):
        """weight [N, K]: the format's arrays, out [N, K]; one block per row, a load of codes at a time per thread."""
        table = cuda.shared.array(entries, float32)
        fill(table, weight)
        n, k, words, values = cuda.blockIdx.x, out.shape[1], cuda.local.array(4, uint32), cuda.local.array(each, float32)
        for vector in range(int32(cuda.threadIdx.x), k // each, WARPS * WARP):
            load_words(weight.codes, (int64(n) * k + vector * each) >> shift, words, 0)
            unpack(words, table, values)
            scale = scale_of(weight, n, vector * each)
            for j in range(each):
                values[j] *= scale
            for at in range(0, each, width):
                store(out, int64(n) * k + vector * each + at, values, at)

    return dequantize_groups_kernel


def check_scales(found: Format, weight, n: int, k: int) -> None:
    """Raise KernelArgumentError unless the scales of a weight [n, k], or its absmax, fit."""
    if found is NF4:
        check_array("absmax", weight.absmax, ABSMAX_DTYPES, blocks=k >> BLOCK_SHIFT, N=n)
    else:
        check_groups(n, k, LOAD * found.per_byte, scales=weight.scales)


def make_gemv(found: Format) -> Callable:
    """The launcher of a GEMV over NF4, or over int8 in groups."""

    def group_gemv(x, weight, out, bias=None, stream=None) -> None:
        """Write x @ weight.T + bias into `out` [M, N].

        x [M, K], M <= 8, K a multiple of the codes in 16 bytes, float32, float16 or bfloat16; weight: the format's NamedTuple; bias [N] or
        None. Raises KernelArgumentError (see check_rows and check_scales).
        """
        m, n = check_rows(x, weight.codes, out, bias, LOAD * found.per_byte, per_byte=found.per_byte)
        check_scales(found, weight, n, x.shape[1])
        chosen = group_gemv_kernel(m, found, found.kind(weight, x.shape[1]), x.dtype.name)
        launch(chosen, ceil_div(n, WARPS), WARPS * WARP, (x, weight, bias, out), stream)

    return group_gemv


def make_dequantize(found: Format) -> Callable:
    """The launcher that writes a weight as numbers."""

    def dequantize(weight, out, stream=None) -> None:
        """Dequantise a weight into `out` [N, K], rounded to the dtype of `out`. Raises KernelArgumentError (see check_scales)."""
        check_scales(found, weight, *out.shape)
        chosen = dequantize_groups_kernel(found, found.kind(weight, out.shape[1]), out.dtype.name)
        launch(chosen, out.shape[0], WARPS * WARP, (weight, out), stream)

    return dequantize


nf4_gemv, int8_group_gemv = make_gemv(NF4), make_gemv(INT8_GROUPS)
dequantize_nf4, dequantize_int8_groups = make_dequantize(NF4), make_dequantize(INT8_GROUPS)
