"""Up to 16 rows of x times int4 weights in groups of 128 or more, on tensor cores, which leaves the lanes time to unpack.

    out[m, n] = sum over groups of scale[n, g] * (sum over the group of x[m, k] * (128 + code[n, k]) - (128 + zero[n, g]) * sum of x[m, k])

int4.py spends some 240 instructions of a warp on 512 bytes of codes, so it waits for the lanes and not for memory. Here they are some 80.
With 0x4300 before a nibble c, two codes are a pair of bfloat16 128 + c after one shift and one lop3, which mma.sync multiplies exactly;
a second mma.sync by ones gives the sum of x in the same registers, and the offset leaves with it. (float16: 0x6400 and 1024.)

A block computes 16 output features, the rows of mma's A; its 8 columns are rows of x. Its warps take the steps of 128 inputs in turn, and
their sums meet in shared memory. Lane 4 g + t loads 16 bytes each of rows g and g + 8, the codes of inputs 32 t to 32 t + 31 of the step:
an mma.sync of 16 inputs takes four of each lane, in any order, so the j-th of eight takes inputs 32 t + 4 j to 32 t + 4 j + 3,
and codes stay in the order in which int4.py reads them. A lane loads all codes of UNROLL steps before it unpacks the first.

2 M N K FLOPs on N K / 2 bytes of codes; x is read by every block, from L1 or L2. Speed: docs/quantised-weights.md.

Source: Frantar et al. 2024, "MARLIN", section 3.4 (the conversion); PTX ISA, "Matrix fragments for mma.m16n8k16".
"""

import functools

import numpy as np
from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.arguments import FLOAT_DTYPES, ceil_div, check_array
from minllm.kernels.matmul.fragments import MULTIPLY
from minllm.kernels.vector import load_words
from minllm.runtime.kernel import check, kernel, launch
from minllm.tiles.warp import WARP

MOST_ROWS, FEATURES, WARPS, STEP, UNROLL = 16, 16, 8, 128, 2
MAGIC = {"bfloat16": (0x43004300, 128.0, 0x3F803F80), "float16": (0x64006400, 1024.0, 0x3C003C00)}  # offset in bits, as number; ones
WORDS = 8 * UNROLL  # words of codes that a lane holds: 16 bytes of each of two rows per step
MIDDLE = 8  # the zero point without zeros


@cuda.jit(device=True)
def pair_of_codes(word, i, magic):
    """Codes 2 i and 2 i + 1 of a word as a pair of 16-bit floats, each with the offset."""
    return (word >> uint32(4 * i) & uint32(0x000F000F)) | magic


