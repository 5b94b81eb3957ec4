"""GEMV over int4 weights, first rung (W4A16): a lane reads one byte, two codes, at a time.

    w[n, k] = (code[n, k] - zero[n, g]) * scale[n, g] + minimum[n, g],  g = k // group_size
    out[m, n] = sum over k of x[m, k] * w[n, k] + bias[n]

2 M N K FLOPs on M N K / 2 bytes of codes: every row of x reads them again, so this rung is for one row or a few. A warp computes one
output, and neighbouring lanes read neighbouring bytes. A lane has 1 byte in flight: Little's law requires more, and int4.py has 16.

The nibbles of a byte belong to inputs two apart, because a word of eight codes is packed for int4.py (kernels/quantization/reference.py):

    byte of the word     0     1     2     3
    low nibble           0     4     1     5
    high nibble          2     6     3     7

Source: Frantar et al. 2024, "MARLIN", section 3.4 (the order of nibbles).
"""

import numpy as np
from numba import cuda, float32, int32

from minllm.kernels.arguments import FLOAT_DTYPES, check_array
from minllm.kernels.matmul.quantized.arguments import check_groups
from minllm.kernels.quantization.int4 import zero_point
from minllm.runtime.kernel import check, kernel, launch
from minllm.tiles.warp import WARP, warp_sum


@cuda.jit(device=True)
def minimum_of(minimums, group, n):
    """Return the number to add to the scaled codes of a group: its minimum, or 0."""
    return float32(minimums[group, n]) if minimums is not None else float32(0)


@kernel
def int4_naive_kernel(x, codes, scales, zeros, minimums, bias, out):
    """x [M, K], codes [N, K / 2], scales [groups, N], zeros and minimums like scales or None, bias [N] or None, out [M, N]; one warp per
    element of out."""
    n, m, lane = cuda.blockIdx.x, cuda.blockIdx.y, int32(cuda.threadIdx.x)
    group_size, total = x.shape[1] // scales.shape[0], float32(0)
    for at in range(lane, codes.shape[1], WARP):
        # exercise: matmul.int4
        code, byte = int32(codes[n, at]), at & 3
        k = 8 * (at >> 2) + 4 * (byte & 1) + (byte >> 1)  # the input of the low nibble
        group = k // group_size
        scale, zero, minimum = float32(scales[group, n]), zero_point(zeros, minimums, group, n), minimum_of(minimums, group, n)
        total += float32(x[m, k]) * ((float32(code & 15) - zero) * scale + minimum)
        total += float32(x[m, k + 2]) * ((float32(code >> 4) - zero) * scale + minimum)
        # end exercise
    total = warp_sum(total)
    if lane == 0:
        if bias is not None:
            total += float32(bias[n])
        out[m, n] = total


def int4_naive(x, weight, out, bias=None, stream=None) -> None:
    """Write x @ weight.T + bias into `out` [M, N].

    x [M, K], K % 8 == 0, float32, float16 or bfloat16; weight: an Int4Weight; bias [N] or None. Raises KernelArgumentError if shapes or
    dtypes do not fit.
    """
    check_array("x", x, FLOAT_DTYPES, M=None, K=None)
    m, k = x.shape
    check(k % 8 == 0, f"x has rows of {k}; eight codes are packed in a word, so take a multiple of 8")
    check_array("codes", weight.codes, (np.dtype(np.uint8),), N=None, bytes=k // 2)
    n = weight.codes.shape[0]
    check_groups(n, k, 8, scales=weight.scales, zeros=weight.zeros, minimums=weight.minimums)
    check_array("out", out, FLOAT_DTYPES, M=m, N=n)
    if bias is not None:
        check_array("bias", bias, FLOAT_DTYPES, N=n)
    if m and n:
        launch(int4_naive_kernel, (n, m), WARP, (x, *weight, bias, out), stream)
