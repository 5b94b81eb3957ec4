"""GELU, exact and with tanh (Hendrycks and Gimpel 2016, "Gaussian Error Linear Units", section 2).

    exact    x/2 * (1 + erf(x / sqrt(2))) = x * P(x)                       BERT's and Falcon's; P is the normal distribution
    tanh     x/2 * (1 + tanh(u)) = x * sigmoid(2u),  u = sqrt(2/pi) * (x + 0.044715 x**3)     GPT-2's

The exact form computes x P(x) = max(x, 0) - |x| P(-|x|), which has no cancellation. The tail P(-|x|) is t * polynomial(t) * exp(-x**2 / 2)
with t = 1 / (1 + 0.3 |x|), the form of Hastings (1955, "Approximations for Digital Computers"); the eight coefficients were fitted for
the least relative error, 1.3e-7 of the tail up to |x| = 13. libdevice's erf takes twice the instructions and two branches, which makes
the kernel compute-bound.

T tokens of F features of b bytes: about 10 T F FLOPs (tanh; 25 exact); reads T F b bytes and writes as many; arithmetic intensity about
5 / b (2.5 FLOP per byte in bf16), so it is memory-bound.

Each thread computes two 16-byte vectors, and loads both before it uses either.
"""

import functools
import math

import numpy as np
from numba import cuda, float32

from minllm.kernels.activation.sigmoid import sigmoid
from minllm.kernels.arguments import FLOAT_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.vector import vector_access, vectors_per_row
from minllm.ptx import ex2, rcp
from minllm.runtime.kernel import check, kernel, launch

BLOCK = 128
VECTORS_PER_THREAD = 2
HALF_LOG2_E = math.log2(math.e) / 2
# Coefficients of the polynomial, the constant first.
TAIL = (0.11962639, 0.12079839, 0.0996373, 0.1294699, -0.05539533, 0.20820838, -0.15827714, 0.03593203)
FAR = 16.0  # the tail is 0 in float32 here; clamping |x| avoids infinity times 0
TWICE_SQRT_2_OVER_PI = 2 * math.sqrt(2 / math.pi)
UNKNOWN_FORMULA = 'approximate is {!r}; it must be "none" (the exact GELU) or "tanh"'

_erf = np.frompyfunc(math.erf, 1, 1)  # NumPy has no erf


def gelu_reference(x, approximate="none"):
    """GELU of every element, in the dtype of `x`, computed in float32 (float64 if `x` is).

    approximate "none": x/2 * (1 + erf(x / sqrt(2))); "tanh": x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x**3))), as GPT-2 has it.
    """
    check(approximate in ("none", "tanh"), UNKNOWN_FORMULA.format(approximate))
    values = x.astype(np.result_type(x.dtype, np.float32), copy=False)
    if approximate == "tanh":
        with np.errstate(over="ignore"):  # the cube of a huge value is inf, and tanh(inf) is 1, as it should be
            gate = np.tanh(math.sqrt(2 / math.pi) * (values + 0.044715 * (values * values * values)))
    else:
        gate = _erf(values * math.sqrt(0.5)).astype(values.dtype)
    return (0.5 * values * (1 + gate)).astype(x.dtype, copy=False)


@cuda.jit(device=True)
def gelu_exact(x):
    """max(x, 0) - |x| P(-|x|), float32."""
    distance = abs(x)
    t = rcp(float32(1) + float32(0.3) * distance)
    tail = float32(TAIL[7])
    for i in range(6, -1, -1):
        tail = tail * t + float32(TAIL[i])
    tail *= t * ex2(x * x * float32(-HALF_LOG2_E))
    return max(x, float32(0)) - min(distance, float32(FAR)) * tail


@cuda.jit(device=True)
def gelu_tanh(x):
    """x/2 * (1 + tanh(u)) as x * sigmoid(2u), float32: one exponential, and no cancellation where tanh(u) is near -1."""
    return x * sigmoid(float32(TWICE_SQRT_2_OVER_PI) * (x + float32(0.044715) * x * x * x))


FORMULAS = {"none": gelu_exact, "tanh": gelu_tanh}


@functools.cache
def gelu_kernel(approximate):
    """Any number of features, one element per thread."""
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
    """The kernel for rows that are whole, aligned vectors of `dtype`."""
    formula = FORMULAS[approximate]
    width, load, store = vector_access(dtype)
    held = VECTORS_PER_THREAD * width

    @kernel(dependent_launch=True)
    def gelu_vector_kernel(x, out):  # both [T, features], indexed as T * features elements in a row
        wait_for_predecessors()
        values = cuda.local.array(held, float32)
        first, size = cuda.blockIdx.x * VECTORS_PER_THREAD * BLOCK + cuda.threadIdx.x, out.shape[0] * out.shape[1]
        for v in range(VECTORS_PER_THREAD):
            i = (first + v * BLOCK) * width
            if i < size:
                load(x, i, values, v * width)
        for v in range(VECTORS_PER_THREAD):
            i = (first + v * BLOCK) * width
            if i < size:
                for k in range(v * width, (v + 1) * width):
                    values[k] = formula(values[k])
                store(out, i, values, v * width)

    return gelu_vector_kernel


def gelu(x, out, approximate="none", stream=None):
    """Write the GELU of `x` [T, features] into `out`, which may be `x`; approximate: "none" or "tanh", see `gelu_reference`.

    Raises KernelArgumentError for shapes that differ and for dtypes other than float32, float16 and bfloat16.
    """
    check(approximate in FORMULAS, UNKNOWN_FORMULA.format(approximate))
    check_array("x", x, FLOAT_DTYPES, tokens=None, features=None)
    tokens, features = x.shape
    check_array("out", out, (x.dtype,), tokens=tokens, features=features)
    if vectors := vectors_per_row(features, x, out):
        grid = ceil_div(tokens * vectors, VECTORS_PER_THREAD * BLOCK)
        launch(gelu_vector_kernel(approximate, x.dtype), grid, BLOCK, (x, out), stream)
    else:
        launch(gelu_kernel(approximate), (tokens, ceil_div(features, BLOCK)), BLOCK, (x, out), stream)
