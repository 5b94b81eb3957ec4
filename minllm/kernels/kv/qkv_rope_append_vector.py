"""The same step as `qkv_rope_append.py` with 16-byte loads and stores, for the head sizes of almost every model.

Threads to data: a thread takes a vector of a head's first half and the vector half a head further on, which holds the partners of its
pairs; neighbouring threads share a head, and its norm is a sum over them. A thread issues all its loads at once, the heads as words that
are converted to float32 once all are issued (vector.py): a load that depends on another adds one memory latency. With enough tokens to
exceed the caches, a thread handles the same components of two heads and loads the angles once for both; with fewer tokens it handles one
head, so that more threads wait in parallel.

Caches of 8-bit floats take the same path: their codes are rounded from float32 by a scale for each KV head, so nothing is shared among
lanes, as the scales of integers are (qkv_rope_append_quantized.py).

On an H200 this is the fastest of one, two and three heads per thread, of blocks that loop over tokens, and of loads that bypass L1
(recorded as "kv" in docs/results/h200.json).
"""

import functools

from numba import cuda, float32, uint32
from numba.cuda import libdevice

from minllm.kernels.arguments import ceil_div
from minllm.kernels.attention.common.paged_cache import kv_head_of
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.kv.quantized_head import make_store_quantized, smooth, unsmooth
from minllm.kernels.quantization.lanes import EACH
from minllm.kernels.rope.rotate import make_rotate
from minllm.kernels.vector import load_words, vector_access, vector_unpack
from minllm.ptx import prefetch_l2, token_stride
from minllm.runtime.kernel import kernel, launch
from minllm.tiles.warp import ALL_LANES, WARP

THREADS = 192  # maximum threads per block
HEADS_PER_THREAD = 2  # from MANY_TOKENS tokens on
MANY_TOKENS = 2048


