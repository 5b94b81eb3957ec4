"""GEMM with quantised weights for many rows of x: widen the matrix to x's dtype, then multiply.

    groups  w = dequantised matrix                     out = x @ w.T + bias                (int4, NF4, int8 in groups, fp8 in blocks)
    W8A8    codes of x and of the matrix as numbers    out[m, n] = (x_codes @ codes.T)[m, n] * x_scale[m] * scale[n] + bias[n]

bfloat16 and float16 hold every int8 and e4m3 code exactly, so the W8A8 GEMM multiplies the exact codes and sums in float32. Widening N K
numbers reads their codes and writes 2 N K bytes, which the GEMM reads again: little beside a GEMM of thousands of rows, much beside one of
tens. The workspace of the widened matrix returns to the pool after each call.

The GEMM must wait for its predecessor before it loads weights, because here the predecessor writes them. The GEMMs for up to 256 rows start
early and load weights at once, so they cannot be used.
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
    """out = sums * x_scales * scales + bias, one thread per element.

    sums [M, N], x_scales [M], scales [N], bias [N] or None, out [M, N].
    """
    n, m = cuda.blockIdx.y * THREADS + cuda.threadIdx.x, cuda.blockIdx.x
    if n < out.shape[1]:
        value = sums[m, n] * x_scales[m] * scales[n]
        if bias is not None:
            value += float32(bias[n])
        out[m, n] = value


def widened_matrix(x, weight, empty):
    """Return the workspace for weights in groups, made by empty(shape, dtype): a matrix [N, K] in the dtype of x."""
    return empty((weight.codes.shape[0], x.shape[1]), x.dtype)


def widened_matrix_and_sums(x, weight, empty):
    """Return the workspace for W8A8, made by empty(shape, dtype).

    It is a matrix [N, K] in the dtype of x's codes, and float32 sums [M, N].
    """
    return empty(weight.codes.shape, x.codes.dtype), empty((x.codes.shape[0], weight.codes.shape[0]), "float32")


def multiply(x, matrix, out, bias, stream) -> None:
    """Write x @ matrix.T + bias into `out` with a GEMM that waits for its predecessor before it loads the matrix."""
    hopper = x.shape[0] > FEW_ROWS and can_use_wgmma(x, matrix)
    VARIANTS[choose_for_many_rows(x.shape[0], x.dtype, hopper)](x, matrix, out, bias, stream)


def make_dequantized(dequantize):
    """The launcher for weights in groups; dequantize(weight, out, stream) writes the matrix."""

    def dequantized(x, weight, out, bias=None, stream=None, *, workspace) -> None:
        """Write x @ weight.T + bias into `out` [M, N]; workspace: from widened_matrix."""
        dequantize(weight, workspace, stream)
        multiply(x, workspace, out, bias, stream)

    return dequantized


def make_widened(widen):
    """The launcher for W8A8; widen(weight, out, stream) writes the codes as numbers."""

    def widened(x, weight, out, bias=None, stream=None, *, workspace) -> None:
        """Write x @ weight.T + bias into `out` [M, N].

        x: QuantizedRows with codes as numbers; workspace: from widened_matrix_and_sums.
        """
        numbers, sums = workspace
        widen(weight, numbers, stream)
        multiply(x.codes, numbers, sums, None, stream)
        grid = (out.shape[0], ceil_div(out.shape[1], THREADS))
        launch(scale_sums_kernel, grid, THREADS, (sums, x.scales, weight.scales, bias, out), stream)

    return widened
