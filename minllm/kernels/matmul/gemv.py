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

from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.arguments import check_arguments
from minllm.kernels.reduction import warp_sum
from minllm.kernels.vector import VECTOR_BYTES, vectors_a_row
from minllm.ptx import load_128, load_128_streaming, uint_as_float, unpack_bf16x2, unpack_f16x2
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


DOT_OF_WORDS = {"float32": dot_float32, "bfloat16": dot_bf16x2, "float16": dot_f16x2}


def make_accumulate_step(m: int, k: int, dtype: str, tiling: GemvTiling, guarded: bool):
    """The device function of one step of a warp along K; `guarded` for a last step that may reach beyond the rows' end."""
    rows, unroll = tiling.rows, tiling.unroll
    vector = VECTOR_BYTES // np.dtype(dtype).itemsize
    warp_step = WARP * vector  # elements of a row that one load of a warp covers
    words_in_flight = rows * unroll * 4
    dot = DOT_OF_WORDS[dtype]

    @cuda.jit(device=True)
    def accumulate_step(x, weight, total, first_row, last_row, element):
        """total[i, r] += x[i, :] . weight[first_row + r, :] over `unroll` vectors, a warp's load apart, from `element` on."""
        words = cuda.local.array(words_in_flight, uint32)
        for u in range(unroll):
            if not guarded or element + u * warp_step < k:
                for r in range(rows):
                    row = min(int64(first_row + r), last_row)
                    w = load_128_streaming(weight, row * k + element + u * warp_step)
                    for word in range(4):
                        words[(u * rows + r) * 4 + word] = w[word]
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


def accumulate_vectors(m: int, k: int, dtype: str, tiling: GemvTiling):
    """The device function that adds a warp's share of the products to its sums, by 128-bit loads: rows of K elements are whole vectors."""
    unroll, splits = tiling.unroll, tiling.splits
    vector = VECTOR_BYTES // np.dtype(dtype).itemsize
    step = WARP * vector * unroll  # elements of a row that a warp has in flight
    full_steps = k // (step * splits)
    some_are_left = k % (step * splits) > 0
    accumulate_step = make_accumulate_step(m, k, dtype, tiling, guarded=False)
    accumulate_last_step = make_accumulate_step(m, k, dtype, tiling, guarded=True)

    @cuda.jit(device=True)
    def accumulate(x, weight, total, first_row, last_row, split, lane):
        """total[i, r] += x[i, :] . weight[first_row + r, :] over this lane's elements; rows beyond `last_row` repeat it."""
        element = int64(split * step + lane * vector)
        for _ in range(full_steps):
            accumulate_step(x, weight, total, first_row, last_row, element)
            element += step * splits
        if some_are_left:  # a constant: no code at all where K is whole steps
            accumulate_last_step(x, weight, total, first_row, last_row, element)

    return accumulate


def accumulate_elements(m: int, k: int, tiling: GemvTiling):
    """The same device function by single elements, for rows that do not begin on a multiple of 16 bytes."""
    rows, splits = tiling.rows, tiling.splits

    @cuda.jit(device=True)
    def accumulate(x, weight, total, first_row, last_row, split, lane):
        """total[i, r] += x[i, :] . weight[first_row + r, :] over this lane's elements; rows beyond `last_row` repeat it."""
        element = split * WARP + lane
        while element < k:
            for r in range(rows):
                w = float32(weight[min(int64(first_row + r), last_row), element])
                for i in range(m):
                    total[i, r] += float32(x[i, element]) * w
            element += WARP * splits

    return accumulate


@functools.cache
def gemv_kernel(m: int, k: int, dtype: str, tiling: GemvTiling, vectorized: bool):
    """The kernel for `m` rows of `k` elements of `dtype`; `vectorized` where every row begins on a multiple of 16 bytes."""
    rows, warps, _, splits = tiling
    groups = warps // splits  # of warps that share output features
    sums = m * rows
    accumulate = accumulate_vectors(m, k, dtype, tiling) if vectorized else accumulate_elements(m, k, tiling)

    @kernel(launch_bounds=warps * WARP)
    def matmul_gemv_kernel(x, weight, bias, out):
        """x [M, K], weight [N, K], bias [N] or None, out [M, N]; the grid covers N."""
        lane = int32(cuda.threadIdx.x) & (WARP - 1)
        warp = int32(cuda.threadIdx.x) >> WARP_SHIFT
        group = warp // splits
        split = warp % splits
        first_row = (cuda.blockIdx.x * groups + group) * rows  # of weight: the first output feature of this warp
        last_row = out.shape[1] - 1
        total = cuda.local.array((m, rows), float32)
        for i in range(m):
            for r in range(rows):
                total[i, r] = 0.0
        accumulate(x, weight, total, first_row, last_row, split, lane)
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
            for r in range(rows):
                if first_row + r <= last_row:
                    offset = float32(0.0)
                    if bias is not None:
                        offset = float32(bias[first_row + r])
                    for i in range(m):
                        out[i, first_row + r] = total[i, r] + offset

    return matmul_gemv_kernel


def choose_tiling(m: int, n: int, k: int) -> GemvTiling:
    """The fastest of 22 tilings, or within 3 % of it, at the matrices of a 1B model on an H200.

    More rows of x leave registers for fewer loads in flight.
    """
    if m == 1:
        return GemvTiling(rows=2, warps=4, unroll=4, splits=2) if k >= 4096 else GemvTiling(rows=1, warps=8, unroll=2, splits=2)
    if n < 8192:
        return GemvTiling(rows=2, warps=4, unroll=2, splits=2)
    return GemvTiling(rows=2, warps=8, unroll=2) if m <= 4 else GemvTiling(rows=4, warps=4, unroll=1)


def matmul_gemv(x, weight, out, bias=None, stream=None, tiling: GemvTiling | None = None) -> None:
    """Write x @ weight.T + bias into `out`: x [M, K] with M <= 8, weight [N, K], bias [N], out [M, N].

    x and weight are float32, float16 or bfloat16; out and bias are of that dtype or float32.

    `tiling` overrides the choice by shape. Raises KernelArgumentError where shapes or dtypes do not fit, or M is more than 8.
    """
    m, n, k = check_arguments(x, weight, out, bias)
    check(m <= MAX_ROWS_OF_X, f"gemv multiplies up to {MAX_ROWS_OF_X} rows of x, not {m}: choose tensor_core or tiled, or variant='auto'")
    if m == 0 or n == 0:
        return
    tiling = GemvTiling(*(tiling or choose_tiling(m, n, k)))
    check(tiling.warps % tiling.splits == 0, f"{tiling}: the warps of a block divide evenly into groups of `splits`")
    vectorized = vectors_a_row(k, x, weight) > 0
    grid = ceil_div(n, tiling.rows * (tiling.warps // tiling.splits))
    launch(gemv_kernel(m, k, x.dtype.name, tiling, vectorized), grid, tiling.warps * WARP, (x, weight, bias, out), stream=stream)
