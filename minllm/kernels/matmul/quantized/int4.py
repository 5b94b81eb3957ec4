"""GEMV over int4 weights (W4A16), and the matrix that they stand for.

    w[n, k] = (code[n, k] - zero[n, g]) * scale[n, g],  g = k // group_size            or code[n, k] * scale[n, g] + minimum[n, g]
    out[m, n] = sum over groups of scale[n, g] * (sum over the group of x[m, k] * (code[n, k] - zero[n, g])) + bias[n]          M <= 8

2 M N K FLOPs on N K / 2 bytes of codes, each read once: 4 M FLOPs per byte, memory-bound. A warp computes one output feature. A lane loads
16 bytes, 32 codes of one group, and keeps their sums apart from other groups' until the scale multiplies them. With minimums the sum of
the group's x, times the minimum, is added.

Nibbles become floats without an integer conversion: `word >> 4i & 0x000F000F` holds two neighbours, and 0x4300 before a nibble c makes it
the bfloat16 128 + c, whose ulp is 1. The equation in NumPy is Int4Format.dequantize (weights/int4.py).

Source: Frantar et al. 2024, "MARLIN", section 3.4 (the order of nibbles and the conversion).
"""

import functools

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.quantized.arguments import WARPS, check_rows
from minllm.kernels.matmul.quantized.sums import make_store_column
from minllm.kernels.vector import load_words, vector_access
from minllm.ptx import unpack_bf16x2
from minllm.runtime.kernel import kernel, launch
from minllm.tiles.warp import WARP

EACH = 32  # codes per load of 16 bytes
MIDDLE = 8  # the zero point without zeros


@cuda.jit(device=True)
def unpack_nibbles(word, zero, values, at):
    """values[at : at + 8] = the eight codes of a word less `zero`."""
    for i in range(4):
        low, high = unpack_bf16x2((word >> uint32(4 * i) & uint32(0x000F000F)) | uint32(0x43004300))
        values[at + 2 * i], values[at + 2 * i + 1] = low - (float32(128) + zero), high - (float32(128) + zero)


@cuda.jit(device=True)
def zero_point(zeros, minimums, n, group):
    """The number that is subtracted from the codes of a group."""
    if minimums is not None:
        return float32(0)
    if zeros is not None:
        return float32(zeros[n, group])
    return float32(MIDDLE)


@functools.cache
def int4_gemv_kernel(m: int, group_size: int, dtype: str):
    """The kernel for `m` rows of x in `dtype`."""
    (width, load, _), store_column = vector_access(dtype), make_store_column(m)

    @kernel(launch_bounds=WARPS * WARP)
    def int4_gemv_kernel(x, codes, scales, zeros, minimums, bias, out):
        """x [M, K], codes [N, K / 2], scales [N, groups], zeros and minimums like scales or None, bias [N] or None, out [M, N]; a warp per
        column."""
        lane, n = int32(cuda.threadIdx.x) & (WARP - 1), cuda.blockIdx.x * WARPS + (int32(cuda.threadIdx.x) >> 5)
        if n >= out.shape[1]:
            return
        k, words, sums = x.shape[1], cuda.local.array(4, uint32), cuda.local.array(m, float32)
        weight, row = cuda.local.array(EACH, float32), cuda.local.array(EACH, float32)
        for i in range(m):
            sums[i] = float32(0)
        for vector in range(lane, k // EACH, WARP):
            load_words(codes, (int64(n) * k + vector * EACH) >> 1, words, 0)
            group = vector * EACH // group_size
            zero = zero_point(zeros, minimums, n, group)
            for word in range(4):
                unpack_nibbles(words[word], zero, weight, 8 * word)
            scale = float32(scales[n, group])
            for i in range(m):
                part, total = float32(0), float32(0)
                for at in range(0, EACH, width):
                    load(x, int64(i) * k + vector * EACH + at, row, at)
                for j in range(EACH):
                    part += row[j] * weight[j]
                    if minimums is not None:
                        total += row[j]
                sums[i] += scale * part
                if minimums is not None:
                    sums[i] += float32(minimums[n, group]) * total
        store_column(sums, lane, n, bias, out)

    return int4_gemv_kernel


@functools.cache
def dequantize_int4_kernel(group_size: int, dtype: str):
    """The kernel for a matrix in `dtype`."""
    width, _, store = vector_access(dtype)

    @kernel(launch_bounds=WARPS * WARP)
    def dequantize_int4_kernel(codes, scales, zeros, minimums, out):
        """codes [N, K / 2], scales [N, groups], zeros and minimums like scales or None, out [N, K]; a block per row, 32 numbers per
        thread."""
        n, k, words, values = cuda.blockIdx.x, out.shape[1], cuda.local.array(4, uint32), cuda.local.array(EACH, float32)
        for vector in range(int32(cuda.threadIdx.x), k // EACH, WARPS * WARP):
            load_words(codes, (int64(n) * k + vector * EACH) >> 1, words, 0)
            group = vector * EACH // group_size
            zero = zero_point(zeros, minimums, n, group)
            for word in range(4):
                unpack_nibbles(words[word], zero, values, 8 * word)
            scale, minimum = float32(scales[n, group]), float32(0)
            if minimums is not None:
                minimum = float32(minimums[n, group])
            for j in range(EACH):
                values[j] = values[j] * scale + minimum
            for at in range(0, EACH, width):
                store(out, int64(n) * k + vector * EACH + at, values, at)

    return dequantize_int4_kernel


def int4_gemv(x, weight, out, bias=None, stream=None) -> None:
    """Write x @ weight.T + bias into `out` [M, N]: x [M, K] with M <= 8, float32, float16 or bfloat16; weight: an Int4Weight."""
    m, n = check_rows(x, weight.codes, out, bias, EACH, per_byte=2)
    chosen = int4_gemv_kernel(m, x.shape[1] // weight.scales.shape[1], x.dtype.name)
    launch(chosen, ceil_div(n, WARPS), WARPS * WARP, (x, *weight, bias, out), stream)


def dequantize_int4(weight, out, stream=None) -> None:
    """Write the matrix that an Int4Weight stands for into `out` [N, K], rounded to its dtype."""
    chosen = dequantize_int4_kernel(out.shape[1] // weight.scales.shape[1], out.dtype.name)
    launch(chosen, out.shape[0], WARPS * WARP, (*weight, out), stream)
