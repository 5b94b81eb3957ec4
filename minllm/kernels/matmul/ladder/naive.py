"""GEMM, first rung: one thread per output element.

    out[m, n] = sum over k of x[m, k] * weight[n, k]  (+ bias[n])

Work: 2 M N K FLOPs. Every thread walks a whole row of x and a whole row of weight, so the kernel loads 2 M N K elements: an arithmetic
intensity of 1/itemsize (0.25 FLOPs per byte in float32) before the caches help. An H200 needs about 14 float32 FLOPs per byte of memory
traffic to be compute-bound (67 TFLOP/s over 4.8 TB/s), so this kernel depends on the caches.

Threads to data: a block is 16 x 16 threads and owns 16 x 16 outputs; threadIdx.x walks n and threadIdx.y walks m. The 32 lanes of a warp
therefore read two rows of x (the same element for 16 lanes: a broadcast) and sixteen rows of weight, one row apart: sixteen separate
32-byte sectors for sixteen elements; the next loop steps use the rest of each sector while it is still in L1. The later rungs improve
exactly this.

Source: the first kernel of any CUDA course; CUDA C++ Programming Guide, section "Shared Memory", shows it beside its tiled form.
"""

from numba import cuda, float32

from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.arguments import check_arguments
from minllm.runtime.kernel import kernel, launch

BLOCK = 16


@kernel
def matmul_naive_kernel(x, weight, bias, out):
    """One output element per thread: x [M, K], weight [N, K], bias [N] or None, out [M, N]."""
    column = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x  # n, the output feature
    row = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y  # m, the token
    # exercise: matmul.naive
    if row < out.shape[0] and column < out.shape[1]:
        total = float32(0.0)
        for k in range(x.shape[1]):
            total += float32(x[row, k]) * float32(weight[column, k])
        if bias is not None:
            total += float32(bias[column])
        out[row, column] = total
    # end exercise


def matmul_naive(x, weight, out, bias=None, stream=None) -> None:
    """Write x @ weight.T + bias into `out`: x [M, K], weight [N, K], bias [N], out [M, N].

    x and weight are float32, float16 or bfloat16; out and bias are of that dtype or float32.

    Raises KernelArgumentError if shapes or dtypes do not fit (see `check_arguments`).
    """
    m, n, _ = check_arguments(x, weight, out, bias)
    if m == 0 or n == 0:
        return
    grid = (ceil_div(n, BLOCK), ceil_div(m, BLOCK))
    launch(matmul_naive_kernel, grid, (BLOCK, BLOCK), (x, weight, bias, out), stream=stream)
