"""The weighted sum of a token's experts, added to the residual stream, and the RMSNorm after it, in one kernel.

    r[t] = residual[t] + sum over i of weights[t, i] * outputs[t k + i]         rounded to the dtype, and kept
    y[t] = r[t] / sqrt(mean(r[t]**2) + epsilon) * norm                          statistics in float32

T tokens of H elements of b bytes, k experts each: reads outputs, residual and norm, writes residual and y: ((k + 3) T H + H) b bytes, where
combine.py and rms_norm.py move (k + 5) T H + H. With few tokens the time is that of a launch and of its loads, which are all in flight at
once here. A block takes a token, and its threads hold the row in registers.

Sources: kernels/experts/combine.py (the sum and its order), kernels/normalization/rms_norm.py (the norm).
"""

import functools

import numpy as np
from numba import cuda, float32, uint32
from numba.cuda import libdevice

from minllm.kernels.arguments import check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.experts.reference import combine_reference
from minllm.kernels.matmul.arguments import HALF_DTYPES
from minllm.kernels.normalization.rms_norm import rms_norm_reference
from minllm.kernels.normalization.row import row_in_registers
from minllm.kernels.reduction import block_sum
from minllm.kernels.vector import load_words, vector_access, vector_unpack
from minllm.runtime.kernel import check, kernel, launch
from minllm.tiles.warp import WARP


def combine_norm_reference(outputs, weights, residual, norm, epsilon):
    """(y, r), both [T, H] in the dtype of residual [T, H]; outputs [T * k, H], weights float32 [T, k], norm [H]."""
    return rms_norm_reference(combine_reference(outputs, weights, residual).astype(residual.dtype), norm, epsilon)


@functools.cache
def combine_norm_kernel(dtype, chosen: int, threads: int, pieces: int):
    """The kernel for `chosen` experts per token, and rows of which each of `threads` threads holds `pieces` vectors."""
    (width, load, store), unpack = vector_access(dtype), vector_unpack(dtype)
    held, words_in_flight = pieces * width, 4 * chosen

    @cuda.jit(device=True)
    def added(outputs, weights, first, hidden, token, words, values, total, at):
        """total[at:] += the vectors of a token's experts, from element `first` of its first output on; all loads are in flight at once."""
        for place in range(chosen):
            load_words(outputs, first + place * hidden, words, 4 * place)
        for place in range(chosen):
            unpack(words, 4 * place, values, 0)
            for j in range(width):
                total[at + j] += weights[token, place] * values[j]

    @kernel(launch_bounds=(threads, 1), dependent_launch=True)
    def combine_norm_kernel(outputs, weights, residual, norm, out, epsilon):
        """outputs [T * k, H], weights [T, k], residual, out [T, H], norm [H]; a block per token."""
        token, hidden = cuda.blockIdx.x, out.shape[1]
        row, partials = token * hidden, cuda.shared.array(WARP, float32)
        total, scales = cuda.local.array(held, float32), cuda.local.array(held, float32)
        words, values, before = cuda.local.array(words_in_flight, uint32), cuda.local.array(width, float32), cuda.local.array(4, uint32)
        for piece in range(pieces):
            i = (piece * threads + cuda.threadIdx.x) * width
            if i < hidden:
                load(norm, i, scales, piece * width)  # no kernel writes it, so this load may overlap the preceding kernel
        wait_for_predecessors()
        sum_of_squares = float32(0)
        for piece in range(pieces):
            i, at = (piece * threads + cuda.threadIdx.x) * width, piece * width
            if i < hidden:
                load_words(residual, row + i, before, 0)
                for j in range(width):
                    total[at + j] = float32(0)
                added(outputs, weights, token * chosen * hidden + i, hidden, token, words, values, total, at)
                unpack(before, 0, values, 0)
                for j in range(width):
                    total[at + j] += values[j]
                store(residual, row + i, total, at)  # and leaves the rounded numbers in total
                for j in range(width):
                    sum_of_squares += total[at + j] * total[at + j]
        inverse_rms = libdevice.rsqrtf(block_sum(sum_of_squares, partials) / float32(hidden) + epsilon)
        for piece in range(pieces):
            i, at = (piece * threads + cuda.threadIdx.x) * width, piece * width
            if i < hidden:
                for j in range(width):
                    total[at + j] *= inverse_rms * scales[at + j]
                store(out, row + i, total, at)

    return combine_norm_kernel


def fits(residual, norm) -> bool:
    """Whether the kernel supports the rows of a residual stream: 16 bits, aligned, and no longer than a block's registers."""
    return residual.dtype in HALF_DTYPES and row_in_registers(residual.shape[1], residual, norm) is not None


def combine_norm(outputs, weights, residual, norm, out, epsilon, stream=None) -> None:
    """Add the weighted sums of outputs [T * k, H] to residual [T, H], in place, and write its RMSNorm into `out` [T, H].

    weights float32 [T, k]; norm [H] and the others share one dtype, float16 or bfloat16, and their rows are whole 16-byte vectors that a
    block's registers hold (see `fits`). Raises KernelArgumentError for anything else.
    """
    check_array("residual", residual, HALF_DTYPES, tokens=None, hidden=None)
    tokens, hidden = residual.shape
    check_array("weights", weights, (np.dtype(np.float32),), tokens=tokens, chosen=None)
    chosen = weights.shape[1]
    check_array("outputs", outputs, (residual.dtype,), pairs=tokens * chosen, hidden=hidden)
    check_array("norm", norm, (residual.dtype,), hidden=hidden)
    check_array("out", out, (residual.dtype,), tokens=tokens, hidden=hidden)
    shape = row_in_registers(hidden, outputs, residual, norm, out)
    check(shape is not None, f"rows of {hidden} {residual.dtype} are not whole vectors in a block's registers: take combine and rms_norm")
    block, pieces = shape
    arguments = (outputs, weights, residual, norm, out, float(epsilon))
    launch(combine_norm_kernel(residual.dtype, chosen, block, pieces), tokens, block, arguments, stream)
