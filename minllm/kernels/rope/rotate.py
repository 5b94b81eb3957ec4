"""Rotary position embedding, RoPE (Su et al. 2021, "RoFormer", section 3.2.2), in both layouts of the pairs.

    (a, b) -> (a cos - b sin, b cos + a sin),  angle = position * frequency[pair]

T tokens of N heads of D components of b bytes: 3 T N D FLOPs; reads T N D b bytes and T D * 4 bytes of the table (shared by the heads
through the caches), writes T N D b; arithmetic intensity about 3 / 2b (0.75 FLOP per byte in bf16), so it is memory-bound.

Threads to data: a thread takes 16 bytes of a head's first half and their partners, the 16 bytes half a head further on. It loads both
before it writes either, so `out` may be `x`. The cosines and sines are float32, as many bytes as two bf16 heads, and serve several heads.
Their address depends on the position, so the position is loaded first; the heads are loaded meanwhile, as words that are converted to
float32 once all loads are issued (vector.py). Heads that are not whole vectors, and interleaved pairs, take the first kernel: one warp per
head, one element at a time. The forward pass applies the same rotation in `kv/qkv_rope_append.py`, where it costs no extra traffic.
"""

import functools

import numpy as np
from numba import cuda, float32, uint32

from minllm.kernels.arguments import FLOAT_DTYPES, INDEX_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.vector import load_4_float32, load_words, vector_access, vector_unpack, vectors_per_row
from minllm.runtime.kernel import check, kernel, launch
from minllm.tiles.warp import WARP

HEADS_PER_BLOCK = 4
THREADS = 128  # approximate block size of the vector kernel
TABLE_ROWS = 16384  # positions computed at a time, because their float64 angles take several times the table's memory
HEADS_PER_THREAD = 2  # the fastest of 1, 2 and 4 on an H200


def rope_table(positions_count, rotary_dim, inverse_frequencies, attention_factor=1.0):
    """Cosines and sines of every position's angles: float32 [positions_count, rotary_dim], first half cosines, second half sines.

    inverse_frequencies: [rotary_dim / 2], radians per position. The angles are formed in float64, so that a position of 100,000 still has
    an exact angle. `attention_factor` scales both (YaRN's temperature; 1 for the others).
    """
    inverse_frequencies = np.asarray(inverse_frequencies, np.float64)
    check(
        rotary_dim % 2 == 0 and inverse_frequencies.shape == (rotary_dim // 2,),
        f"inverse_frequencies has shape {inverse_frequencies.shape}; a rotary_dim of {rotary_dim} needs one frequency for each pair of "
        "components: an even rotary_dim, and the shape (rotary_dim / 2,)",
    )
    table = np.empty((positions_count, rotary_dim), np.float32)
    for start in range(0, positions_count, TABLE_ROWS):
        rows = table[start : start + TABLE_ROWS]
        angles = np.arange(start, start + len(rows))[:, None] * inverse_frequencies[None, :]  # [rows, rotary_dim / 2]
        rows[:] = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * attention_factor
    return table


def rope_reference(x, positions, cos_sin, interleaved=False):
    """Rotate the pairs of each head's first rotary_dim components by their position's angles; the rest passes unchanged.

    x: [T, heads, head_dim]; positions: [T]; cos_sin: [positions, rotary_dim], see `rope_table`. Pair i is (i, i + rotary_dim/2), the
    half-split layout of Hugging Face's Llama, or (2i, 2i + 1) if `interleaved`, the layout of the paper. Result in the dtype of `x`.
    """
    wide = np.result_type(x.dtype, np.float32)
    rotary_dim = cos_sin.shape[1]
    half = rotary_dim // 2
    angles = cos_sin[positions][:, None, :].astype(wide, copy=False)  # [T, 1, rotary_dim]
    cosine, sine = angles[..., :half], angles[..., half:]
    first, second = (slice(0, rotary_dim, 2), slice(1, rotary_dim, 2)) if interleaved else (slice(0, half), slice(half, rotary_dim))
    out = x.astype(wide)  # always a copy: the input stays unchanged
    a, b = x[..., first].astype(wide, copy=False), x[..., second].astype(wide, copy=False)
    out[..., first] = a * cosine - b * sine
    out[..., second] = b * cosine + a * sine
    return out.astype(x.dtype, copy=False)


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


def make_turn(dtype, head_dim):
    """Device functions (load_angles, turn) for a thread that holds a pair of vectors half a head apart.

    load_angles(cos_sin, position, i, cosine, sine) fills two local arrays of one vector's width for components i... of the half head;
    turn(a, b, at, cosine, sine) rotates a[at : at + width] against b[at : at + width], in place.
    """
    width, half = vector_access(dtype)[0], head_dim // 2

    @cuda.jit(device=True)
    def load_angles(cos_sin, position, i, cosine, sine):
        for k in range(0, width, 4):
            load_4_float32(cos_sin, position * head_dim + i + k, cosine, k)
            load_4_float32(cos_sin, position * head_dim + half + i + k, sine, k)

    @cuda.jit(device=True)
    def turn(a, b, at, cosine, sine):
        for k in range(width):
            a[at + k], b[at + k] = a[at + k] * cosine[k] - b[at + k] * sine[k], b[at + k] * cosine[k] + a[at + k] * sine[k]

    return load_angles, turn


@functools.cache
def rope_vector_kernel(dtype, head_dim):
    """The kernel for `head_dim` components of `dtype`, all of which rotate, half-split, in whole aligned vectors."""
    width, _, store = vector_access(dtype)
    unpack, half, words_held = vector_unpack(dtype), head_dim // 2, HEADS_PER_THREAD * 8  # 4 words per half
    load_angles, turn = make_turn(dtype, head_dim)

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
                turn(a, b, 0, cosine, sine)
                store(out, (token * heads + head) * head_dim + i, a, 0)
                store(out, (token * heads + head) * head_dim + half + i, b, 0)

    return rope_vector_kernel


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
