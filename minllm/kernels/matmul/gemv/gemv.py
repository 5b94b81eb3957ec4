"""GEMV: 1 to 8 rows of activations times a weight matrix, as in decoding, where every token reads every weight of the model.

    out[m, n] = sum over k of x[m, k] * weight[n, k]  (+ bias[n])          M <= 8

Work: 2 M N K FLOPs on N K weights, each read once: M FLOPs per byte in bfloat16, where an H200 could do 200. So the kernel is
memory-bound, and built to keep as many bytes in flight as it can. By Little's law, 4.8 TB/s times a latency of about 0.8 µs is 3.8 MB,
or 29 KB for each of 132 SMs (streaming multiprocessors), at every moment.

Threads to data: a warp computes `rows` neighbouring output features. Its lanes lie along k: a lane loads 16 bytes (8 bfloat16, 4
float32) of each row, so that a warp's load is 512 contiguous bytes. `rows` x `unroll` such loads are issued before the first is used:
that many times 512 bytes in flight per warp. The loads bypass L1, because a weight is used once; x stays in L1, because every warp reads
all of it: M N K / rows numbers. Each lane multiplies in float32, and at the end shuffles add the 32 partial sums, always in the same
order.

Split-K: `splits` warps of a block may share the same output features and split K among them; their sums meet in shared memory. That is for
matrices with few, long rows, where one warp per row would leave the machine half empty.

The kernel may start before its predecessor has ended (`dependent_launch`): its first loads of weights, which no kernel writes, are then in
flight while the activations are still being computed, and only the first read of x waits. Loading more ahead is slower: if waiting warps
also prefetch their next weights into L2, whole decode steps of one sequence take 6 % longer in the 1B shape and 11 % in the 8B shape on
an H200.

Even loads that bypass L1 have places there while they are in flight. Attention takes much of an SM's memory as shared memory, and a GEMV
behind it would keep that division; it asks for as much L1 as possible (`carveout=0`). One decode step of the 8B shape on an H200 then takes
3.84 instead of 3.86 ms, and 3.91 instead of 4.28 ms with an fp8 cache, whose attention takes 200 KB.

RMSNorm before the GEMV and the residual addition after it are fused in (`norm`, `residual`), and need no kernel of their own: see sums.py.

With `gated`, `weight` holds the gate's rows followed by as many up rows: a warp computes features of both, and writes
silu(gate) * up. A feed-forward then needs one kernel less, and its widest activations never reach memory.

K is a compile-time constant of the kernel, as are the other numbers above: the loop then has a known length and the row offsets fold into
the addresses. If rows of K elements do not all begin on multiples of 16 bytes, 128-bit loads would fault, and a second form reads
element by element.

Source: PTX ISA, "ld" (vectors of 128 bits, L1::no_allocate, L2::256B); bytes in flight by Little's law: V. Volkov, "Better Performance at
Lower Occupancy", GTC 2010.
"""

import functools

import numpy as np
from numba import cuda, float32, int32, int64

from minllm.kernels.activation.sigmoid import sigmoid
from minllm.kernels.arguments import ceil_div, check_array, rows_begin_on
from minllm.kernels.matmul.arguments import MOST_ROWS_OF_GEMV, check_arguments, check_gated_arguments, check_norm
from minllm.kernels.matmul.gemv.sums import GemvTiling, make_sums
from minllm.ptx import griddepcontrol_launch_dependents
from minllm.runtime.device import HOPPER, capability_here
from minllm.runtime.kernel import check, kernel, launch
from minllm.tiles.warp import WARP

WARP_SHIFT = 5  # log2(WARP): a warp's number is its thread's, shifted right by this


@cuda.jit(device=True)
def row_of_feature(first, r, last):
    """A warp's `r`-th row of weight, if its first output feature is `first`; features beyond `last` repeat that one."""
    return min(int64(first + r), last)


@cuda.jit(device=True)
def row_of_gated_feature(first, r, last):
    """row_of_feature for pairs of rows: even r of the gate, in the first half of weight, odd r of up, in the second."""
    return min(int64(first + (r >> 1)), last) + (r & 1) * (last + 1)