def share_heads(tokens, all_heads, vectors):
    """(blocks per token, heads side by side in a block, heads per thread) for heads with halves of `vectors` vectors."""
    heads_per_thread = HEADS_PER_THREAD if tokens >= MANY_TOKENS else 1
    heads_per_warp = max(1, WARP // vectors)
    most = max(1, THREADS // vectors // heads_per_warp * heads_per_warp)
    blocks = ceil_div(all_heads, most * heads_per_thread)
    side_by_side = ceil_div(ceil_div(all_heads, blocks * heads_per_thread), heads_per_warp) * heads_per_warp  # whole warps
    return blocks, side_by_side, heads_per_thread


@functools.cache
def qkv_rope_append_vector_kernel(dtype, head_dim, has_positions, has_norm, heads_per_thread, kv_format=None, block_size=0):
    """The kernel for heads of `head_dim` components of `dtype`; kv_format: None, or an 8-bit float format of caches, for a 16-bit dtype.

    Half a head must be whole vectors, and with `has_norm` a power of two of them.
    """
    width, _, store = vector_access(dtype)
    unpack, half, words_held = vector_unpack(dtype), head_dim // 2, heads_per_thread * 8  # 4 words per half
    lanes = half // width
    load_angles, rotate = make_rotate(dtype, head_dim)
    store_codes = make_store_quantized(kv_format, block_size) if kv_format else None

    @cuda.jit(device=True)
    def sum_over_head(value):
        """The sum over the `lanes` neighbouring threads that share a head; the whole warp must call it."""
        distance = lanes >> 1
        while distance:
            value += cuda.shfl_xor_sync(ALL_LANES, value, distance)
            distance >>= 1
        return value

    @cuda.jit(device=True)
    def load_head(array, start, i, words, at):
        """words[at : at + 8] = both vectors of the head that begins at element `start` of the array."""
        load_words(array, start + i, words, at)
        load_words(array, start + half + i, words, at + 4)

    @cuda.jit(device=True)
    def normalize(a, b, inverse_rms, weight_words):
        """Multiply both vectors by `inverse_rms` and their components of the norm's weight."""
        a_weight, b_weight = cuda.local.array(width, float32), cuda.local.array(width, float32)
        unpack(weight_words, 0, a_weight, 0)
        unpack(weight_words, 4, b_weight, 0)
        for k in range(width):
            a[k] *= inverse_rms * a_weight[k]
            b[k] *= inverse_rms * b_weight[k]

    @cuda.jit(device=True)
    def store_head(out, start, i, a, b):
        """Store both vectors of the head that begins at element `start` of out."""
        store(out, start + i, a, 0)
        store(out, start + half + i, b, 0)

    @cuda.jit(device=True)
    def store_in_cache(cache, scales, slot, kv_head, i, a, b):
        """Store both vectors of a key or value in the cache: as they are, or, with scales [kv_heads], as codes."""
        if scales is None:
            row = cache.shape[1] * head_dim
            store_head(cache, slot * token_stride(cache, row) + kv_head * head_dim, i, a, b)
        else:
            store_codes(cache, scales, slot, kv_head, i // EACH, a, True)
            store_codes(cache, scales, slot, kv_head, (half + i) // EACH, b, True)

    @kernel(dependent_launch=True)
    def qkv_rope_append_vector_kernel(
        qkv, positions, slot_mapping, cos_sin, q_norm, k_norm, query, key_cache, value_cache, key_scales, value_scales, smoothing, epsilon
    ):
        # Arrays as in qkv_rope_append_kernel, or caches of codes [num_blocks, kv_heads, block_size, head_dim], scales [kv_heads] and
        # smoothing [3, kv_heads, head_dim], else None; block shape: (vectors of half a head, heads side by side).
        token, i = cuda.blockIdx.x, cuda.threadIdx.x * width
        heads, kv_heads = query.shape[1], key_cache.shape[1]
        rotated_heads, all_heads = heads + kv_heads, heads + 2 * kv_heads
        first = cuda.blockIdx.y * cuda.blockDim.y * heads_per_thread + cuda.threadIdx.y
        weight_words = cuda.local.array(8, uint32)
        if has_norm and heads_per_thread == 1 and first < rotated_heads:
            # No kernel writes the weights, so this load may overlap the preceding kernel.
            load_head(q_norm if first < heads else k_norm, 0, i, weight_words, 0)
        if heads_per_thread == 1 and cuda.threadIdx.x + cuda.threadIdx.y == 0:  # displaced from L2 by weights since the layer before
            prefetch_l2(positions, token)
            prefetch_l2(slot_mapping, token)
        wait_for_predecessors()
        position, slot = positions[token], slot_mapping[token]
        words = cuda.local.array(words_held, uint32)
        for k in range(words_held):
            words[k] = uint32(0)  # absent heads are zeros
        for r in range(heads_per_thread):
            head = first + r * cuda.blockDim.y
            if head < all_heads:
                load_head(qkv, (token * all_heads + head) * head_dim, i, words, 8 * r)
        cosine, sine = cuda.local.array(width, float32), cuda.local.array(width, float32)
        if has_positions and first < rotated_heads:
            load_angles(cos_sin, position, i, cosine, sine)
        a, b = cuda.local.array(width, float32), cuda.local.array(width, float32)
        for r in range(heads_per_thread):
            head = first + r * cuda.blockDim.y
            is_query, is_rotated, is_any = head < heads, head < rotated_heads, head < all_heads
            unpack(words, 8 * r, a, 0)
            unpack(words, 8 * r + 4, b, 0)
            if has_norm:
                sum_of_squares = float32(0)
                for k in range(width):
                    sum_of_squares += a[k] * a[k] + b[k] * b[k]
                inverse_rms = libdevice.rsqrtf(sum_over_head(sum_of_squares) * float32(1 / head_dim) + epsilon)
                if is_rotated:
                    if heads_per_thread > 1:  # again from L1: holding every head's weights in registers would cost more
                        load_head(q_norm if is_query else k_norm, 0, i, weight_words, 0)
                    normalize(a, b, inverse_rms, weight_words)
            if has_positions and is_rotated:
                rotate(a, b, 0, cosine, sine)
            if is_query:
                if smoothing is not None:
                    kv_head = kv_head_of(head, heads, kv_heads)
                    unsmooth(smoothing, kv_head, i, a)
                    unsmooth(smoothing, kv_head, half + i, b)
                store_head(query, (token * heads + head) * head_dim, i, a, b)
            elif is_any and slot >= 0:
                if is_rotated:
                    if smoothing is not None:
                        smooth(smoothing, head - heads, i, a)
                        smooth(smoothing, head - heads, half + i, b)
                    store_in_cache(key_cache, key_scales, slot, head - heads, i, a, b)
                else:
                    store_in_cache(value_cache, value_scales, slot, head - rotated_heads, i, a, b)

    return qkv_rope_append_vector_kernel


def serves(vectors, has_norm):
    """Whether the kernel takes heads with halves of this number of vectors."""
    return 0 < vectors <= THREADS and (vectors in (1, 2, 4, 8, 16, 32) or not has_norm)


def launch_vectors(vectors, arrays, epsilon, has_positions, has_norm, stream, scales=(None, None), smoothing=None, kv_format=None):
    """Launch the kernel; arrays: its arguments up to value_cache. scales, smoothing: of caches in the 8-bit kv_format."""
    query, key_cache = arrays[-3:-1]
    tokens, heads, head_dim = query.shape
    blocks, side_by_side, heads_per_thread = share_heads(tokens, heads + 2 * key_cache.shape[1], vectors)
    block_size = key_cache.shape[2] if kv_format else 0
    chosen = qkv_rope_append_vector_kernel(query.dtype, head_dim, has_positions, has_norm, heads_per_thread, kv_format, block_size)
    launch(chosen, (tokens, blocks), (vectors, side_by_side), (*arrays, *scales, smoothing, float(epsilon)), stream)
