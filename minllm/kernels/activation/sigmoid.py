"""The logistic function 1 / (1 + exp(-x)): SiLU and the tanh form of GELU use it."""

from numba import cuda, float32

from minllm.ptx import ex2, rcp

LOG2_E = 1.4426950408889634


@cuda.jit(device=True)
def sigmoid(x):
    """sigmoid(x), float32, accurate to about 2**-21, from the special-function unit's 2**x and 1/x. Infinities give 0 and 1, never NaN."""
    return rcp(float32(1) + ex2(x * float32(-LOG2_E)))
