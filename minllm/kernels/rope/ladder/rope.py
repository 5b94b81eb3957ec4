"""RoPE as a kernel of its own. reference.py has the equation.

T tokens of N heads of D components of b bytes: 3 T N D FLOPs; reads T N D b bytes and T D * 4 bytes of the table (shared by the heads
through the caches), writes T N D b; arithmetic intensity about 3 / 2b (0.75 FLOP per byte in bf16), so it is memory-bound. The engine
applies the same rotation in kv/qkv_rope_append.py, where it costs no extra traffic.

Threads to data: a thread takes 16 bytes of a head's first half and their partners, the 16 bytes half a head further on. It loads both
before it writes either, so `out` may be `x`. The cosines and sines are float32, as many bytes as two bf16 heads, and serve several heads.
Their address depends on the position, so the position is loaded first; the heads are loaded meanwhile, as words that are converted to
float32 once all loads are issued (vector.py). Heads that are not whole vectors, and interleaved pairs, take the first kernel: one warp per
head, one element at a time.
"""

import functools

from numba import cuda, float32, uint32

from minllm.kernels.arguments import FLOAT_DTYPES, INDEX_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.rope.rotate import check_cos_sin, make_rotate, vectors_of_half_a_head
from minllm.kernels.vector import load_words, vector_access, vector_unpack
from minllm.runtime.kernel import kernel, launch
from minllm.tiles.warp import WARP

HEADS_PER_BLOCK = 4
THREADS = 128  # approximate block size of the vector kernel
HEADS_PER_THREAD = 2  # the fastest of 1, 2 and 4 on an H200


@kernel
def rope_kernel(x, positions, cos_sin, out, interleaved):
    """x, out: [T, heads, head_dim]; positions: [T]; cos_sin: [positions, rotary_dim]."""
    token, head = cuda.blockIdx.x, cuda.blockIdx.y * HEADS_PER_BLOCK + cuda.threadIdx.y
    if head >= x.shape[1]:
        return
    half = cos_sin.shape[1] >> 1
    position = positions[token]
    # exercise: rope.rotate
    pair = cuda.threadIdx.x
    while pair < half:
        first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + half)
        cosine, sine = cos_sin[position, pair], cos_sin[position, half + pair]
        a, b = float32(x[token, head, first]), float32(x[token, head, second])
        out[token, head, first] = a * cosine - b * sine
        out[token, head, second] = b * cosine + a * sine
        pair += WARP
    # end exercise
    i = 2 * half + cuda.threadIdx.x
    while i < x.shape[2]:  # components beyond rotary_dim pass unchanged
        out[token, head, i] = x[token, head, i]
        i += WARP


@functools.cache
def rope_vector_kernel(dtype, head_dim):
    """The kernel for `head_dim` components of `dtype`, all of which rotate, half-split, in whole aligned vectors."""
    width, _, store = vector_access(dtype)
    unpack, half, words_held = vector_unpack(dtype), head_dim // 2, HEADS_PER_THREAD * 8  # 4 words per half
    load_angles, rotate = make_rotate(dtype, head_dim)

    @kernel(dependent_launch=True)
    def rope_vector_kernel(x, positions, cos_sin, out):
        """x, out: [T, heads, head_dim]; positions: [T]; cos_sin: [positions, head_dim]. Block shape: (vectors of half a head, heads)."""
        wait_for_predecessors()
        token, heads = cuda.blockIdx.x, x.shape[1]
        position = positions[token]  # loaded first, because the angles depend on it; the loads of the heads overlap with this latency
        i = cuda.threadIdx.x * width
        first = cuda.blockIdx.y * cuda.blockDim.y * HEADS_PER_THREAD + cuda.threadIdx.y
        words = cuda.local.array(words_held, uint32)
        for r in range(HEADS_PER_THREAD):
            head = first + r * cuda.blockDim.y
            if head < heads:
                load_words(x, (token * heads + head) * head_dim + i, words, 8 * r)
                load_words(x, (token * heads + head) * head_dim + half + i, words, 8 * r + 4)
        cosine, sine = cuda.local.array(width, float32), cuda.local.array(width, float32)
        load_angles(cos_sin, position, i, cosine, sine)
        a, b = cuda.local.array(width, float32), cuda.local.array(width, float32)
        for r in range(HEADS_PER_THREAD):
            head = first + r * cuda.blockDim.y
            if head < heads:
                unpack(words, 8 * r, a, 0)
                unpack(words, 8 * r + 4, b, 0)
                rotate(a, b, 0, cosine, sine)
                store(out, (token * heads + head) * head_dim + i, a, 0)
                store(out, (token * heads + head) * head_dim + half + i, b, 0)

    return rope_vector_kernel


def rope(x, positions, cos_sin, out, interleaved=False, stream=None):
    """Write `x` [T, heads, head_dim], rotated, into `out`, which may be `x`; arguments as in `rope_reference`, positions int32.

    Positions must be inside the table; the kernel does not check them. Raises KernelArgumentError for shapes and dtypes.
    """
    check_array("x", x, FLOAT_DTYPES, tokens=None, heads=None, head_dim=None)
    tokens, heads, head_dim = x.shape
    check_array("out", out, (x.dtype,), tokens=tokens, heads=heads, head_dim=head_dim)
    check_array("positions", positions, INDEX_DTYPES, tokens=tokens)
    check_cos_sin(cos_sin, head_dim)
    if vectors := vectors_of_half_a_head(head_dim, cos_sin.shape[1], interleaved, cos_sin, x, out):
        side_by_side = min(max(1, THREADS // vectors), ceil_div(heads, HEADS_PER_THREAD))
        grid, block = (tokens, ceil_div(heads, side_by_side * HEADS_PER_THREAD)), (vectors, side_by_side)
        launch(rope_vector_kernel(x.dtype, head_dim), grid, block, (x, positions, cos_sin, out), stream)
        return
    grid = (tokens, ceil_div(heads, HEADS_PER_BLOCK))
    launch(rope_kernel, grid, (WARP, HEADS_PER_BLOCK), (x, positions, cos_sin, out, int(interleaved)), stream)
