"""GELU and multiply, the gate of GeGLU (Shazeer 2020, "GLU Variants Improve Transformer", equation 6), in Gemma's form with tanh.

    out = gelu(gate) * up,    gelu(g) = g/2 * (1 + tanh(u)) = g * sigmoid(2u),    u = sqrt(2/pi) * (g + 0.044715 g**3)

T tokens of I intermediate elements of b bytes: about 11 T I FLOPs; reads 2 T I b bytes and writes T I b; arithmetic intensity about 4 / b
(2 FLOP per byte in bf16), so it is memory-bound. The kernels are those of SiLU and multiply (kernels/activation/silu.py) with another gate.
"""

import functools

import numpy as np
from numba import cuda, float32

from minllm.kernels.activation.gelu import gelu_reference, gelu_tanh
from minllm.kernels.arguments import FLOAT_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.vector import vector_access, vectors_per_row
from minllm.runtime.kernel import kernel, launch

BLOCK = 64
VECTORS_PER_THREAD = 2


def gelu_and_multiply_reference(gate_up):
    """gelu(gate) * up with the tanh form of GELU.

    gate_up: [T, 2 * intermediate], the gate in its first half. Result: [T, intermediate] in the same dtype, computed in float32.
    """
    wide = np.result_type(gate_up.dtype, np.float32)
    intermediate = gate_up.shape[-1] // 2
    gate, up = gate_up[..., :intermediate].astype(wide, copy=False), gate_up[..., intermediate:].astype(wide, copy=False)
    return (gelu_reference(gate, "tanh") * up).astype(gate_up.dtype, copy=False)


@kernel(dependent_launch=True)
def gelu_and_multiply_kernel(gate_up, out):
    """Any intermediate size, one element per thread: gate_up [T, 2 * I], out [T, I]."""
    wait_for_predecessors()
    token, intermediate = cuda.blockIdx.x, out.shape[1]
    i = cuda.blockIdx.y * BLOCK + cuda.threadIdx.x
    if i < intermediate:
        out[token, i] = gelu_tanh(float32(gate_up[token, i])) * float32(gate_up[token, intermediate + i])


@functools.cache
def gelu_and_multiply_vector_kernel(dtype):
    """The kernel for rows that are whole, aligned vectors of `dtype`."""
    width, load, store = vector_access(dtype)
    held = VECTORS_PER_THREAD * width

    @kernel(dependent_launch=True)
    def gelu_and_multiply_vector_kernel(gate_up, out):
        wait_for_predecessors()
        token, intermediate = cuda.blockIdx.x, out.shape[1]
        gate, up = cuda.local.array(held, float32), cuda.local.array(held, float32)
        first = cuda.blockIdx.y * VECTORS_PER_THREAD * BLOCK + cuda.threadIdx.x
        for v in range(VECTORS_PER_THREAD):
            i = (first + v * BLOCK) * width
            if i < intermediate:
                load(gate_up, token * 2 * intermediate + i, gate, v * width)
                load(gate_up, (token * 2 + 1) * intermediate + i, up, v * width)
        for v in range(VECTORS_PER_THREAD):
            i = (first + v * BLOCK) * width
            if i < intermediate:
                for k in range(v * width, (v + 1) * width):
                    gate[k] = gelu_tanh(gate[k]) * up[k]
                store(out, token * intermediate + i, gate, v * width)

    return gelu_and_multiply_vector_kernel


def gelu_and_multiply(gate_up, out, stream=None):
    """Write gelu(gate) * up into `out` [T, intermediate].

    gate_up: [T, 2 * intermediate], the gate in its first half, same dtype as `out`: float32, float16 or bfloat16. Raises
    KernelArgumentError for anything else.
    """
    check_array("out", out, FLOAT_DTYPES, tokens=None, intermediate=None)
    tokens, intermediate = out.shape
    check_array("gate_up", gate_up, (out.dtype,), tokens=tokens, gate_and_up=2 * intermediate)
    if vectors := vectors_per_row(intermediate, gate_up, out):
        grid = (tokens, ceil_div(vectors, VECTORS_PER_THREAD * BLOCK))
        launch(gelu_and_multiply_vector_kernel(out.dtype), grid, BLOCK, (gate_up, out), stream)
    else:
        launch(gelu_and_multiply_kernel, (tokens, ceil_div(intermediate, BLOCK)), BLOCK, (gate_up, out), stream)
