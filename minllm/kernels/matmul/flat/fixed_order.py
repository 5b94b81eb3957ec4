"""GEMM with sums that do not depend on the number of rows of x: each row of `out` has the same bits in any batch.

    out[m, n] = sum over k of x[m, k] * weight[n, k]  (+ bias[n])          for any M

Floating-point addition is not associative: sums of the same products in another order differ in their last bits. A library chooses tiles,
split-K and kernels by M, so the logits of a request change with the batch around it. Here only the weight's shape [N, K] fixes the order:

    16 bits     K is split into `splits` parts, a number that depends on N and K alone. Within a part tensor cores add 16 products at a
                time, in ascending order, to one accumulator; then the parts are added in order. Rows of x and of weight per block, and
                stages, change which block computes a sum, never its order.
                One part: the flat GEMM up to 128 rows, the wgmma GEMM for more. Several: the flat GEMM, for 256 rows of x at a time.
    float32     vectorized, which adds product after product, whatever its tile
    unaligned   tensor_core or tiled, depending on K: one accumulator each, in ascending order of k

FLOPs and bytes are those of the GEMM that runs; a chunk of 256 rows reads the weight again. Tensor cores are taken to compute an output
from its row and its column alone, wherever they lie in a tile, whichever of the two is the left operand. On an H200 all tilings of both
GEMMs agree to the last bit, with mma.sync and with wgmma (tests/gpu/test_batch_invariant.py).

Source: H. He, "Defeating Nondeterminism in LLM Inference", Thinking Machines Lab, 2025 (batch-invariant kernels); fixed sums are ours.
"""

import numpy as np

from minllm.kernels.arguments import rows_begin_on
from minllm.kernels.matmul import arguments
from minllm.kernels.matmul.arguments import (
    HALF_DTYPES,
    MOST_ROWS_OF_FLAT,
    check_arguments,
    check_gated_arguments,
    has_wgmma,
    padded_rows,
)
from minllm.kernels.matmul.flat.flat import launch_flat
from minllm.kernels.matmul.flat.mma_tiling import MOST_TOKENS, FlatTiling
from minllm.kernels.matmul.flat.wgmma_tiling import FlatWgmmaTiling, deepest
from minllm.kernels.matmul.shared_tiles import with_stages_for_gpu
from minllm.kernels.matmul.vectorized import matmul_vectorized
from minllm.kernels.matmul.wgmma import wgmma
from minllm.runtime.kernel import check

MOST_ROWS_OF_ONE_PART = 128  # rows of x up to which the flat GEMM is faster than the wgmma GEMM, if K is not split


def wgmma_splits(n: int, k: int) -> int:
    """The number of blocks that divide K on Hopper.

    If weight has few rows, and so makes few blocks, they are enough to keep memory busy.
    """
    if n > 4096:
        return 1
    if n <= 2048:
        return 4 if k <= 2048 else 3
    return 2


def wgmma_tiling(tokens: int, n: int, k: int) -> FlatWgmmaTiling:
    """The tiling for Hopper, for `tokens` padded rows of x; its splits depend on the weight [n, k] alone."""
    if n <= 8192:
        return deepest(1, tokens, wgmma_splits(n, k))
    return deepest(1 if tokens <= 64 else 2, tokens, 1, blocks=2)


def mma_tiling(tokens: int) -> FlatTiling:
    """The tiling for other GPUs, for `tokens` padded rows of x.

    Two groups of warps divide each step of K, whatever the rows.
    """
    return FlatTiling(rows=32, warps=4, splits=2, stages=8 if tokens <= 32 else 6 if tokens <= 64 else 4)


def why_not(x, weight) -> str | None:
    """Why these kernels cannot serve x and weight; None if they can."""
    return arguments.why_not(x, weight) if x.dtype in HALF_DTYPES else None


def matmul_fixed_order(x, weight, out, bias=None, stream=None) -> None:
    """Write x @ weight.T + bias into `out`: x [M, K], weight [N, K], bias [N], out [M, N], for any M.

    x and weight: one dtype of float32, float16, bfloat16; out and bias are of that dtype or float32. Row m of `out` depends on row m of x
    and on weight and bias alone, bit for bit. Raises KernelArgumentError if shapes or dtypes do not fit (see `check_arguments`), or
    rows of 16-bit x or weight do not begin on multiples of 16 bytes (VARIANTS["fixed_order"] then runs tensor_core).
    """
    m, n, _ = check_arguments(x, weight, out, bias)
    if m == 0 or n == 0:
        return
    if x.dtype not in HALF_DTYPES:
        matmul_vectorized(x, weight, out, bias, stream)
        return
    check(why_not(x, weight) is None, f"x is {x.dtype} {list(x.shape)}; {why_not(x, weight)}")
    launch(x, weight, out, bias, stream, gated=False)


def fits_gated(x, weight) -> bool:
    """Whether one kernel can compute silu(gate) * up: 16 bits, and rows of x and weight aligned to 16 bytes."""
    return x.dtype in HALF_DTYPES and rows_begin_on(16, x, weight)


def gated_fixed_order(x, gate_up, out, stream=None) -> None:
    """Write silu(x @ gate.T) * (x @ up.T) into `out` [M, I]: x [M, K], gate_up [2 * I, K], the gate in its first half, for any M.

    One dtype: float16 or bfloat16. Sums and gate are float32, rounded once. Raises KernelArgumentError if shapes or dtypes do not fit, or
    rows of x or gate_up do not begin on multiples of 16 bytes.
    """
    check_gated_arguments(x, gate_up, out, HALF_DTYPES)
    check(fits_gated(x, gate_up), f"x is {x.dtype} {list(x.shape)}; its rows and those of gate_up must begin on multiples of 16 bytes")
    if 0 not in out.shape:
        launch(x, gate_up, out, None, stream, gated=True)


def launch(x, weight, out, bias, stream, gated: bool) -> None:
    """Launch the flat GEMM for 256 rows of x at a time, or the wgmma GEMM for all."""
    n, k = weight.shape
    hoppers = has_wgmma(x) and not isinstance(x, np.ndarray)  # the simulator runs mma.sync faster
    if hoppers and x.shape[0] > MOST_ROWS_OF_ONE_PART and wgmma_splits(n, k) == 1:
        wgmma.run(x, weight, out, bias, None, stream, None, gated)
        return
    for first in range(0, x.shape[0], MOST_ROWS_OF_FLAT):
        rows = slice(first, min(first + MOST_ROWS_OF_FLAT, x.shape[0]))
        tokens = padded_rows(rows.stop - first)
        tiling = wgmma_tiling(tokens, n, k) if hoppers else with_stages_for_gpu(mma_tiling(min(tokens, MOST_TOKENS)))
        launch_flat(x[rows], weight, out[rows], bias, stream, tiling, gated)
