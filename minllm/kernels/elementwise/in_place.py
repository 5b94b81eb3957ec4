"""Two functions of every element with one parameter, in place: a factor, and a soft cap.

    scale       x * factor                     Gemma multiplies the rows of its embedding by sqrt(hidden)
    soft_cap    cap * tanh(x / cap)            Gemma 2 keeps logits within (-cap, cap), and their order

The factor is rounded to the dtype of x first, as a stored parameter is: in bfloat16 sqrt(3072) = 55.43 becomes 55.5, with which the models
were trained.

T tokens of F features of b bytes: T F FLOPs (a soft cap some 15 per element); reads T F b bytes and writes as many; arithmetic intensity
1 / 2b (0.25 FLOP per byte in bf16), so it is memory-bound. Each thread computes one 16-byte vector.
Source: Gemma Team 2024, "Gemma 2: Improving Open Language Models at a Practical Size", section 2 (logit soft-capping).
"""

import functools
import math

import numpy as np
from numba import cuda, float32

from minllm.kernels.arguments import FLOAT_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.vector import vector_access, vectors_per_row
from minllm.runtime.kernel import check, kernel, launch

BLOCK = 128


def scale_reference(x, factor):
    """x * factor in the dtype of x, with the factor rounded to that dtype, computed in float32."""
    wide = np.result_type(x.dtype, np.float32)
    return (x.astype(wide, copy=False) * rounded(factor, x.dtype).astype(wide)).astype(x.dtype, copy=False)


def soft_cap_reference(x, cap):
    """cap * tanh(x / cap) in the dtype of x, computed in float32."""
    wide = np.result_type(x.dtype, np.float32)
    return (wide.type(cap) * np.tanh(x.astype(wide, copy=False) / wide.type(cap))).astype(x.dtype, copy=False)


def rounded(factor, dtype):
    """A number as the dtype holds it."""
    return np.asarray(factor, np.float32).astype(dtype)


@cuda.jit(device=True)
def scaled(x, factor):
    """x * factor, float32."""
    return x * factor


@cuda.jit(device=True)
def soft_capped(x, cap):
    """cap * tanh(x / cap), float32."""
    return cap * math.tanh(x / cap)


@functools.cache
def in_place_kernel(formula):
    """Any number of features, one element per thread."""

    @kernel(dependent_launch=True)
    def in_place_kernel(x, parameter):  # x [T, features]
        wait_for_predecessors()
        i = cuda.blockIdx.y * BLOCK + cuda.threadIdx.x
        if i < x.shape[1]:
            x[cuda.blockIdx.x, i] = formula(float32(x[cuda.blockIdx.x, i]), parameter)

    return in_place_kernel


@functools.cache
def in_place_vector_kernel(formula, dtype):
    """The kernel for rows that are whole, aligned vectors of `dtype`."""
    width, load, store = vector_access(dtype)

    @kernel(dependent_launch=True)
    def in_place_vector_kernel(x, parameter):  # x [T, features], indexed as T * features elements in a row
        wait_for_predecessors()
        values = cuda.local.array(width, float32)
        i = (cuda.blockIdx.x * BLOCK + cuda.threadIdx.x) * width
        if i < x.shape[0] * x.shape[1]:
            load(x, i, values, 0)
            for k in range(width):
                values[k] = formula(values[k], parameter)
            store(x, i, values, 0)

    return in_place_vector_kernel


def scale(x, factor, stream=None):
    """Multiply x [T, features] by `factor`, in place; see `scale_reference`. Raises KernelArgumentError for unsuitable arguments."""
    check(math.isfinite(factor), f"factor is {factor}; it must be finite")
    _change(x, scaled, np.float32(rounded(factor, x.dtype)), stream)


def soft_cap(x, cap, stream=None):
    """Write cap * tanh(x / cap) over x [T, features]. Raises KernelArgumentError for unsuitable arguments."""
    check(math.isfinite(cap) and cap > 0, f"cap is {cap}; it must be a positive number")
    _change(x, soft_capped, np.float32(cap), stream)


def _change(x, formula, parameter, stream):
    check_array("x", x, FLOAT_DTYPES, tokens=None, features=None)
    tokens, features = x.shape
    if vectors := vectors_per_row(features, x):
        launch(in_place_vector_kernel(formula, x.dtype), ceil_div(tokens * vectors, BLOCK), BLOCK, (x, parameter), stream)
    else:
        launch(in_place_kernel(formula), (tokens, ceil_div(features, BLOCK)), BLOCK, (x, parameter), stream)