@functools.cache
def gemv_kernel(m: int, k: int, dtype: str, tiling: GemvTiling, vectorized: bool, gated: bool = False):
    """The kernel for `m` rows of `k` elements of `dtype`; `vectorized` if every row begins on a multiple of 16 bytes."""
    rows, warps, splits = tiling.rows, tiling.warps, tiling.splits
    groups = warps // splits  # groups of warps that share output features
    features = rows // 2 if gated else rows
    begin, finish = make_sums(m, k, dtype, tiling, vectorized, row_of_gated_feature if gated else row_of_feature)

    @kernel(launch_bounds=warps * WARP, dependent_launch=True, carveout=0)
    def matmul_gemv_kernel(x, norm, weight, bias, residual, out, epsilon):
        """x [M, K], norm [K] or None, weight [N, K], bias [N] or None, out [M, N] or, gated, [M, N / 2], residual as out or None.

        The grid covers the columns of out."""
        griddepcontrol_launch_dependents()
        lane = int32(cuda.threadIdx.x) & (WARP - 1)
        warp = int32(cuda.threadIdx.x) >> WARP_SHIFT
        first = (cuda.blockIdx.x * groups + warp // splits) * features  # first output feature of this warp
        last = out.shape[1] - 1
        total, squares = cuda.local.array((m, rows), float32), cuda.local.array(m, float32)
        begin(x, norm, weight, total, squares, first, last, warp, lane)
        addends = cuda.local.array((m, features), float32)
        if residual is not None:
            for f in range(features):
                for i in range(m):
                    addends[i, f] = float32(residual[i, min(int64(first + f), last)])
        finish(x, norm, weight, total, squares, first, last, warp, lane, epsilon)
        if lane == 0 and warp % splits == 0:
            for f in range(features):
                if first + f <= last:
                    for i in range(m):
                        value = total[i, f]
                        if gated:
                            value = total[i, 2 * f] * sigmoid(total[i, 2 * f]) * total[i, 2 * f + 1]
                        if bias is not None:
                            value += float32(bias[first + f])
                        if residual is not None:
                            value += addends[i, f]
                        out[i, first + f] = value

    return matmul_gemv_kernel


def is_short_of_registers(dtype) -> bool:
    """Whether GEMVs of more than 4 rows spill registers if they have many loads in flight: float32 before Hopper."""
    return dtype == np.float32 and capability_here() < HOPPER


def choose_tiling(m: int, n: int, k: int, normed: bool = False, short_of_registers: bool = False) -> GemvTiling:
    """The fastest of 22 tilings, or within 3 % of it, for the weights of 1B and 8B models on an H200, measured in whole decode steps.

    The smallest n and k, and 4 rows, are those of Qwen3-30B-A3B, the fastest of 56 in a chain. For halves and quarters of the 8B weights,
    which two and four tensor ranks have, it is the fastest of up to 63, or within 0.4 % of it, in a rank's whole steps.

    More rows of x leave registers for fewer loads in flight, and so does a norm; its work on x is worth sharing between two rows of
    weight. If a weight has few rows, more warps share each. short_of_registers: choose few loads in flight; this was never timed.
    """
    if m == 1:
        return choose_for_one_row(n, k, normed)
    if m > 4 and short_of_registers:
        return GemvTiling(rows=2, warps=8, unroll=1, splits=2)
    if n < 8192:
        return GemvTiling(rows=2, warps=4, unroll=2, splits=2)
    return GemvTiling(rows=2, warps=8, unroll=2) if m <= 4 else GemvTiling(rows=4, warps=4, unroll=1)


def choose_for_one_row(n: int, k: int, normed: bool) -> GemvTiling:
    """choose_tiling for one row of x. Warps that share a row of weight take equal parts of it if the row has few steps."""
    if n <= 512:  # a router: all of its few rows at once
        return GemvTiling(rows=1, warps=8, unroll=1, splits=8)
    if n <= 2048 and 4096 <= k < 8192:
        return GemvTiling(rows=2, warps=8, unroll=2, splits=4)
    if k >= 4096:
        # With unroll=4, one of two warps would do a step of 1,024 elements more; with 2, all warps of 4,096 rows run at the same time.
        is_uneven = n <= 4096 and k < 8192 and k % 2048 > 0
        return GemvTiling(rows=2, warps=8, unroll=2 if normed or is_uneven else 4, splits=4 if n <= 2048 else 2)
    if 4096 <= n < 8192 and k > 2048 and k % 1024 and not normed:  # two warps would have unequal parts
        return GemvTiling(rows=1, warps=4, unroll=4)
    rows = (2 if normed else 1) * (2 if 4096 <= n < 8192 else 1)
    return GemvTiling(rows=rows, warps=8, unroll=2, splits=2)


def choose_gated_tiling(m: int, n: int, k: int, normed: bool = False, short_of_registers: bool = False) -> GemvTiling:
    """choose_tiling for a gated GEMV, in which warps take rows in pairs.

    For halves and quarters of the 8B weights it is the fastest of 45: with four rows per warp, all warps run at the same time.
    """
    if m == 1 and normed and n < 16384 and k >= 4096:
        splits = 1 if n >= 8192 else 2
        return GemvTiling(rows=4, warps=4, unroll=2 // splits, splits=splits)
    tiling = choose_tiling(m, n, k, normed, short_of_registers)
    return tiling._replace(rows=max(2, tiling.rows))


def matmul_gemv(x, weight, out, bias=None, stream=None, tiling: GemvTiling | None = None, norm=None, epsilon=0.0, residual=None) -> None:
    """Write x @ weight.T + bias into `out`: x [M, K] with M <= 8, weight [N, K], bias [N], out [M, N].

    x and weight are float32, float16 or bfloat16; out and bias are of that dtype or float32. norm [K] and epsilon: use the RMSNorm of x
    in place of x, in float32. residual [M, N]: added before the sum is rounded; it may be `out`.

    `tiling` overrides the choice by shape. Raises KernelArgumentError if shapes or dtypes do not fit, or M is more than 8.
    """
    m, n, k = check_arguments(x, weight, out, bias)
    check_norm(norm, x)
    if residual is not None:
        check_array("residual", residual, (x.dtype, out.dtype), M=m, N=n)
    tiling = tiling or choose_tiling(m, n, k, norm is not None, is_short_of_registers(x.dtype))
    launch_gemv(x, norm, weight, bias, residual, out, epsilon, stream, tiling, gated=False)


def gated_gemv(x, gate_up, out, stream=None, tiling: GemvTiling | None = None, norm=None, epsilon=0.0) -> None:
    """Write silu(x @ gate.T) * (x @ up.T) into `out` [M, I]: x [M, K] with M <= 8, gate_up [2 * I, K], the gate in its first half.

    One dtype: float32, float16 or bfloat16. Sums and gate are float32, rounded once. norm, epsilon: as in matmul_gemv. `tiling`
    overrides the choice by shape; its rows must be even. Raises KernelArgumentError if shapes or dtypes do not fit, or M is more than 8.
    """
    check_gated_arguments(x, gate_up, out)
    check_norm(norm, x)
    tiling = tiling or choose_gated_tiling(x.shape[0], *gate_up.shape, norm is not None, is_short_of_registers(x.dtype))
    check(tiling[0] % 2 == 0, f"{tiling}: a warp computes pairs of a gate and what it gates, so its rows are even")
    launch_gemv(x, norm, gate_up, None, None, out, epsilon, stream, tiling, gated=True)


def launch_gemv(x, norm, weight, bias, residual, out, epsilon, stream, tiling, gated):
    """Make the checks that plain and gated GEMV share, and launch over the columns of `out`."""
    (m, n), k, tiling = out.shape, x.shape[1], GemvTiling(*tiling)
    few = m <= MOST_ROWS_OF_GEMV
    check(few, f"gemv multiplies up to {MOST_ROWS_OF_GEMV} rows of x, not {m}: choose tensor_core or tiled, or variant='auto'")
    check(tiling.warps % tiling.splits == 0, f"{tiling}: the warps of a block divide evenly into groups of `splits`")
    if m == 0 or n == 0:
        return
    vectorized = rows_begin_on(16, x, weight, norm)
    grid = ceil_div(n, tiling.rows // (2 if gated else 1) * (tiling.warps // tiling.splits))
    chosen = gemv_kernel(m, k, x.dtype.name, tiling, vectorized, gated)
    launch(chosen, grid, tiling.warps * WARP, (x, norm, weight, bias, residual, out, float(epsilon)), stream=stream)
