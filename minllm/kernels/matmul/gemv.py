"""Matrix product of a few rows, which is what decoding does: 1 to 8 rows of activations against every weight of the model, once a token.

    out[m, n] = sum over k of x[m, k] * weight[n, k]  (+ bias[n])          M <= 8

Work: 2 M N K floating-point operations on N K weights, each read once: M operations a byte in bfloat16, where an H200 could do 200.
Nothing but the speed of memory counts, so the kernel is built to keep as many bytes in flight as it can. By Little's law, 4.8 TB/s times
a latency of about 0.8 µs is 3.8 MB, or 29 KB for each of 132 multiprocessors, at every moment.

Threads to data: a warp computes `rows` neighbouring output features. Its lanes lie along k: a lane loads 16 bytes (8 bfloat16, 4
float32) of each row, so that a warp's load is 512 contiguous bytes. `rows` x `unroll` such loads are issued one after another before
the first is used: that many times 512 bytes in flight a warp. The loads bypass L1, because a weight is used once; x stays in L1,
because every warp reads all of it: M N K / rows numbers. Each lane multiplies in float32, and at the end the 32 partial sums are
added by shuffles, in an order that does not depend on the machine.

`splits` warps of a block may share the same output features and divide K among them; their sums meet in shared memory. That is for matrices
with few, long rows, where a warp a row would leave the machine half empty.

The kernel may start before its predecessor has ended (`dependent_launch`): its first loads of weights, which nobody writes, are then in
flight while the activations are still being computed, and only the first look at x waits.

With `gated`, `weight` holds a gate's rows and behind them as many rows of what it gates: a warp computes features of both, and writes
silu(gate) * up. A feed-forward then needs one kernel less, and its widest activations never reach memory.

K is a constant of the kernel, as are the other numbers above: the loop then has a known length and the row offsets fold into the
addresses. Where the rows of K elements do not all begin on a multiple of 16 bytes, a 128-bit load would fault, and a second form reads
element by element.

Source: PTX ISA, "ld" (vectors of 128 bits, L1::no_allocate, L2::256B); bytes in flight by Little's law: V. Volkov, "Better Performance at
Lower Occupancy", GTC 2010.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.activation.sigmoid import sigmoid
from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.arguments import check_arguments, check_gated_arguments
from minllm.kernels.reduction import warp_sum
from minllm.kernels.vector import VECTOR_BYTES, vectors_a_row
from minllm.ptx import (
    griddepcontrol_launch_dependents,
    griddepcontrol_wait,
    load_128,
    load_128_streaming,
    uint_as_float,
    unpack_bf16x2,
    unpack_f16x2,
)
from minllm.runtime.kernel import check, kernel, launch

WARP = 32
WARP_SHIFT = 5  # a warp's number is its thread's, shifted
MAX_ROWS_OF_X = 8


class GemvTiling(NamedTuple):
    """How a block divides the weights: output features a warp, warps a block, loads in flight a row, and warps that share a row."""

    rows: int
    warps: int
    unroll: int
    splits: int = 1


@cuda.jit(device=True)
def dot_float32(a, b, total):
    """total + a * b, for two float32 in 32-bit words."""
    return total + uint_as_float(a) * uint_as_float(b)


@cuda.jit(device=True)
def dot_bf16x2(a, b, total):
    """total + the dot product of two pairs of bfloat16, each pair in a 32-bit word."""
    a_low, a_high = unpack_bf16x2(a)
    b_low, b_high = unpack_bf16x2(b)
    return total + a_low * b_low + a_high * b_high


@cuda.jit(device=True)
def dot_f16x2(a, b, total):
    """total + the dot product of two pairs of float16, each pair in a 32-bit word."""
    a_low, a_high = unpack_f16x2(a)
    b_low, b_high = unpack_f16x2(b)
    return total + a_low * b_low + a_high * b_high


@cuda.jit(device=True)
def row_of_feature(first, r, last):
    """Which row of weight is the `r`-th of a warp whose first output feature is `first`; features beyond `last` repeat it."""
    return min(int64(first + r), last)


@cuda.jit(device=True)
def row_of_gated_feature(first, r, last):
    """The same where rows come in pairs, one of the gate in the upper half of weight and one of the lower half."""
    return min(int64(first + (r >> 1)), last) + (r & 1) * (last + 1)


DOT_OF_WORDS = {"float32": dot_float32, "bfloat16": dot_bf16x2, "float16": dot_f16x2}


def make_accumulate_step(m: int, k: int, dtype: str, tiling: GemvTiling, weight_row, guarded: bool = False, waits: bool = False):
    """The device function of one step of a warp along K; weight_row: the device function row_of_feature or row_of_gated_feature.

    guarded: it may reach beyond the rows' end. waits: x may not be written yet, so wait for it once the loads of weights are on their way.
    """
    rows, unroll = tiling.rows, tiling.unroll
    vector = VECTOR_BYTES // np.dtype(dtype).itemsize
    warp_step = WARP * vector  # elements of a row that one load of a warp covers
    words_in_flight = rows * unroll * 4
    dot = DOT_OF_WORDS[dtype]

    @cuda.jit(device=True)
    def accumulate_step(x, weight, total, first, last, element):
        """total[i, r] += x[i, :] . (the warp's r-th row) over `unroll` vectors, a warp's load apart, from `element` on."""
        words = cuda.local.array(words_in_flight, uint32)
        for u in range(unroll):
            if not guarded or element + u * warp_step < k:
                for r in range(rows):
                    w = load_128_streaming(weight, weight_row(first, r, last) * k + element + u * warp_step)
                    for word in range(4):
                        words[(u * rows + r) * 4 + word] = w[word]
        if waits:
            griddepcontrol_wait()
        # Without this ptxas would save registers by moving each load down to where its value is used, and one load would be in flight
        # at a time. It costs no instruction in a warp that has not diverged, and memory accesses do not move across it.
        cuda.syncwarp()
        for u in range(unroll):
            if not guarded or element + u * warp_step < k:
                for i in range(m):
                    x_words = load_128(x, i * k + element + u * warp_step)
                    for r in range(rows):
                        for word in range(4):
                            total[i, r] = dot(words[(u * rows + r) * 4 + word], x_words[word], total[i, r])

    return accumulate_step


def accumulate_vectors(m: int, k: int, dtype: str, tiling: GemvTiling, weight_row):
    """The device function that adds a warp's share of the products to its sums, by 128-bit loads: rows of K elements are whole vectors."""
    unroll, splits = tiling.unroll, tiling.splits
    vector = VECTOR_BYTES // np.dtype(dtype).itemsize
    step = WARP * vector * unroll  # elements of a row that a warp has in flight
    full_steps = k // (step * splits)
    some_are_left = k % (step * splits) > 0
    accumulate_first_step = make_accumulate_step(m, k, dtype, tiling, weight_row, guarded=not full_steps, waits=True)
    accumulate_step = make_accumulate_step(m, k, dtype, tiling, weight_row)
    accumulate_last_step = make_accumulate_step(m, k, dtype, tiling, weight_row, guarded=True)

    @cuda.jit(device=True)
    def accumulate(x, weight, total, first, last, split, lane):
        """total[i, r] += x[i, :] . (the warp's r-th row of weight) over this lane's elements."""
        element = int64(split * step + lane * vector)
        accumulate_first_step(x, weight, total, first, last, element)
        element += step * splits
        for _ in range(full_steps - 1):
            accumulate_step(x, weight, total, first, last, element)
            element += step * splits
        if some_are_left and full_steps:  # constants: no code at all where K is whole steps
            accumulate_last_step(x, weight, total, first, last, element)

    return accumulate


def accumulate_elements(m: int, k: int, tiling: GemvTiling, weight_row):
    """The same device function by single elements, for rows that do not begin on a multiple of 16 bytes."""
    rows, splits = tiling.rows, tiling.splits

    @cuda.jit(device=True)
    def accumulate(x, weight, total, first, last, split, lane):
        """total[i, r] += x[i, :] . (the warp's r-th row of weight) over this lane's elements."""
        griddepcontrol_wait()
        element = split * WARP + lane
        while element < k:
            for r in range(rows):
                w = float32(weight[weight_row(first, r, last), element])
                for i in range(m):
                    total[i, r] += float32(x[i, element]) * w
            element += WARP * splits

    return accumulate


@functools.cache
def gemv_kernel(m: int, k: int, dtype: str, tiling: GemvTiling, vectorized: bool, gated: bool = False):
    """The kernel for `m` rows of `k` elements of `dtype`; `vectorized` where every row begins on a multiple of 16 bytes."""
    rows, warps, _, splits = tiling
    groups = warps // splits  # of warps that share output features
    sums, features = m * rows, rows // 2 if gated else rows
    weight_row = row_of_gated_feature if gated else row_of_feature
    accumulate = accumulate_vectors(m, k, dtype, tiling, weight_row) if vectorized else accumulate_elements(m, k, tiling, weight_row)

    @cuda.jit(device=True)
    def output(total, i, f, bias, feature):
        """Row i of the warp's f-th output feature, from the sums."""
        if gated:
            return total[i, 2 * f] * sigmoid(total[i, 2 * f]) * total[i, 2 * f + 1]
        if bias is not None:
            return total[i, f] + float32(bias[feature])
        return total[i, f]

    @kernel(launch_bounds=warps * WARP, dependent_launch=True)
    def matmul_gemv_kernel(x, weight, bias, out):
        """x [M, K], weight [N, K], bias [N] or None, out [M, N] or, gated, [M, N / 2]; the grid covers the columns of out."""
        griddepcontrol_launch_dependents()
        lane = int32(cuda.threadIdx.x) & (WARP - 1)
        warp = int32(cuda.threadIdx.x) >> WARP_SHIFT
        group = warp // splits
        split = warp % splits
        first = (cuda.blockIdx.x * groups + group) * features  # the first output feature of this warp
        last = out.shape[1] - 1
        total = cuda.local.array((m, rows), float32)
        for i in range(m):
            for r in range(rows):
                total[i, r] = 0.0
        accumulate(x, weight, total, first, last, split, lane)
        for i in range(m):
            for r in range(rows):
                total[i, r] = warp_sum(total[i, r])
        if splits > 1:
            shared_totals = cuda.shared.array((warps, sums), float32)
            if lane == 0:
                for i in range(m):
                    for r in range(rows):
                        shared_totals[warp, i * rows + r] = total[i, r]
            cuda.syncthreads()
            for i in range(m):
                for r in range(rows):
                    total[i, r] = 0.0
                    for other in range(splits):
                        total[i, r] += shared_totals[group * splits + other, i * rows + r]
        if lane == 0 and split == 0:
            for f in range(features):
                if first + f <= last:
                    for i in range(m):
                        out[i, first + f] = output(total, i, f, bias, first + f)

    return matmul_gemv_kernel


def choose_tiling(m: int, n: int, k: int) -> GemvTiling:
    """The fastest of 22 tilings, or within 3 % of it, at the matrices of a 1B model on an H200.

    More rows of x leave registers for fewer loads in flight.
    """
    if m == 1:
        return GemvTiling(rows=2, warps=8, unroll=4, splits=2) if k >= 4096 else GemvTiling(rows=1, warps=8, unroll=2, splits=2)
    if n < 8192:
        return GemvTiling(rows=2, warps=4, unroll=2, splits=2)
    return GemvTiling(rows=2, warps=8, unroll=2) if m <= 4 else GemvTiling(rows=4, warps=4, unroll=1)


def choose_gated_tiling(m: int, n: int, k: int) -> GemvTiling:
    """The same for a gated product, whose warps take rows in pairs."""
    tiling = choose_tiling(m, n, k)
    return tiling._replace(rows=max(2, tiling.rows))


def matmul_gemv(x, weight, out, bias=None, stream=None, tiling: GemvTiling | None = None) -> None:
    """Write x @ weight.T + bias into `out`: x [M, K] with M <= 8, weight [N, K], bias [N], out [M, N].

    x and weight are float32, float16 or bfloat16; out and bias are of that dtype or float32.

    `tiling` overrides the choice by shape. Raises KernelArgumentError where shapes or dtypes do not fit, or M is more than 8.
    """
    shape = check_arguments(x, weight, out, bias)
    launch_gemv(x, weight, out, bias, stream, tiling or choose_tiling(*shape), gated=False)


def gated_gemv(x, gate_up, out, stream=None, tiling: GemvTiling | None = None) -> None:
    """Write silu(x @ gate.T) * (x @ up.T) into `out` [M, I]: x [M, K] with M <= 8, gate_up [2 * I, K], the gate in its first half.

    One dtype: float32, float16 or bfloat16. Sums and gate are float32, and rounded once. `tiling` overrides the choice by shape; its rows
    are even. Raises KernelArgumentError where shapes or dtypes do not fit, or M is more than 8.
    """
    check_gated_arguments(x, gate_up, out)
    tiling = tiling or choose_gated_tiling(x.shape[0], *gate_up.shape)
    check(tiling[0] % 2 == 0, f"{tiling}: a warp computes pairs of a gate and what it gates, so its rows are even")
    launch_gemv(x, gate_up, out, None, stream, tiling, gated=True)


def launch_gemv(x, weight, out, bias, stream, tiling, gated):
    """Check what is common to both products, and launch over the columns of `out`."""
    (m, n), k, tiling = out.shape, x.shape[1], GemvTiling(*tiling)
    check(m <= MAX_ROWS_OF_X, f"gemv multiplies up to {MAX_ROWS_OF_X} rows of x, not {m}: choose tensor_core or tiled, or variant='auto'")
    check(tiling.warps % tiling.splits == 0, f"{tiling}: the warps of a block divide evenly into groups of `splits`")
    if m == 0 or n == 0:
        return
    vectorized = vectors_a_row(k, x, weight) > 0
    grid = ceil_div(n, tiling.rows // (2 if gated else 1) * (tiling.warps // tiling.splits))
    chosen = gemv_kernel(m, k, x.dtype.name, tiling, vectorized, gated)
    launch(chosen, grid, tiling.warps * WARP, (x, weight, bias, out), stream=stream)
