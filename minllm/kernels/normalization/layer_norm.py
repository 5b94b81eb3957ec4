"""LayerNorm fused with the residual addition (Ba, Kiros and Hinton 2016, "Layer Normalization", equation 4).

    r = x + residual                                                            rounded to the dtype, and kept
    y = (r - mean(r)) / sqrt(mean((r - mean(r))**2) + epsilon) * weight + bias  statistics in float32

T tokens of H elements of b bytes: about 8 T H FLOPs; reads x, residual, weight and bias, writes residual and y: (4 T H + 2 H) b
bytes; arithmetic intensity about 2 / b (1 FLOP per byte in bf16), so it is memory-bound. Each token loads weight and bias again, from
L2; the kernel for any H walks its rows three times and loads 3 T H b more.

One block per token holds its row in registers, as in RMSNorm. The variance is a second sum over the centred values in registers:
the one-pass form E[r**2] - E[r]**2 cancels when the mean is large compared with the deviation. Each warp centres its own part of the row,
and one block-wide exchange combines mean and variance.
"""

import functools

import numpy as np
from numba import cuda, float32, uint32
from numba.cuda import libdevice

from minllm.kernels.arguments import FLOAT_DTYPES, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.normalization.row import row_in_registers
from minllm.kernels.reduction import block_moments, block_sum
from minllm.kernels.vector import load_words, vector_access, vector_unpack
from minllm.ptx import rcp
from minllm.runtime.kernel import kernel, launch
from minllm.tiles.warp import WARP, warp_sum

BLOCK = 256


def layer_norm_reference(x, weight, bias, epsilon, residual=None):
    """Add `residual` to `x` and bring each row to mean 0 and variance 1, then scale and shift it.

    x, residual: [T, hidden]; weight, bias: [hidden] (bias may be None). Returns (normalized, new_residual), both [T, hidden] in the dtype
    of `x`: new_residual = x + residual rounded to that dtype (x itself without a residual), and
    normalized = (new_residual - mean) / sqrt(variance + epsilon) * weight + bias, computed in float32 (float64 if `x` is) and rounded once.
    """
    wide = np.result_type(x.dtype, np.float32)
    new_residual = x if residual is None else (x.astype(wide, copy=False) + residual.astype(wide, copy=False)).astype(x.dtype, copy=False)
    values = new_residual.astype(wide, copy=False)
    centred = values - values.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)  # population variance: divided by hidden, not hidden - 1
    normalized = centred / np.sqrt(variance + wide.type(epsilon)) * weight.astype(wide, copy=False)
    if bias is not None:
        normalized += bias.astype(wide, copy=False)
    return normalized.astype(x.dtype, copy=False), new_residual


@kernel(dependent_launch=True)
def layer_norm_kernel(x, residual, has_residual, weight, bias, has_bias, out, epsilon):
    """Any hidden size: the block walks its row three times. x, residual, out: [T, H]; weight, bias: [H]."""
    wait_for_predecessors()
    token, hidden = cuda.blockIdx.x, x.shape[1]
    partials, square_partials = cuda.shared.array(WARP, float32), cuda.shared.array(WARP, float32)
    total = float32(0)
    i = cuda.threadIdx.x
    while i < hidden:
        value = float32(x[token, i])
        if has_residual:
            residual[token, i] = value + float32(residual[token, i])
            value = float32(residual[token, i])  # the rounded sum
        total += value
        i += BLOCK
    mean = block_sum(total, partials) / float32(hidden)
    sum_of_squares = float32(0)
    i = cuda.threadIdx.x
    while i < hidden:
        value = (float32(residual[token, i]) if has_residual else float32(x[token, i])) - mean
        sum_of_squares += value * value
        i += BLOCK
    inverse_deviation = libdevice.rsqrtf(block_sum(sum_of_squares, square_partials) / float32(hidden) + epsilon)
    i = cuda.threadIdx.x
    while i < hidden:
        value = (float32(residual[token, i]) if has_residual else float32(x[token, i])) - mean
        shift = float32(bias[i]) if has_bias else float32(0)
        out[token, i] = value * inverse_deviation * float32(weight[i]) + shift
        i += BLOCK


