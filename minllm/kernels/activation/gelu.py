"""GELU, exact and with tanh (Hendrycks and Gimpel 2016, "Gaussian Error Linear Units", section 2).

    exact    x/2 * (1 + erf(x / sqrt(2)))                                  BERT's and Falcon's
    tanh     x/2 * (1 + tanh(u)) = x * sigmoid(2u),  u = sqrt(2/pi) * (x + 0.044715 x**3)     GPT-2's

T tokens of F features of b bytes: about 10 T F FLOPs (tanh; the exact form's erf is a polynomial of some 20); reads T F b bytes and
writes as many; arithmetic intensity about 5 / b (2.5 FLOP a byte in bf16), so memory sets the time.

A thread computes two 16-byte vectors, both loaded before either is used.
"""

import functools
import math

import numpy as np
from numba import cuda, float32

from minllm.kernels.activation.sigmoid import sigmoid
from minllm.kernels.arguments import FLOAT_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.vector import vector_access, vectors_a_row
from minllm.runtime.kernel import check, kernel, launch

BLOCK = 128
VECTORS_A_THREAD = 2
SQRT_HALF = math.sqrt(0.5)
TWICE_SQRT_2_OVER_PI = 2 * math.sqrt(2 / math.pi)
UNKNOWN_FORMULA = 'approximate is {!r}; it must be "none" (the exact GELU) or "tanh"'

_erf = np.frompyfunc(math.erf, 1, 1)  # NumPy has no erf of its own


def gelu_reference(x, approximate="none"):
    """GELU of every element, in the dtype of `x`, computed in float32 (float64 if `x` is).

    approximate "none": x/2 * (1 + erf(x / sqrt(2))); "tanh": x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x**3))), as GPT-2 has it.
    """
    check(approximate in ("none", "tanh"), UNKNOWN_FORMULA.format(approximate))
    values = x.astype(np.result_type(x.dtype, np.float32), copy=False)
    if approximate == "tanh":
        with np.errstate(over="ignore"):  # the cube of a huge value is inf, and tanh(inf) is the right 1
            gate = np.tanh(math.sqrt(2 / math.pi) * (values + 0.044715 * (values * values * values)))
    else:
        gate = _erf(values * math.sqrt(0.5)).astype(values.dtype)
    return (0.5 * values * (1 + gate)).astype(x.dtype, copy=False)


@cuda.jit(device=True)
def gelu_exact(x):
    """x/2 * (1 + erf(x / sqrt(2))), float32."""
    return float32(0.5) * x * (float32(1) + math.erf(x * float32(SQRT_HALF)))


@cuda.jit(device=True)
def gelu_tanh(x):
    """x/2 * (1 + tanh(u)) as x * sigmoid(2u), float32: one exponential, and no cancellation where tanh(u) is near -1."""
    return x * sigmoid(float32(TWICE_SQRT_2_OVER_PI) * (x + float32(0.044715) * x * x * x))


FORMULAS = {"none": gelu_exact, "tanh": gelu_tanh}


@functools.cache
def gelu_kernel(approximate):
    """Any number of features, an element a thread."""
    formula = FORMULAS[approximate]

    @kernel(dependent_launch=True)
    def gelu_kernel(x, out):  # both [T, features]
        wait_for_predecessors()
        i = cuda.blockIdx.y * BLOCK + cuda.threadIdx.x
        if i < out.shape[1]:
            out[cuda.blockIdx.x, i] = formula(float32(x[cuda.blockIdx.x, i]))

    return gelu_kernel


@functools.cache
def gelu_vector_kernel(approximate, dtype):
    """The kernel that computes vectors of `dtype`, for rows that are whole, aligned vectors."""
    formula = FORMULAS[approximate]
    width, load, store = vector_access(dtype)
    held = VECTORS_A_THREAD * width

    @kernel(dependent_launch=True)
    def gelu_vector_kernel(x, out):  # both [T, features], of which the kernel sees T * features elements in a row
        wait_for_predecessors()
        values = cuda.local.array(held, float32)
        first, size = cuda.blockIdx.x * VECTORS_A_THREAD * BLOCK + cuda.threadIdx.x, out.shape[0] * out.shape[1]
        for v in range(VECTORS_A_THREAD):
            i = (first + v * BLOCK) * width
            if i < size:
                load(x, i, values, v * width)
        for v in range(VECTORS_A_THREAD):
            i = (first + v * BLOCK) * width
            if i < size:
                for k in range(v * width, (v + 1) * width):
                    values[k] = formula(values[k])
                store(out, i, values, v * width)

    return gelu_vector_kernel


def gelu(x, out, approximate="none", stream=None):
    """Write the GELU of `x` [T, features] into `out`, which may be `x`; approximate: "none" or "tanh", see `gelu_reference`.

    Raises KernelArgumentError for other shapes and dtypes than float32, float16 and bfloat16.
    """
    check(approximate in FORMULAS, UNKNOWN_FORMULA.format(approximate))
    check_array("x", x, FLOAT_DTYPES, tokens=None, features=None)
    tokens, features = x.shape
    check_array("out", out, (x.dtype,), tokens=tokens, features=features)
    if vectors := vectors_a_row(features, x, out):
        grid = ceil_div(tokens * vectors, VECTORS_A_THREAD * BLOCK)
        launch(gelu_vector_kernel(approximate, x.dtype), grid, BLOCK, (x, out), stream)
    else:
        launch(gelu_kernel(approximate), (tokens, ceil_div(features, BLOCK)), BLOCK, (x, out), stream)
