"""The same step as `qkv_rope_append.py`, 16 bytes a load and store, for the heads that almost every model has.

Threads to data: a thread takes a vector of a head's first half and the one half a head behind it, which holds the partners of its
pairs; neighbouring threads share a head, and its norm is a sum over them. Several heads a thread would load the angles once for all of
them, but were slower on an H200 (81 to 85 % of a copy's speed, against 89): the angles come out of caches, and fewer threads fit beside
more registers.
"""

import functools

from numba import cuda, float32
from numba.cuda import libdevice

from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.rope.rotate import make_turn
from minllm.kernels.vector import vector_access
from minllm.kernels.warp import ALL_LANES
from minllm.ptx import token_stride
from minllm.runtime.kernel import kernel

THREADS = 128  # a block


@functools.cache
def qkv_rope_append_vector_kernel(dtype, head_dim, has_positions, has_norm):
    """The kernel for heads of `head_dim` components of `dtype`: half a head is whole vectors, with `has_norm` a power of two of them."""
    width, load, store = vector_access(dtype)
    half = head_dim // 2
    lanes = half // width
    load_angles, turn = make_turn(dtype, head_dim)

    @cuda.jit(device=True)
    def sum_over_head(value):
        """The sum over the `lanes` neighbouring threads that share a head; the whole warp takes part."""
        distance = lanes >> 1
        while distance:
            value += cuda.shfl_xor_sync(ALL_LANES, value, distance)
            distance >>= 1
        return value

    @cuda.jit(device=True)
    def normalize(a, b, inverse_rms, weight, i):
        """Multiply both vectors by `inverse_rms` and their components of weight [head_dim]."""
        a_weight, b_weight = cuda.local.array(width, float32), cuda.local.array(width, float32)
        load(weight, i, a_weight, 0)
        load(weight, half + i, b_weight, 0)
        for k in range(width):
            a[k] *= inverse_rms * a_weight[k]
            b[k] *= inverse_rms * b_weight[k]

    @cuda.jit(device=True)
    def store_head(out, start, i, a, b):
        """Both vectors of a head, which begins at element `start` of out."""
        store(out, start + i, a, 0)
        store(out, start + half + i, b, 0)

    @kernel(dependent_launch=True)
    def qkv_rope_append_vector_kernel(qkv, positions, slot_mapping, cos_sin, q_norm, k_norm, query, key_cache, value_cache, epsilon):
        # Arrays as in qkv_rope_append_kernel; a block: (vectors of half a head, heads side by side).
        wait_for_predecessors()
        token, i = cuda.blockIdx.x, cuda.threadIdx.x * width
        heads, kv_heads = query.shape[1], key_cache.shape[1]
        head = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
        is_query, is_turned, is_any = head < heads, head < heads + kv_heads, head < heads + 2 * kv_heads
        position, slot = positions[token], slot_mapping[token]
        a, b = cuda.local.array(width, float32), cuda.local.array(width, float32)
        cosine, sine = cuda.local.array(width, float32), cuda.local.array(width, float32)
        if is_any:
            row = token * (heads + 2 * kv_heads) + head
            load(qkv, row * head_dim + i, a, 0)
            load(qkv, row * head_dim + half + i, b, 0)
        if has_positions and is_turned:
            load_angles(cos_sin, position, i, cosine, sine)
        if has_norm:
            sum_of_squares = float32(0)
            if is_turned:
                for k in range(width):
                    sum_of_squares += a[k] * a[k] + b[k] * b[k]
            inverse_rms = libdevice.rsqrtf(sum_over_head(sum_of_squares) * float32(1 / head_dim) + epsilon)
            if is_turned:
                normalize(a, b, inverse_rms, q_norm if is_query else k_norm, i)
        if has_positions and is_turned:
            turn(a, b, 0, cosine, sine)
        if is_query:
            store_head(query, (token * heads + head) * head_dim, i, a, b)
        elif is_any and slot >= 0:
            skipped = slot * (token_stride(key_cache, kv_heads * head_dim) - kv_heads * head_dim)  # what lies between the tokens before
            if is_turned:
                store_head(key_cache, skipped + (slot * kv_heads + head - heads) * head_dim, i, a, b)
            else:
                store_head(value_cache, skipped + (slot * kv_heads + head - heads - kv_heads) * head_dim, i, a, b)

    return qkv_rope_append_vector_kernel
