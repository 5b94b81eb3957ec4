"""RMSNorm fused with the residual addition (Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", equation 4).

    r = x + residual                                       rounded to the dtype, and kept: the next layer adds to it
    y = r / sqrt(mean(r**2) + epsilon) * weight            statistics in float32

T tokens of H elements of b bytes: about 5 T H FLOPs; reads x, residual and weight, writes residual and y: (4 T H + H) b bytes;
arithmetic intensity about 5 / 4b (0.6 FLOP per byte in bf16), so it is memory-bound. Unfused, addition and norm would move 5 T H b
bytes. Each token loads the weight again, from L2; the kernel for any H walks its rows twice and loads 2 T H b more.

One block per token. In the vector kernel each thread holds its part of the row in registers, so the row is read once; the
sum of squares goes through warp shuffles and one exchange in shared memory.
"""

import functools

import numpy as np
from numba import cuda, float32
from numba.cuda import libdevice

from minllm.kernels.arguments import FLOAT_DTYPES, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.normalization.row import row_in_registers
from minllm.kernels.reduction import block_sum
from minllm.kernels.vector import vector_access
from minllm.runtime.kernel import kernel, launch
from minllm.tiles.warp import WARP

BLOCK = 256


def rms_norm_reference(x, weight, epsilon, residual=None):
    """Add `residual` to `x` and scale each row by the inverse of its root mean square.

    x, residual: [T, hidden]; weight: [hidden]. Returns (normalized, new_residual), both [T, hidden] in the dtype of `x`:
    new_residual = x + residual rounded to that dtype (x itself without a residual), and
    normalized = new_residual / sqrt(mean(new_residual**2) + epsilon) * weight, computed in float32 (float64 if `x` is) and rounded once.
    """
    wide = np.result_type(x.dtype, np.float32)
    new_residual = x if residual is None else (x.astype(wide, copy=False) + residual.astype(wide, copy=False)).astype(x.dtype, copy=False)
    values = new_residual.astype(wide, copy=False)
    # exercise: normalization.equation
    mean_square = np.square(values).mean(axis=-1, keepdims=True)
    normalized = values / np.sqrt(mean_square + wide.type(epsilon)) * weight.astype(wide, copy=False)
    # end exercise
    return normalized.astype(x.dtype, copy=False), new_residual


@kernel(dependent_launch=True)
def rms_norm_kernel(x, residual, has_residual, weight, out, epsilon):
    """Any hidden size: the block walks its row twice. x, residual, out: [T, H]; weight: [H]."""
    wait_for_predecessors()
    token, hidden = cuda.blockIdx.x, x.shape[1]
    partials = cuda.shared.array(WARP, float32)
    sum_of_squares = float32(0)
    i = cuda.threadIdx.x
    while i < hidden:
        value = float32(x[token, i])
        if has_residual:
            residual[token, i] = value + float32(residual[token, i])
            value = float32(residual[token, i])  # the rounded sum
        sum_of_squares += value * value
        i += BLOCK
    inverse_rms = libdevice.rsqrtf(block_sum(sum_of_squares, partials) / float32(hidden) + epsilon)
    i = cuda.threadIdx.x
    while i < hidden:
        value = float32(residual[token, i]) if has_residual else float32(x[token, i])
        out[token, i] = value * inverse_rms * float32(weight[i])
        i += BLOCK


@functools.cache
def rms_norm_vector_kernel(dtype, pieces, has_residual):
    """The kernel in which each thread holds `pieces` vectors of the row.

    Arrays as in `rms_norm_kernel`; rows must be whole, aligned vectors.
    """
    width, load, store = vector_access(dtype)
    held = pieces * width

    @kernel(launch_bounds=(1024, 1), dependent_launch=True)
    def rms_norm_vector_kernel(x, residual, weight, out, epsilon):
        token, hidden = cuda.blockIdx.x, x.shape[1]
        row = token * hidden
        partials = cuda.shared.array(WARP, float32)
        values, weights = cuda.local.array(held, float32), cuda.local.array(held, float32)
        addend = cuda.local.array(width, float32)
        for piece in range(pieces):
            i, at = (piece * cuda.blockDim.x + cuda.threadIdx.x) * width, piece * width
            if i < hidden:
                load(weight, i, weights, at)  # no kernel writes the weight, so this load may overlap the preceding kernel
        wait_for_predecessors()
        sum_of_squares = float32(0)
        for piece in range(pieces):
            i, at = (piece * cuda.blockDim.x + cuda.threadIdx.x) * width, piece * width
            if i < hidden:
                load(x, row + i, values, at)
                if has_residual:
                    load(residual, row + i, addend, 0)
                    for k in range(width):
                        values[at + k] += addend[k]
                    store(residual, row + i, values, at)
                for k in range(width):
                    sum_of_squares += values[at + k] * values[at + k]
        # exercise: normalization.rms_norm
        inverse_rms = libdevice.rsqrtf(block_sum(sum_of_squares, partials) / float32(hidden) + epsilon)
        for piece in range(pieces):
            i, at = (piece * cuda.blockDim.x + cuda.threadIdx.x) * width, piece * width
            if i < hidden:
                for k in range(width):
                    values[at + k] *= inverse_rms * weights[at + k]
                store(out, row + i, values, at)
        # end exercise

    return rms_norm_vector_kernel


def rms_norm(x, weight, out, epsilon, residual=None, stream=None):
    """Write the RMSNorm of `x` [T, hidden] into `out`, which may be `x`.

    residual [T, hidden]: if given, first residual += x, in place. weight: [hidden]. All arrays share one dtype: float32, float16 or
    bfloat16. Raises KernelArgumentError for anything else.
    """
    check_array("x", x, FLOAT_DTYPES, tokens=None, hidden=None)
    tokens, hidden = x.shape
    check_array("weight", weight, (x.dtype,), hidden=hidden)
    check_array("out", out, (x.dtype,), tokens=tokens, hidden=hidden)
    has_residual = residual is not None
    if has_residual:
        check_array("residual", residual, (x.dtype,), tokens=tokens, hidden=hidden)
    else:  # a kernel's arguments are always arrays: this one is not read
        residual = x
    if shape := row_in_registers(hidden, x, residual, weight, out):
        block, pieces = shape
        launch(rms_norm_vector_kernel(x.dtype, pieces, has_residual), tokens, block, (x, residual, weight, out, float(epsilon)), stream)
    else:
        launch(rms_norm_kernel, tokens, BLOCK, (x, residual, int(has_residual), weight, out, float(epsilon)), stream)
