"""GEMV over fp8 (e4m3) weights in blocks of 128 x 128 and x in groups of 128 (W8A8), and dequantisation.

    out[m, n] = sum over groups g of 128 inputs of
                (sum over k in g of x_code[m, k] * code[n, k]) * x_scale[m, g] * scale[block(n), g] + bias[n]          M <= 8

As fp8.py, except that sums are scaled before they are added to those of other groups: one multiplication by each scale per load of 16
codes. block(n) is an array, because each of several stacked modules starts its own blocks of 128 outputs, and its last may be smaller.
The equation in NumPy is Fp8BlockFormat.linear (weights/quantized.py).

Source: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 3.3.2 (tiles of 1 x 128 and blocks of 128 x 128).
"""

import functools

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.quantized.arguments import CODE_DTYPES, WARPS, check_rows
from minllm.kernels.matmul.quantized.fp8 import EACH, unpack_16
from minllm.kernels.matmul.quantized.sums import make_store_column
from minllm.kernels.vector import load_words
from minllm.ptx import unpack_e4m3x2
from minllm.runtime.kernel import kernel, launch
from minllm.tiles.warp import WARP

BLOCK_SHIFT = 7  # log2 of the inputs of a block


@functools.cache
def fp8_block_gemv_kernel(m: int):
    """The kernel for `m` rows of x."""
    store_column = make_store_column(m)

    @kernel(launch_bounds=WARPS * WARP)
    def fp8_block_gemv_kernel(x, x_scales, codes, scales, blocks, bias, out):
        """x [M, K], x_scales [M, groups], codes [N, K], scales [blocks, groups], blocks [N], bias [N] or None, out [M, N]; one warp per
        column of out."""
        lane, n = int32(cuda.threadIdx.x) & (WARP - 1), cuda.blockIdx.x * WARPS + (int32(cuda.threadIdx.x) >> 5)
        if n >= out.shape[1]:
            return
        k, words, block = codes.shape[1], cuda.local.array(4, uint32), blocks[n]
        sums, weight, row = cuda.local.array(m, float32), cuda.local.array(EACH, float32), cuda.local.array(EACH, float32)
        for i in range(m):
            sums[i] = float32(0)
        for vector in range(lane, k // EACH, WARP):
            load_words(codes, int64(n) * k + vector * EACH, words, 0)
            unpack_16(words, None, weight)
            group = vector * EACH >> BLOCK_SHIFT
            scale = scales[block, group]
            for i in range(m):
                load_words(x, int64(i) * k + vector * EACH, words, 0)
                unpack_16(words, None, row)
                part = float32(0)
                for j in range(EACH):
                    part += row[j] * weight[j]
                sums[i] += part * (x_scales[i, group] * scale)
        store_column(sums, lane, n, bias, out)

    return fp8_block_gemv_kernel


@kernel
def dequantize_fp8_block_kernel(codes, scales, blocks, out):
    """codes [N, K], scales [blocks, groups], blocks [N], out [N, K]; one block of threads per row."""
    n = cuda.blockIdx.x
    for k in range(int32(cuda.threadIdx.x), out.shape[1], cuda.blockDim.x):
        out[n, k] = unpack_e4m3x2(uint32(codes[n, k]))[0] * scales[blocks[n], k >> BLOCK_SHIFT]


def fp8_block_gemv(x, weight, out, bias=None, stream=None) -> None:
    """Write x @ weight.T + bias into `out` [M, N], for x and weight in fp8 codes with scales.

    x: RowGroups [M, K], M <= 8, K % 16 == 0; weight: an Fp8BlockWeight; bias [N] or None. Raises KernelArgumentError (see check_rows).
    """
    m, n = check_rows(x.codes, weight.codes, out, bias, EACH, dtypes=CODE_DTYPES)
    launch(fp8_block_gemv_kernel(m), ceil_div(n, WARPS), WARPS * WARP, (*x, *weight, bias, out), stream)


def dequantize_fp8_block(weight, out, stream=None) -> None:
    """Dequantise an Fp8BlockWeight into `out` [N, K], rounded to the dtype of `out`."""
    launch(dequantize_fp8_block_kernel, out.shape[0], WARPS * WARP, (*weight, out), stream)
