"""GEMV over NF4 weights (W4A16), and their dequantisation.

    absmax[n, b] = map[absmax_code[n, b]] * nested[(first_block[n] + b) // 256] + offset[n]
    w[n, k] = table[code[n, k]] * absmax[n, k // 64]
    out[m, n] = sum over blocks of absmax[n, b] * (sum over the block of x[m, k] * table[code[n, k]]) + bias[n]          M <= 8

As int4.py, except that a code is the index of one of 16 numbers. The table lies in 16 banks of shared memory, so lanes never conflict:
different numbers are in different banks, and the same number is broadcast. It costs one load per number, which int4 does not need.
The equation in NumPy is dequantize_nf4_reference (kernels/quantization/nf4.py).

Source: Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs", section 3.
"""

import functools

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.arguments import ceil_div, check_array
from minllm.kernels.matmul.arguments import FLOAT32
from minllm.kernels.matmul.quantized.arguments import UINT8, WARPS, check_rows
from minllm.kernels.matmul.quantized.sums import make_add_products, make_store_column
from minllm.kernels.quantization.nf4 import BLOCK_SHIFT, absmax_of, look_up
from minllm.kernels.vector import load_words, vector_access
from minllm.runtime.kernel import kernel, launch
from minllm.tiles.warp import WARP

EACH = 32  # codes per load of 16 bytes
ABSMAX_DTYPES = UINT8, FLOAT32  # with and without double quantisation


@functools.cache
def nf4_gemv_kernel(m: int, dtype: str):
    """The kernel for `m` rows of x in `dtype`."""
    add_products, store_column = make_add_products(m, EACH, dtype), make_store_column(m)

    @kernel(launch_bounds=WARPS * WARP)
    def nf4_gemv_kernel(x, codes, absmax, nested, absmax_map, offsets, first_blocks, table, bias, out):
        """x [M, K], codes [N, K / 2], absmax [K / 64, N], nested [...] or None, absmax_map [256], offsets [N], first_blocks [N],
        table [16], bias [N] or None, out [M, N]; one warp per column of out."""
        shared = cuda.shared.array(16, float32)
        if cuda.threadIdx.x < 16:
            shared[cuda.threadIdx.x] = table[cuda.threadIdx.x]
        cuda.syncthreads()
        lane, n = int32(cuda.threadIdx.x) & (WARP - 1), cuda.blockIdx.x * WARPS + (int32(cuda.threadIdx.x) >> 5)
        if n >= out.shape[1]:
            return
        k, words, sums = x.shape[1], cuda.local.array(4, uint32), cuda.local.array(m, float32)
        weight, row = cuda.local.array(EACH, float32), cuda.local.array(EACH, float32)
        for i in range(m):
            sums[i] = float32(0)
        for vector in range(lane, k // EACH, WARP):
            load_words(codes, (int64(n) * k + vector * EACH) >> 1, words, 0)
            for word in range(4):
                look_up(words[word], shared, weight, 8 * word)
            scale = absmax_of(n, vector * EACH >> BLOCK_SHIFT, absmax, nested, absmax_map, offsets, first_blocks)
            add_products(x, vector * EACH, weight, scale, row, sums)
        store_column(sums, lane, n, bias, out)

    return nf4_gemv_kernel


@functools.cache
def dequantize_nf4_kernel(dtype: str):
    """The kernel that writes the dequantised matrix in `dtype`."""
    width, _, store = vector_access(dtype)

    @kernel(launch_bounds=WARPS * WARP)
    def dequantize_nf4_kernel(codes, absmax, nested, absmax_map, offsets, first_blocks, table, out):
        """Arrays as in nf4_gemv_kernel, out [N, K]; one block per row, 32 numbers per thread."""
        shared = cuda.shared.array(16, float32)
        if cuda.threadIdx.x < 16:
            shared[cuda.threadIdx.x] = table[cuda.threadIdx.x]
        cuda.syncthreads()
        n, k, words, values = cuda.blockIdx.x, out.shape[1], cuda.local.array(4, uint32), cuda.local.array(EACH, float32)
        for vector in range(int32(cuda.threadIdx.x), k // EACH, WARPS * WARP):
            load_words(codes, (int64(n) * k + vector * EACH) >> 1, words, 0)
            for word in range(4):
                look_up(words[word], shared, values, 8 * word)
            scale = absmax_of(n, vector * EACH >> BLOCK_SHIFT, absmax, nested, absmax_map, offsets, first_blocks)
            for j in range(EACH):
                values[j] *= scale
            for at in range(0, EACH, width):
                store(out, int64(n) * k + vector * EACH + at, values, at)

    return dequantize_nf4_kernel


def nf4_gemv(x, weight, out, bias=None, stream=None) -> None:
    """Write x @ weight.T + bias into `out` [M, N].

    x [M, K], M <= 8, K % 32 == 0, float32, float16 or bfloat16; weight: an Nf4Weight; bias [N] or None. Raises KernelArgumentError (see
    check_rows).
    """
    m, n = check_rows(x, weight.codes, out, bias, EACH, per_byte=2)
    check_array("absmax", weight.absmax, ABSMAX_DTYPES, blocks=x.shape[1] >> BLOCK_SHIFT, N=n)
    launch(nf4_gemv_kernel(m, x.dtype.name), ceil_div(n, WARPS), WARPS * WARP, (x, *weight, bias, out), stream)


def dequantize_nf4(weight, out, stream=None) -> None:
    """Dequantise an Nf4Weight into `out` [N, K], rounded to the dtype of `out`. Raises KernelArgumentError if absmax does not fit."""
    check_array("absmax", weight.absmax, ABSMAX_DTYPES, blocks=out.shape[1] >> BLOCK_SHIFT, N=out.shape[0])
    launch(dequantize_nf4_kernel(out.dtype.name), out.shape[0], WARPS * WARP, (*weight, out), stream)
