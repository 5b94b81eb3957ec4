"""What every variant of the matrix product accepts: checked in one place, so that all refuse the same mistakes in the same words."""

import ml_dtypes
import numpy as np

from minllm.runtime.kernel import check

HALF_DTYPES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
DTYPES = (np.dtype(np.float32), *HALF_DTYPES)


def check_arguments(x, weight, out, bias=None, dtypes: tuple[np.dtype, ...] = DTYPES) -> tuple[int, int, int]:
    """Return (M, N, K) of `out` [M, N] = `x` [M, K] @ `weight` [N, K].T + `bias` [N], or raise KernelArgumentError.

    `x` and `weight` share one of `dtypes`; `out` has that dtype or float32 (what logits need), `bias` likewise. M, N and K may be 0: an empty
    `out` is nothing to do, and an empty sum is 0 (plus the bias).
    """
    allowed = " or ".join(dtype.name for dtype in dtypes)
    check(len(x.shape) == 2 and len(weight.shape) == 2, f"matmul takes x [M, K] and weight [N, K], not shapes {x.shape} and {weight.shape}")
    (m, k), n = x.shape, weight.shape[0]
    check(
        weight.shape[1] == k,
        f"x {x.shape} has rows of {k} elements and weight {weight.shape} of {weight.shape[1]}: both are read along K, so weight must be [N, {k}]; "
        "is it transposed?",
    )
    check(x.dtype in dtypes, f"this matmul multiplies {allowed}, not {x.dtype}; convert x and weight, or choose another variant")
    check(weight.dtype == x.dtype, f"x is {x.dtype} and weight is {weight.dtype}: a kernel multiplies one dtype; convert the weight when it is loaded")
    check(tuple(out.shape) == (m, n), f"out must be [{m}, {n}] for x {x.shape} and weight {weight.shape}, not {out.shape}")
    check(out.dtype in (x.dtype, np.float32), f"out may be {x.dtype} (as x) or float32, not {out.dtype}")
    if bias is not None:
        check(tuple(bias.shape) == (n,), f"bias must be [{n}], one value an output feature, not {bias.shape}")
        check(bias.dtype in (x.dtype, np.float32), f"bias may be {x.dtype} (as x) or float32, not {bias.dtype}")
    return m, n, k


def ceil_div(a: int, b: int) -> int:
    """The number of tiles of `b` that cover `a`."""
    return -(-a // b)
