"""Argument checks and sizes that products of quantised weights share."""

import numpy as np

from minllm.kernels.arguments import FLOAT_DTYPES, check_array
from minllm.kernels.matmul.arguments import FLOAT32, MOST_ROWS_OF_GEMV
from minllm.runtime.kernel import check

WARPS = 4  # per block, each with an output feature of its own


def check_rows(x, codes, out, bias, each: int, per_byte: int = 1) -> tuple[int, int]:
    """Return (M, N) of out [M, N] = x [M, K] times a weight of codes [N, K / per_byte], or raise KernelArgumentError.

    each: codes per load; rows of x and codes are whole loads.
    """
    (m, k), n = x.shape, codes.shape[0]
    check(m <= MOST_ROWS_OF_GEMV, f"a GEMV over quantised weights multiplies up to {MOST_ROWS_OF_GEMV} rows of x, not {m}: widen them")
    check(k % each == 0, f"x has rows of {k}; a GEMV over these codes takes multiples of {each}: widen them")
    check_array("codes", codes, (np.dtype(np.uint8), np.dtype(np.int8)), N=None, bytes=k // per_byte)
    check_array("out", out, FLOAT_DTYPES, M=m, N=n)
    if bias is not None:
        check_array("bias", bias, FLOAT_DTYPES, N=n)
    return m, n


def check_out(x, out, bias, n: int, gated: bool) -> None:
    """Raise KernelArgumentError unless out [M, N], or gated [M, N / 2], and bias [N] are those of x [M, K], of its dtype or float32."""
    check_array("out", out, (x.dtype,) if gated else (x.dtype, FLOAT32), M=x.shape[0], N=n // 2 if gated else n)
    if bias is not None:
        check_array("bias", bias, (x.dtype, FLOAT32), N=n)
