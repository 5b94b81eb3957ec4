"""GEMV over fp8 (e4m3) weights and fp8 rows of x (W8A8).

    out[m, n] = (sum over k of x_code[m, k] * code[n, k]) * x_scale[m] * scale[n] + bias[n]          M <= 8

As int8.py, except that codes are converted to float32 in registers, two per instruction, and summed by FMA: 2 M N K FLOPs on N K bytes.
The conversion needs compute capability 8.9 or later. The equation in NumPy is RowFormat.linear (weights/quantized.py).
"""

import functools

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.quantized.arguments import CODE_DTYPES, WARPS, check_rows
from minllm.kernels.quantization.decoder import make_unpack
from minllm.kernels.quantization.fp8 import unpack_fp8
from minllm.kernels.vector import load_words
from minllm.ptx import unpack_e4m3x2
from minllm.runtime.kernel import kernel, launch
from minllm.tiles.warp import WARP, warp_sum

EACH = 16  # codes per load of 16 bytes
unpack_16 = make_unpack(unpack_fp8, 1)


@functools.cache
def fp8_gemv_kernel(m: int):
    """The kernel for `m` rows of x."""

    @kernel(launch_bounds=WARPS * WARP)
    def fp8_gemv_kernel(x, x_scales, codes, scales, bias, out):
        """x [M, K], x_scales [M], codes [N, K], scales [N], bias [N] or None, out [M, N]; one warp per column of out."""
        lane, n = int32(cuda.threadIdx.x) & (WARP - 1), cuda.blockIdx.x * WARPS + (int32(cuda.threadIdx.x) >> 5)
        if n >= out.shape[1]:
            return
        k, words = codes.shape[1], cuda.local.array(4, uint32)
        sums, weight, row = cuda.local.array(m, float32), cuda.local.array(EACH, float32), cuda.local.array(EACH, float32)
        for i in range(m):
            sums[i] = float32(0)
        for vector in range(lane, k // EACH, WARP):
            load_words(codes, int64(n) * k + vector * EACH, words, 0)
            unpack_16(words, None, weight)
            for i in range(m):
                load_words(x, int64(i) * k + vector * EACH, words, 0)
                unpack_16(words, None, row)
                for j in range(EACH):
                    sums[i] += row[j] * weight[j]
        for i in range(m):
            total = warp_sum(sums[i])
            if lane == 0:
                value = total * x_scales[i] * scales[n]
                if bias is not None:
                    value += float32(bias[n])
                out[i, n] = value

    return fp8_gemv_kernel


@kernel
def widen_fp8_kernel(codes, out):
    """Write codes [N, K] as numbers into out [N, K], in its dtype; one block per row."""
    n = cuda.blockIdx.x
    for k in range(cuda.threadIdx.x, out.shape[1], cuda.blockDim.x):
        out[n, k] = unpack_e4m3x2(uint32(codes[n, k]))[0]


def fp8_gemv(x, weight, out, bias=None, stream=None) -> None:
    """Write x @ weight.T + bias into `out` [M, N], for x and weight in fp8 codes with scales.

    x: QuantizedRows [M, K], M <= 8, K % 16 == 0; weight: codes uint8 [N, K], scales [N]; bias [N] or None. Raises KernelArgumentError (see
    check_rows).
    """
    m, n = check_rows(x.codes, weight.codes, out, bias, EACH, dtypes=CODE_DTYPES)
    launch(fp8_gemv_kernel(m), ceil_div(n, WARPS), WARPS * WARP, (*x, *weight, bias, out), stream)


def widen_fp8(weight, out, stream=None) -> None:
    """Write the codes of a weight as numbers, without scales, into `out` [N, K]."""
    launch(widen_fp8_kernel, out.shape[0], WARPS * WARP, (weight.codes, out), stream)
