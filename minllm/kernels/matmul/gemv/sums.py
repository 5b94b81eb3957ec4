"""The sums of GEMV: how a warp multiplies its rows of weight by the rows of x, and how partial sums are combined.

A step of a warp is `unroll` vectors of each of its rows, all loaded before the first is used. An RMSNorm of x before the GEMV is fused
in: a warp multiplies by x * norm, accumulates the squares of x, and divides its sums by the root of their mean at the end, because

    sum of (x / rms) * norm * w  =  (sum of x * norm * w) / rms

so that the norm costs neither a kernel nor a separate pass over x.
"""

from typing import NamedTuple

import numpy as np
from numba import cuda, float32, int64, uint32
from numba.cuda import libdevice

from minllm.ptx import griddepcontrol_wait, load_128, load_128_streaming, uint_as_float, unpack_bf16x2, unpack_f16x2
from minllm.tiles.warp import WARP, warp_sum


class GemvTiling(NamedTuple):
    """How a block divides the weights: output features per warp, warps per block, loads in flight per row, and warps that share a row."""

    rows: int
    warps: int
    unroll: int
    splits: int = 1


@cuda.jit(device=True)
def dot_float32(a, b, total):
    """total + a * b, for two float32 in 32-bit words."""
    return total + uint_as_float(a) * uint_as_float(b)


@cuda.jit(device=True)
def scaled_dot_float32(a, b, scale, total):
    """total + a * (b * scale), for float32 in 32-bit words."""
    return total + uint_as_float(a) * (uint_as_float(b) * uint_as_float(scale))


def make_dots(unpack):
    """The same two device functions for words of two 16-bit numbers, which `unpack` converts."""

    @cuda.jit(device=True)
    def dot(a, b, total):
        """total + the dot product of two pairs."""
        a_low, a_high = unpack(a)
        b_low, b_high = unpack(b)
        return total + a_low * b_low + a_high * b_high

    @cuda.jit(device=True)
    def scaled_dot(a, b, scale, total):
        """total + the dot product of a and b * scale, three pairs."""
        a_low, a_high = unpack(a)
        b_low, b_high = unpack(b)
        scale_low, scale_high = unpack(scale)
        return total + a_low * (b_low * scale_low) + a_high * (b_high * scale_high)

    return dot, scaled_dot


DOTS = {"float32": (dot_float32, scaled_dot_float32), "bfloat16": make_dots(unpack_bf16x2), "float16": make_dots(unpack_f16x2)}


def make_accumulate_step(m: int, k: int, dtype: str, tiling: GemvTiling, weight_row, guarded: bool = False, waits: bool = False):
    """The device function of one step of a warp along K.

    weight_row(first, r, last): the device function that gives the warp's r-th row of weight.
    guarded: the step may reach beyond the rows' end. waits: x may not be written yet, so wait for it after issuing the loads of weights.
    """
    rows, unroll = tiling.rows, tiling.unroll
    vector = 16 // np.dtype(dtype).itemsize  # elements per load
    warp_step = WARP * vector  # elements of a row per load of a warp
    words_in_flight = rows * unroll * 4
    dot, scaled_dot = DOTS[dtype]

    @cuda.jit(device=True)
    def accumulate_step(x, norm, weight, total, squares, first, last, element):
        """total[i, r] += x[i, :] (* norm) . (the warp's r-th row) over `unroll` vectors, spaced one warp load apart, from `element` on."""
        words = cuda.local.array(words_in_flight, uint32)
        for u in range(unroll):
            if not guarded or element + u * warp_step < k:
                for r in range(rows):
                    w = load_128_streaming(weight, weight_row(first, r, last) * k + element + u * warp_step)
                    for word in range(4):
                        words[(u * rows + r) * 4 + word] = w[word]
        if waits:
            griddepcontrol_wait()
        # Without it ptxas would save registers by moving each load down to its first use, and only one load would be in flight at a time.
        # It costs no instruction in a warp that has not diverged, and memory accesses do not move across it.
        cuda.syncwarp()
        for u in range(unroll):
            if not guarded or element + u * warp_step < k:
                for i in range(m):
                    x_words = load_128(x, i * k + element + u * warp_step)
                    if norm is not None:
                        scales = load_128(norm, element + u * warp_step)
                        for word in range(4):
                            squares[i] = dot(x_words[word], x_words[word], squares[i])
                            for r in range(rows):
                                w_word = words[(u * rows + r) * 4 + word]
                                total[i, r] = scaled_dot(w_word, x_words[word], scales[word], total[i, r])
                    else:
                        for r in range(rows):
                            for word in range(4):
                                total[i, r] = dot(words[(u * rows + r) * 4 + word], x_words[word], total[i, r])

    return accumulate_step