@functools.cache
def layer_norm_vector_kernel(dtype, pieces, has_residual, has_bias):
    """The kernel in which each thread holds `pieces` vectors of the row.

    Arrays as in `layer_norm_kernel`; rows must be whole, aligned vectors.
    """
    width, load, store = vector_access(dtype)
    unpack, held, words_held = vector_unpack(dtype), pieces * width, pieces * 4

    @kernel(launch_bounds=(1024, 1), dependent_launch=True)
    def layer_norm_vector_kernel(x, residual, weight, bias, out, epsilon):
        token, hidden = cuda.blockIdx.x, x.shape[1]
        row = token * hidden
        partials = cuda.shared.array((3, WARP), float32)
        x_words, residual_words = cuda.local.array(words_held, uint32), cuda.local.array(words_held, uint32)
        values, other = cuda.local.array(held, float32), cuda.local.array(width, float32)
        wait_for_predecessors()
        for piece in range(pieces):
            i = (piece * cuda.blockDim.x + cuda.threadIdx.x) * width
            if i < hidden:
                load_words(x, row + i, x_words, 4 * piece)
                if has_residual:
                    load_words(residual, row + i, residual_words, 4 * piece)
        count = total = float32(0)
        for piece in range(pieces):
            i, at = (piece * cuda.blockDim.x + cuda.threadIdx.x) * width, piece * width
            if i < hidden:
                unpack(x_words, 4 * piece, values, at)
                if has_residual:
                    unpack(residual_words, 4 * piece, other, 0)
                    for k in range(width):
                        values[at + k] += other[k]
                    store(residual, row + i, values, at)
                for k in range(at, at + width):
                    total += values[k]
                count += float32(width)
        count = warp_sum(count)
        mean = warp_sum(total) * rcp(max(count, float32(1)))  # this warp's part of the row, as are the deviations
        deviations = float32(0)
        for piece in range(pieces):
            i, at = (piece * cuda.blockDim.x + cuda.threadIdx.x) * width, piece * width
            if i < hidden:
                for k in range(at, at + width):
                    deviations += (values[k] - mean) * (values[k] - mean)
        mean, deviations = block_moments(count, mean, warp_sum(deviations), hidden, partials)
        inverse_deviation = libdevice.rsqrtf(deviations / float32(hidden) + epsilon)
        for piece in range(pieces):
            i, at = (piece * cuda.blockDim.x + cuda.threadIdx.x) * width, piece * width
            if i < hidden:
                load(weight, i, other, 0)
                for k in range(width):
                    values[at + k] = (values[at + k] - mean) * (inverse_deviation * other[k])
                if has_bias:
                    load(bias, i, other, 0)
                    for k in range(width):
                        values[at + k] += other[k]
                store(out, row + i, values, at)

    return layer_norm_vector_kernel


def layer_norm(x, weight, bias, out, epsilon, residual=None, stream=None):
    """Write the LayerNorm of `x` [T, hidden] into `out`, which may be `x`.

    residual [T, hidden]: if given, first residual += x, in place. weight, bias: [hidden], bias may be None. All arrays share one dtype:
    float32, float16 or bfloat16. Raises KernelArgumentError for anything else.
    """
    check_array("x", x, FLOAT_DTYPES, tokens=None, hidden=None)
    tokens, hidden = x.shape
    check_array("weight", weight, (x.dtype,), hidden=hidden)
    check_array("out", out, (x.dtype,), tokens=tokens, hidden=hidden)
    has_residual, has_bias = residual is not None, bias is not None
    if has_residual:
        check_array("residual", residual, (x.dtype,), tokens=tokens, hidden=hidden)
    if has_bias:
        check_array("bias", bias, (x.dtype,), hidden=hidden)
    # A kernel's arguments are always arrays: a missing residual or bias is replaced by an array that is not read.
    residual, bias = residual if has_residual else x, bias if has_bias else weight
    if shape := row_in_registers(hidden, x, residual, weight, bias, out):
        block, pieces = shape
        chosen = layer_norm_vector_kernel(x.dtype, pieces, has_residual, has_bias)
        launch(chosen, tokens, block, (x, residual, weight, bias, out, float(epsilon)), stream)
    else:
        arguments = (x, residual, int(has_residual), weight, bias, int(has_bias), out, float(epsilon))
        launch(layer_norm_kernel, tokens, BLOCK, arguments, stream)
