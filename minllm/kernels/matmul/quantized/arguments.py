"""Argument checks and sizes shared by the GEMVs and GEMMs with quantised weights."""

import numpy as np

from minllm.kernels.arguments import FLOAT_DTYPES, check_array
from minllm.kernels.matmul.arguments import FLOAT32, MOST_ROWS_OF_GEMV
from minllm.runtime.kernel import check

UINT8 = np.dtype(np.uint8)
CODE_DTYPES = UINT8, np.dtype(np.int8)
GROUP_DTYPES = (*FLOAT_DTYPES, UINT8)  # scales, minimums and absmax are floats; zero points and codes of absmax are uint8
MOST_CODE_BYTES = 1 << 32  # limit of 32-bit offsets of codes
WARPS = 4  # warps per block, one per output feature


def check_rows(x, codes, out, bias, each: int, per_byte: int = 1, dtypes: tuple[np.dtype, ...] = FLOAT_DTYPES) -> tuple[int, int]:
    """Return (M, N) for out [M, N] = x [M, K] @ weight.T + bias, with codes [N, K / per_byte].

    each: codes per load; dtypes: of x. Raises KernelArgumentError if M is too large for a GEMV, K is no multiple of `each`, or arrays do
    not fit.
    """
    check_array("x", x, dtypes, M=None, K=None)
    m, k = x.shape
    check(m <= MOST_ROWS_OF_GEMV, f"a GEMV over quantised weights multiplies up to {MOST_ROWS_OF_GEMV} rows of x, not {m}: widen them")
    check(k % each == 0, f"x has rows of {k}; a GEMV over these codes takes multiples of {each}: widen them")
    check_array("codes", codes, CODE_DTYPES, N=None, bytes=k // per_byte)
    n = codes.shape[0]
    check_array("out", out, FLOAT_DTYPES, M=m, N=n)
    if bias is not None:
        check_array("bias", bias, FLOAT_DTYPES, N=n)
    return m, n


def check_groups(n: int, k: int, each: int, **arrays) -> None:
    """Raise KernelArgumentError unless each array is [groups, N] or None, and a group has a multiple of `each` of K inputs."""
    for name, array in arrays.items():
        if array is not None:
            check_array(name, array, GROUP_DTYPES, groups=None, N=n)
            groups = array.shape[0]
            fits = groups and k % (groups * each) == 0
            check(fits, f"{name} has {groups} groups for {k} inputs; a group has a multiple of {each} inputs")


def check_out(x, out, bias, n: int, gated: bool) -> None:
    """Raise KernelArgumentError unless out [M, N], or gated [M, N / 2], and bias [N] or None fit x [M, K].

    out and bias have x's dtype or float32; gated out has x's dtype.
    """
    check_array("out", out, (x.dtype,) if gated else (x.dtype, FLOAT32), M=x.shape[0], N=n // 2 if gated else n)
    if bias is not None:
        check_array("bias", bias, (x.dtype, FLOAT32), N=n)