def make_sums(m: int, k: int, dtype: str, tiling: GemvTiling, vectorized: bool, weight_row):
    """The device functions (begin, finish) of a GEMV block: after both, every lane has the sums of its warp's rows in total [m, rows].

    begin(x, norm, weight, total, squares, first, last, warp, lane) does the first step and waits for x; norm is a row of weights or None.
    Between the two, a kernel should load what its epilogue needs. finish(..., epsilon) does the other steps, adds up lanes and warps, and
    divides by the root mean square of x. vectorized: rows begin on multiples of 16 bytes; others are read element by element.
    """
    rows, warps, unroll, splits = tiling
    columns = rows + 1  # the sums of a row of x, and the sum of its squares
    shared_columns, vector = m * columns, 16 // np.dtype(dtype).itemsize
    step = WARP * vector * unroll  # elements of a row that a warp has in flight
    full_steps = k // (step * splits)
    some_are_left = k % (step * splits) > 0
    accumulate_first_step = make_accumulate_step(m, k, dtype, tiling, weight_row, guarded=not full_steps, waits=True)
    accumulate_step = make_accumulate_step(m, k, dtype, tiling, weight_row)
    accumulate_last_step = make_accumulate_step(m, k, dtype, tiling, weight_row, guarded=True)

    @cuda.jit(device=True)
    def begin(x, norm, weight, total, squares, first, last, warp, lane):
        for i in range(m):
            squares[i] = float32(0.0)
            for r in range(rows):
                total[i, r] = float32(0.0)
        if vectorized:
            accumulate_first_step(x, norm, weight, total, squares, first, last, int64(warp % splits * step + lane * vector))
        else:
            griddepcontrol_wait()

    @cuda.jit(device=True)
    def accumulate_elements(x, norm, weight, total, squares, first, last, split, lane):
        """total[i, r] += x[i, :] (* norm) . (the warp's r-th row of weight) over this lane's elements."""
        element = split * WARP + lane
        while element < k:
            for r in range(rows):
                w = float32(weight[weight_row(first, r, last), element])
                if norm is not None:
                    w *= float32(norm[element])
                for i in range(m):
                    total[i, r] += float32(x[i, element]) * w
            if norm is not None:
                for i in range(m):
                    squares[i] += float32(x[i, element]) * float32(x[i, element])
            element += WARP * splits

    @cuda.jit(device=True)
    def finish(x, norm, weight, total, squares, first, last, warp, lane, epsilon):
        # The other steps.
        if vectorized:
            element = int64(warp % splits * step + lane * vector + step * splits)
            for _ in range(full_steps - 1):
                accumulate_step(x, norm, weight, total, squares, first, last, element)
                element += step * splits
            if some_are_left and full_steps:  # compile-time constants: no code if K is whole steps
                accumulate_last_step(x, norm, weight, total, squares, first, last, element)
        else:
            accumulate_elements(x, norm, weight, total, squares, first, last, warp % splits, lane)
        # Sums over the lanes of a warp.
        for i in range(m):
            if norm is not None:
                squares[i] = warp_sum(squares[i])
            for r in range(rows):
                total[i, r] = warp_sum(total[i, r])
        # Sums over the warps that divide K.
        if splits > 1:
            shared_totals = cuda.shared.array((warps, shared_columns), float32)
            if lane == 0:
                for i in range(m):
                    if norm is not None:
                        shared_totals[warp, i * columns + rows] = squares[i]
                    for r in range(rows):
                        shared_totals[warp, i * columns + r] = total[i, r]
            cuda.syncthreads()
            for i in range(m):
                squares[i] = float32(0.0)
                for r in range(rows):
                    total[i, r] = float32(0.0)
                for other in range(splits):
                    of_group = warp // splits * splits + other
                    if norm is not None:
                        squares[i] += shared_totals[of_group, i * columns + rows]
                    for r in range(rows):
                        total[i, r] += shared_totals[of_group, i * columns + r]
        # The norm.
        if norm is not None:
            for i in range(m):
                inverse_rms = libdevice.rsqrtf(squares[i] * float32(1 / k) + epsilon)
                for r in range(rows):
                    total[i, r] *= inverse_rms

    return begin, finish
