"""Argument checks shared by all GEMM variants, so that all reject the same mistakes with the same messages."""

import ml_dtypes
import numpy as np

from minllm.kernels.arguments import FLOAT_DTYPES, check_array, rows_begin_on
from minllm.runtime.device import HOPPER, current_device

FLOAT32 = np.dtype(np.float32)
MOST_ROWS_OF_GEMV, MOST_ROWS_OF_FLAT = 8, 256  # rows of x
PADDED_ROWS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # numbers of rows of x that kernels are compiled for
HALF_DTYPES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def check_arguments(x, weight, out, bias=None, dtypes: tuple[np.dtype, ...] = FLOAT_DTYPES) -> tuple[int, int, int]:
    """Return (M, N, K) of `out` [M, N] = `x` [M, K] @ `weight` [N, K].T + `bias` [N], or raise KernelArgumentError.

    `x` and `weight` share one of `dtypes`: a kernel multiplies one dtype, so weights are converted when they are loaded, not here. `out`
    and `bias` have that dtype or float32 (which logits need). M, N and K may be 0: an empty `out` means nothing to do, and an empty sum
    is 0 (plus the bias).
    """
    check_array("x", x, dtypes, M=None, K=None)
    m, k = x.shape
    check_array("weight", weight, (x.dtype,), N=None, K=k)
    n = weight.shape[0]
    check_array("out", out, (x.dtype, FLOAT32), M=m, N=n)
    if bias is not None:
        check_array("bias", bias, (x.dtype, FLOAT32), N=n)
    return m, n, k


def check_gated_arguments(x, gate_up, out, dtypes: tuple[np.dtype, ...] = FLOAT_DTYPES) -> None:
    """Raise KernelArgumentError unless `out` [M, I], `x` [M, K] and `gate_up` [2 * I, K] share one of `dtypes`."""
    check_array("out", out, dtypes, M=None, I=None)
    check_array("x", x, (out.dtype,), M=out.shape[0], K=None)
    check_array("gate_up", gate_up, (out.dtype,), gate_and_up=2 * out.shape[1], K=x.shape[1])


def padded_rows(m: int, sharers: int = 1) -> int:
    """m rounded up to the rows of x that a kernel is compiled for.

    They are whole groups of eight for each of the `sharers` blocks that share them.
    """
    return min(padded for padded in PADDED_ROWS if padded >= m and padded % (8 * sharers) == 0)


def check_norm(norm, x) -> None:
    """Raise KernelArgumentError unless the weights of a norm are None, or [K] in the dtype of x [M, K]."""
    if norm is not None:
        check_array("norm", norm, (x.dtype,), K=x.shape[1])


def why_not(x, weight) -> str | None:
    """Why kernels with 16-byte loads cannot serve x and weight (variants.py); None if they can, or if these are no matrices."""
    matrices = len(x.shape) == len(weight.shape) == 2
    return "its rows must begin on multiples of 16 bytes" if matrices and not rows_begin_on(16, x, weight) else None


def has_wgmma(array) -> bool:
    """Whether the device of the array runs wgmma: a GPU of compute capability 9.0, or, slowly, the simulator."""
    return isinstance(array, np.ndarray) or current_device().compute_capability == HOPPER
