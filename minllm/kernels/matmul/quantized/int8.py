"""GEMV over int8 weights and int8 rows of x (W8A8).

    out[m, n] = (sum over k of x_code[m, k] * code[n, k]) * x_scale[m] * scale[n] + bias[n]          M <= 8

2 M N K operations on N K bytes of weights, read once: 2 M operations per byte, memory-bound. A warp computes one output feature: a lane
loads 16 codes of it and of each row of x, and dp4a multiplies four pairs per instruction into an int32, exactly. Shuffles add the lanes'
sums, which are then multiplied by both scales. The equation in NumPy is RowFormat.linear (weights/quantized.py).

Source: PTX ISA, "dp4a".
"""

import functools

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.quantized.arguments import CODE_DTYPES, WARPS, check_rows
from minllm.kernels.vector import load_words
from minllm.ptx import dp4a
from minllm.runtime.kernel import kernel, launch
from minllm.tiles.warp import WARP, warp_sum

EACH = 16  # codes per load of 16 bytes


@functools.cache
def int8_gemv_kernel(m: int):
    """The kernel for `m` rows of x."""

    @kernel(launch_bounds=WARPS * WARP)
    def int8_gemv_kernel(x, x_scales, codes, scales, bias, out):
        """x [M, K], x_scales [M], codes [N, K], scales [N], bias [N] or None, out [M, N]; one warp per column of out."""
        lane, n = int32(cuda.threadIdx.x) & (WARP - 1), cuda.blockIdx.x * WARPS + (int32(cuda.threadIdx.x) >> 5)
        if n >= out.shape[1]:
            return
        k = codes.shape[1]
        sums, weight, row = cuda.local.array(m, uint32), cuda.local.array(4, uint32), cuda.local.array(4, uint32)
        for i in range(m):
            sums[i] = uint32(0)
        for vector in range(lane, k // EACH, WARP):
            load_words(codes, int64(n) * k + vector * EACH, weight, 0)
            for i in range(m):
                load_words(x, int64(i) * k + vector * EACH, row, 0)
                for word in range(4):
                    sums[i] = dp4a(row[word], weight[word], sums[i])
        for i in range(m):
            total = warp_sum(int32(sums[i]))
            if lane == 0:
                value = float32(total) * x_scales[i] * scales[n]
                if bias is not None:
                    value += float32(bias[n])
                out[i, n] = value

    return int8_gemv_kernel


@kernel
def widen_int8_kernel(codes, out):
    """Write codes [N, K] as numbers into out [N, K], in its dtype; one block per row."""
    n = cuda.blockIdx.x
    for k in range(cuda.threadIdx.x, out.shape[1], cuda.blockDim.x):
        out[n, k] = float32(codes[n, k])


def int8_gemv(x, weight, out, bias=None, stream=None) -> None:
    """Write x @ weight.T + bias into `out` [M, N], for x and weight in int8 codes with scales.

    x: QuantizedRows [M, K], M <= 8, K % 16 == 0; weight: codes int8 [N, K], scales [N]; bias [N] or None. Raises KernelArgumentError (see
    check_rows).
    """
    m, n = check_rows(x.codes, weight.codes, out, bias, EACH, dtypes=CODE_DTYPES)
    launch(int8_gemv_kernel(m), ceil_div(n, WARPS), WARPS * WARP, (*x, *weight, bias, out), stream)


def widen_int8(weight, out, stream=None) -> None:
    """Write the codes of a weight as numbers, without scales, into `out` [N, K]."""
    launch(widen_int8_kernel, out.shape[0], WARPS * WARP, (weight.codes, out), stream)
