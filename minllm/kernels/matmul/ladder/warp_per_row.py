"""GEMV, first rung: a warp per row of the weight.

    out[m, n] = sum over k of x[m, k] * weight[n, k]  (+ bias[n])                  M <= 8

2 M N K FLOPs. A block is one warp and computes one number: its lanes read neighbouring elements of a row, so loads coalesce, and five
shuffles add the 32 partial sums. Every row of x reads the weight again, M N K elements in all, so this rung is for M = 1: 2 FLOPs per
element read, memory-bound. What it lacks is bytes in flight: each lane waits for one element before it loads the next (gemv.py has
16 bytes per lane and several rows per warp).

Source: CUDA C++ Programming Guide, section "Warp Shuffle Functions" (the sum of a warp).
"""

from numba import cuda, float32

from minllm.kernels.matmul.arguments import MOST_ROWS_OF_GEMV, check_arguments
from minllm.runtime.kernel import check, kernel, launch
from minllm.tiles.warp import WARP, warp_sum


@kernel
def warp_per_row_kernel(x, weight, bias, out):
    """x [M, K], weight [N, K], bias [N] or None, out [M, N]; a warp per number of out."""
    n, m, lane = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    # exercise: matmul.gemv
    total = float32(0)
    for k in range(lane, x.shape[1], WARP):  # neighbouring lanes read neighbouring elements
        total += float32(weight[n, k]) * float32(x[m, k])
    total = warp_sum(total)
    if lane == 0:
        if bias is not None:
            total += float32(bias[n])
        out[m, n] = total
    # end exercise


def matmul_warp_per_row(x, weight, out, bias=None, stream=None) -> None:
    """Write x @ weight.T + bias into `out`: x [M, K] with M <= 8, weight [N, K], bias [N], out [M, N]; dtypes as in matmul_naive.

    Raises KernelArgumentError if shapes or dtypes do not fit (see `check_arguments`), or for more rows of x.
    """
    m, n, _ = check_arguments(x, weight, out, bias)
    check(m <= MOST_ROWS_OF_GEMV, f"a GEMV multiplies up to {MOST_ROWS_OF_GEMV} rows of x, not {m}: take flat or tensor_core")
    if m and n:
        launch(warp_per_row_kernel, (n, m), WARP, (x, weight, bias, out), stream)