def make_step(tiles: int, dtype: str):
    """The device function that multiplies one step of 128 inputs, for `tiles` times 8 rows of x."""
    bits, _, one_pair = MAGIC[dtype]
    multiply = MULTIPLY[dtype]

    @cuda.jit(device=True, forceinline=True)
    def multiply_step(x, rows, first, words, at, biased, plain, g):
        """biased += (offset + codes) x, plain += ones x; words[at : at + 8]: codes of rows g and g + 8; first: the lane's first input."""
        a, ones, b = cuda.local.array(4, uint32), cuda.local.array(4, uint32), cuda.local.array(16, uint32)
        for i in range(4):
            ones[i] = uint32(one_pair)
        for tile in range(tiles):
            for i in range(16):
                b[i] = uint32(0)
            if 8 * tile + g < rows:
                for i in range(4):
                    load_words(x, int64(8 * tile + g) * x.shape[1] + first + 8 * i, b, 4 * i)
            for j in range(8):
                for half in range(2):
                    a[2 * half] = pair_of_codes(words[at + j // 2], 2 * (j % 2) + half, uint32(bits))
                    a[2 * half + 1] = pair_of_codes(words[at + 4 + j // 2], 2 * (j % 2) + half, uint32(bits))
                multiply(biased, 4 * tile, a, 0, b, 2 * j)
                multiply(plain, 4 * tile, ones, 0, b, 2 * j)

    return multiply_step


@functools.cache
def int4_tensor_core_kernel(m: int, group_size: int, dtype: str):
    """The kernel for `m` rows of x in `dtype`."""
    tiles, offset = ceil_div(m, 8), MAGIC[dtype][1]
    multiply_step = make_step(tiles, dtype)
    sums, shape = 4 * tiles, (WARPS, FEATURES, 8 * tiles)
    blocks = 3 if tiles == 1 else 2  # per SM; without this number ptxas aims at 64 registers on 12.0, and spills

    @kernel(launch_bounds=(WARPS * WARP, blocks))
    def int4_tensor_core_kernel(x, codes, scales, zeros, bias, out):
        """x [M, K], codes [N, K / 2], scales [N, groups], zeros like scales or None, bias [N] or None, out [M, N]; 16 columns per block."""
        shared = cuda.shared.array(shape, float32)
        thread = int32(cuda.threadIdx.x)
        lane, warp = thread & (WARP - 1), thread >> 5
        g, t, k, last = lane >> 2, lane & 3, x.shape[1], int32(codes.shape[0] - 1)
        low = min(int32(cuda.blockIdx.x * FEATURES) + g, last)
        high = min(int32(cuda.blockIdx.x * FEATURES) + g + 8, last)
        steps, total, words = k // STEP, cuda.local.array(sums, float32), cuda.local.array(WORDS, uint32)
        biased, plain = cuda.local.array(sums, float32), cuda.local.array(sums, float32)
        for i in range(sums):
            total[i] = float32(0)
        for begin in range(warp, steps, WARPS * UNROLL):
            for u in range(UNROLL):
                first = min(begin + u * WARPS, steps - 1) * STEP + 32 * t
                load_words(codes, (int64(low) * k + first) >> 1, words, 8 * u)
                load_words(codes, (int64(high) * k + first) >> 1, words, 8 * u + 4)
            for u in range(UNROLL):
                step = begin + u * WARPS
                if step < steps:
                    group = step * STEP // group_size
                    low_zero, high_zero = float32(offset + MIDDLE), float32(offset + MIDDLE)
                    if zeros is not None:
                        low_zero = float32(offset) + float32(zeros[low, group])
                        high_zero = float32(offset) + float32(zeros[high, group])
                    low_scale, high_scale = float32(scales[low, group]), float32(scales[high, group])
                    for i in range(sums):
                        biased[i], plain[i] = float32(0), float32(0)
                    multiply_step(x, m, step * STEP + 32 * t, words, 8 * u, biased, plain, g)
                    for tile in range(tiles):
                        for i in range(2):
                            at = 4 * tile + i
                            total[at] += low_scale * (biased[at] - low_zero * plain[at])
                            total[at + 2] += high_scale * (biased[at + 2] - high_zero * plain[at + 2])
        for tile in range(tiles):
            for i in range(2):
                shared[warp, g, 8 * tile + 2 * t + i] = total[4 * tile + i]
                shared[warp, g + 8, 8 * tile + 2 * t + i] = total[4 * tile + i + 2]
        cuda.syncthreads()
        feature, row = thread & (FEATURES - 1), thread // FEATURES
        n = int32(cuda.blockIdx.x * FEATURES) + feature
        if row < m and n <= last:
            value = float32(0)
            for one in range(WARPS):
                value += shared[one, feature, row]
            if bias is not None:
                value += float32(bias[n])
            out[row, n] = value

    return int4_tensor_core_kernel


def fits(x, weight) -> bool:
    """Whether the kernel takes these arrays."""
    group_size = x.shape[1] // weight.scales.shape[1]
    whole = group_size % STEP == 0 and x.shape[1] % STEP == 0
    return x.shape[0] <= MOST_ROWS and whole and x.dtype.name in MAGIC and weight.minimums is None


def int4_tensor_core(x, weight, out, bias=None, stream=None) -> None:
    """Write x @ weight.T + bias into `out` [M, N]: x [M, K], M <= 16, float16 or bfloat16; an Int4Weight in groups of a multiple of 128."""
    (m, k), n = x.shape, weight.codes.shape[0]
    check(
        fits(x, weight),
        f"x is {x.dtype} {[m, k]} and the weight has {weight.scales.shape[1]} groups; int4_tensor_core takes up to {MOST_ROWS} rows of "
        f"float16 or bfloat16 and groups of a multiple of {STEP}, without minimums: take the GEMV, or widen the weight",
    )
    check_array("codes", weight.codes, (np.dtype(np.uint8),), N=n, bytes=k // 2)
    check_array("out", out, FLOAT_DTYPES, M=m, N=n)
    chosen = int4_tensor_core_kernel(m, k // weight.scales.shape[1], x.dtype.name)
    launch(chosen, ceil_div(n, FEATURES), WARPS * WARP, (x, weight.codes, weight.scales, weight.zeros, bias, out), stream)
