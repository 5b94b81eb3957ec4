"""The logistic function 1 / (1 + exp(-x)), of which SiLU and the tanh form of GELU are both made."""

from numba import cuda, float32

from minllm.ptx import ex2, rcp

LOG2_E = 1.4426950408889634


@cuda.jit(device=True)
def sigmoid(x):
    """sigmoid(x), float32, to about 2**-21: the special-function unit has 2**x and 1/x. 0 and 1 at the infinities, without a NaN."""
    return rcp(float32(1) + ex2(x * float32(-LOG2_E)))
