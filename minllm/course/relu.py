"""ReLU, the smallest kernel of the course and its first exercise.

    out[i] = max(x[i], 0)

n elements of float32: n FLOPs; reads 4 n bytes and writes 4 n. One thread per element.
Source: V. Nair, G. Hinton, "Rectified Linear Units Improve Restricted Boltzmann Machines", ICML 2010.
"""

import numpy as np
from numba import cuda, float32

from minllm.kernels.arguments import ceil_div
from minllm.runtime.kernel import kernel, launch

BLOCK = 32


def relu_reference(x):
    """max(x, 0) of every element."""
    return np.maximum(x, np.float32(0))


@kernel
def relu_kernel(x, out):
    """out[i] = max(x[i], 0), one thread per element; x and out are float32 [n]."""
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    # exercise: activation.relu
    if i < out.size:
        out[i] = max(x[i], float32(0))
    # end exercise


def relu(x, out, stream=None):
    """Write max(x, 0) of x, float32 [n], into out of the same shape."""
    launch(relu_kernel, ceil_div(out.size, BLOCK), BLOCK, (x, out), stream)
