"""RoPE within other kernels: a thread rotates a pair of vectors that it holds in registers.

The engine rotates queries and keys in the kernels that write the cache (kv/qkv_rope_append.py), where it costs no extra traffic.
ladder/rope.py is a kernel of its own; reference.py has the equation and the table of angles.
"""

import numpy as np
from numba import cuda

from minllm.kernels.arguments import check_array
from minllm.kernels.vector import load_4_float32, vector_access, vectors_per_row
from minllm.runtime.kernel import check


def make_rotate(dtype, head_dim):
    """Device functions (load_angles, rotate) for a thread that holds a pair of vectors half a head apart.

    load_angles(cos_sin, position, i, cosine, sine) fills two local arrays of one vector's width for components i... of the half head;
    rotate(a, b, at, cosine, sine) rotates a[at : at + width] against b[at : at + width], in place.
    """
    width, half = vector_access(dtype)[0], head_dim // 2

    @cuda.jit(device=True)
    def load_angles(cos_sin, position, i, cosine, sine):
        for k in range(0, width, 4):
            load_4_float32(cos_sin, position * head_dim + i + k, cosine, k)
            load_4_float32(cos_sin, position * head_dim + half + i + k, sine, k)

    @cuda.jit(device=True)
    def rotate(a, b, at, cosine, sine):
        for k in range(width):
            a[at + k], b[at + k] = a[at + k] * cosine[k] - b[at + k] * sine[k], b[at + k] * cosine[k] + a[at + k] * sine[k]

    return load_angles, rotate


def vectors_of_half_a_head(head_dim, rotary_dim, interleaved, cos_sin, *arrays):
    """Vectors per half head, or 0 if the vector kernel does not apply.

    It needs pairs half a head apart, all components rotated, and all arrays aligned.
    """
    if interleaved or rotary_dim != head_dim or head_dim % 2 or not vectors_per_row(head_dim // 2, cos_sin):
        return 0
    return vectors_per_row(head_dim // 2, *arrays)


def check_cos_sin(cos_sin, head_dim):
    """Raise KernelArgumentError unless `cos_sin` is a table for heads of `head_dim` components."""
    check_array("cos_sin", cos_sin, (np.dtype(np.float32),), positions=None, rotary_dim=None)
    rotary_dim = cos_sin.shape[1]
    check(
        rotary_dim % 2 == 0 and rotary_dim <= head_dim,
        f"cos_sin turns {rotary_dim} components of a head of {head_dim}; rotary_dim must be even and at most head_dim",
    )
