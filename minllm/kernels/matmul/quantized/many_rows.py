"""GEMM by quantised weights for many rows of x: the whole matrix is widened to x's dtype first, then multiplied as 16-bit weights are.

    groups  w = dequantised matrix                     out = x @ w.T + bias                (int4, NF4, int8 in groups, fp8 in blocks)
    W8A8    codes of x and of the matrix as numbers    out[m, n] = (x_codes @ codes.T)[m, n] * x_scale[m] * scale[n] + bias[n]

bfloat16 and float16 hold every int8 and e4m3 code exactly, so the products of W8A8 are those of the codes, summed in float32. Widening
N K numbers reads their codes and writes 2 N K bytes, which the GEMM reads again; that is little beside a GEMM of thousands of rows, and
much beside one of tens. The workspace of the widened matrix is returned to the pool after each call.

The GEMM must not be one that starts before its predecessor ends and loads weights meanwhile, as those for up to 256 rows do: here the
predecessor writes them.
"""

from numba import cuda, float32

from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.choice import can_use_wgmma, choose_for_many_rows
from minllm.kernels.matmul.variants import VARIANTS
from minllm.kernels.matmul.wgmma.tiling import FEW_ROWS
from minllm.runtime.kernel import kernel, launch

THREADS = 256


@kernel
def scale_sums_kernel(sums, x_scales, scales, bias, out):
    """out = sums * x_scales * scales + bias: sums [M, N], x_scales [M], scales [N], bias [N] or None, out [M, N]; a thread per element."""
    n, m = cuda.blockIdx.y * THREADS + cuda.threadIdx.x, cuda.blockIdx.x
    if n < out.shape[1]:
        value = sums[m, n] * x_scales[m] * scales[n]
        if bias is not None:
            value += float32(bias[n])
        out[m, n] = value


def widened_matrix(x, weight, empty):
    """The workspace of weights in groups: a matrix [N, K] in the dtype of x."""
    return empty((weight.codes.shape[0], x.shape[1]), x.dtype)


def widened_matrix_and_sums(x, weight, empty):
    """The workspace for W8A8: a matrix [N, K] in the dtype of x's codes, and sums, float32 [M, N]."""
    return empty(weight.codes.shape, x.codes.dtype), empty((x.codes.shape[0], weight.codes.shape[0]), "float32")


def multiply(x, matrix, out, bias, stream) -> None:
    """Write x @ matrix.T + bias into `out`, by a GEMM that waits for what its predecessor writes."""
    hopper = x.shape[0] > FEW_ROWS and can_use_wgmma(x, matrix)
    VARIANTS[choose_for_many_rows(x.shape[0], x.dtype, hopper)](x, matrix, out, bias, stream)


def make_dequantized(dequantize):
    """The launcher for weights in groups; dequantize(weight, out, stream) writes the matrix."""

    def dequantized(x, weight, out, bias=None, stream=None, *, workspace) -> None:
        """Write x @ weight.T + bias into `out` [M, N], by way of the workspace of widened_matrix."""
        dequantize(weight, workspace, stream)
        multiply(x, workspace, out, bias, stream)

    return dequantized


def make_widened(widen):
    """The launcher for W8A8; widen(weight, out, stream) writes the codes as numbers."""

    def widened(x, weight, out, bias=None, stream=None, *, workspace) -> None:
        """Write the linear of QuantizedRows, whose codes are numbers, into `out` [M, N], by way of the workspace."""
        numbers, sums = workspace
        widen(weight, numbers, stream)
        multiply(x.codes, numbers, sums, None, stream)
        grid = (out.shape[0], ceil_div(out.shape[1], THREADS))
        launch(scale_sums_kernel, grid, THREADS, (sums, x.scales, weight.scales, bias, out), stream)

    return widened
