"""GEMM, the matrix product of every linear layer, as an equation.

A linear layer stores its weights row by row, one row per output feature, and multiplies every token's activations by all of them:

    out[m, n] = sum over k of x[m, k] * weight[n, k]  (+ bias[n])          x [M, K], weight [N, K], out [M, N]

This is `x @ weight.T`: both operands are read along k, the axis that is contiguous in memory, and every kernel in this folder builds
on that. It costs 2 M N K FLOPs (a multiply and an add each) and at least one read of x and weight and one write of out.
Every variant computes the same sum with float32 accumulators. This function is the oracle of their tests as well as the CPU engine's own
matrix product.
"""

import numpy as np

# For up to so many rows of x OpenBLAS takes a half to a third of the time for weight @ x.T, which is the product transposed.
FEW_ROWS = 64


def matmul_reference(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None, out_dtype=None) -> np.ndarray:
    """Multiply `x` [M, K] by the transpose of `weight` [N, K], add `bias` [N], and return [M, N].

    The sum is formed in float32 (in float64 if either operand is float64) and rounded once, to `out_dtype` or else to x's dtype. `x` and
    `weight` may differ in dtype here: the CPU engine keeps float32 copies of bfloat16 weights; float32 arrays are used without a copy.
    """
    dtype = np.float64 if np.float64 in (x.dtype, weight.dtype) else np.float32
    x_wide, weight = x.astype(dtype, copy=False), weight.astype(dtype, copy=False)
    out = np.ascontiguousarray((weight @ x_wide.T).T) if len(x) <= FEW_ROWS else x_wide @ weight.T  # [M, N]
    if bias is not None:
        out += bias.astype(dtype, copy=False)
    return out.astype(x.dtype if out_dtype is None else out_dtype, copy=False)
