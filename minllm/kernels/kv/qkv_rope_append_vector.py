"""The same step as `qkv_rope_append.py`, 16 bytes a load and store, for the heads that almost every model has.

Threads to data: a thread takes a vector of a head's first half and the one half a head behind it, which holds the partners of its
pairs, of up to `heads_a_thread` heads of one token, so that the angles, float32 and therefore as many bytes as four heads, are loaded once for
all of them. A single token spreads over as many blocks as it can instead. The norm of a head is a sum over the lanes that share it.
"""

import functools

from numba import cuda, float32
from numba.cuda import libdevice

from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.rope.rotate import make_turn
from minllm.kernels.vector import vector_access
from minllm.runtime.kernel import kernel

THREADS = 128  # a block
MOST_HEADS_A_THREAD = 4
FULL_WARP = 0xFFFFFFFF


def heads_a_thread(tokens, heads, vectors):
    """How many heads of a token a thread takes: one where tokens are few, else as many as leave no thread idle."""
    side_by_side = THREADS // vectors
    return 1 if tokens < 256 else max(1, min(MOST_HEADS_A_THREAD, heads // side_by_side))


@functools.cache
def qkv_rope_append_vector_kernel(dtype, head_dim, has_positions, has_norm, held_heads):
    """The kernel for heads of `head_dim` components of `dtype`: half a head is whole vectors, with `has_norm` a power of two of them."""
    width, load, store = vector_access(dtype)
    half, held = head_dim // 2, held_heads * width
    lanes = half // width
    load_angles, turn = make_turn(dtype, head_dim)

    @cuda.jit(device=True)
    def sum_over_head(value):
        """The sum over the `lanes` neighbouring threads that share a head."""
        distance = lanes >> 1
        while distance:
            value += cuda.shfl_xor_sync(FULL_WARP, value, distance)
            distance >>= 1
        return value

    @cuda.jit(device=True)
    def inverse_rms(a, b, at, epsilon):
        """1 / root mean square of the head of which this thread holds a[at : at + width] and b[at : at + width]; all lanes take part."""
        sum_of_squares = float32(0)
        for k in range(width):
            sum_of_squares += a[at + k] * a[at + k] + b[at + k] * b[at + k]
        return libdevice.rsqrtf(sum_over_head(sum_of_squares) * float32(1 / head_dim) + epsilon)

    @cuda.jit(device=True)
    def scale(a, b, at, factor, weight, i):
        """Multiply both vectors by `factor` and their components of weight [head_dim]."""
        a_weight, b_weight = cuda.local.array(width, float32), cuda.local.array(width, float32)
        load(weight, i, a_weight, 0)
        load(weight, half + i, b_weight, 0)
        for k in range(width):
            a[at + k] *= factor * a_weight[k]
            b[at + k] *= factor * b_weight[k]

    @cuda.jit(device=True)
    def store_head(out, row, i, a, b, at):
        """Both vectors of a head to row `row` of out."""
        store(out, row * head_dim + i, a, at)
        store(out, row * head_dim + half + i, b, at)

    @kernel(dependent_launch=True)
    def qkv_rope_append_vector_kernel(qkv, positions, slot_mapping, cos_sin, q_norm, k_norm, query, key_cache, value_cache, epsilon):
        # Arrays as in qkv_rope_append_kernel; a block: (vectors of half a head, heads side by side).
        wait_for_predecessors()
        token, i = cuda.blockIdx.x, cuda.threadIdx.x * width
        heads, kv_heads = query.shape[1], key_cache.shape[1]
        all_heads = heads + 2 * kv_heads
        first = cuda.blockIdx.y * cuda.blockDim.y * held_heads + cuda.threadIdx.y
        position, slot = positions[token], slot_mapping[token]
        a, b = cuda.local.array(held, float32), cuda.local.array(held, float32)
        for r in range(held_heads):
            head = first + r * cuda.blockDim.y
            if head < all_heads:
                load(qkv, (token * all_heads + head) * head_dim + i, a, r * width)
                load(qkv, (token * all_heads + head) * head_dim + half + i, b, r * width)
            elif has_norm:  # a thread without a head still meets the others of its warp in the norm's sum
                for k in range(r * width, (r + 1) * width):
                    a[k] = b[k] = float32(0)
        cosine, sine = cuda.local.array(width, float32), cuda.local.array(width, float32)
        if has_positions and first < heads + kv_heads:
            load_angles(cos_sin, position, i, cosine, sine)
        for r in range(held_heads):
            head, at = first + r * cuda.blockDim.y, r * width
            factor = inverse_rms(a, b, at, epsilon) if has_norm else float32(1)
            if head < heads + kv_heads:
                if has_norm:
                    scale(a, b, at, factor, q_norm if head < heads else k_norm, i)
                if has_positions:
                    turn(a, b, at, cosine, sine)
            if head < heads:
                store_head(query, token * heads + head, i, a, b, at)
            elif head < all_heads and slot >= 0:
                if head < heads + kv_heads:
                    store_head(key_cache, slot * kv_heads + head - heads, i, a, b, at)
                else:
                    store_head(value_cache, slot * kv_heads + head - heads - kv_heads, i, a, b, at)

    return qkv_rope_append_vector_kernel
