"""GEMV over int4 weights (W4A16), and their dequantisation.

    w[n, k] = (code[n, k] - zero[n, g]) * scale[n, g],  g = k // group_size            or code[n, k] * scale[n, g] + minimum[n, g]
    out[m, n] = sum over groups of scale[n, g] * (sum over the group of x[m, k] * (code[n, k] - zero[n, g])) + bias[n]          M <= 8

2 M N K FLOPs on N K / 2 bytes of codes, each read once: 4 M FLOPs per byte, memory-bound. A warp computes one output feature. A lane loads
16 bytes, 32 codes of one group, and multiplies their sum by the group's scale before adding it to the total. With minimums, codes become
weights first.

Codes become floats as kernels/quantization/int4.py says; the equation in NumPy is its dequantize_int4_reference.
"""

import functools

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.quantized.arguments import WARPS, check_groups, check_rows
from minllm.kernels.matmul.quantized.sums import make_store_column
from minllm.kernels.quantization.int4 import unpack_int4, zero_point
from minllm.kernels.vector import load_words, vector_access
from minllm.runtime.kernel import kernel, launch
from minllm.tiles.warp import WARP

EACH, WORD = 32, 8  # codes per load of 16 bytes, and per 32-bit word


@functools.cache
def int4_gemv_kernel(m: int, group_size: int, dtype: str):
    """The kernel for `m` rows of x in `dtype`."""
    (width, load, _), store_column = vector_access(dtype), make_store_column(m)
    # With the block's own size as launch bound, ptxas aims at 80 registers for more than 4 rows on some GPUs, and spills; not with these.
    warps = WARPS if m <= 4 else 8 if dtype == "float32" else 5

    @kernel(launch_bounds=warps * WARP)
    def int4_gemv_kernel(x, codes, scales, zeros, minimums, bias, out):
        """x [M, K], codes [N, K / 2], scales [groups, N], zeros and minimums like scales or None, bias [N] or None, out [M, N]; one warp
        per column of out."""
        lane, n = int32(cuda.threadIdx.x) & (WARP - 1), cuda.blockIdx.x * WARPS + (int32(cuda.threadIdx.x) >> 5)
        if n >= out.shape[1]:
            return
        k, words, sums = x.shape[1], cuda.local.array(4, uint32), cuda.local.array(m, float32)
        weight, row = cuda.local.array(WORD, float32), cuda.local.array(WORD, float32)
        part = cuda.local.array(m, float32)
        for i in range(m):
            sums[i] = float32(0)
        for vector in range(lane, k // EACH, WARP):
            load_words(codes, (int64(n) * k + vector * EACH) >> 1, words, 0)
            group = vector * EACH // group_size
            zero, scale = zero_point(zeros, minimums, group, n), float32(scales[group, n])
            for i in range(m):
                part[i] = float32(0)
            for word in range(4):  # word by word: the numbers of all 32 codes at once would take too many registers
                unpack_int4(words[word], zero, weight, 0)
                if minimums is not None:
                    for j in range(WORD):
                        weight[j] = scale * weight[j] + float32(minimums[group, n])
                for i in range(m):
                    for at in range(0, WORD, width):
                        load(x, int64(i) * k + vector * EACH + word * WORD + at, row, at)
                    for j in range(WORD):
                        part[i] += row[j] * weight[j]
            for i in range(m):
                sums[i] += part[i] if minimums is not None else scale * part[i]
        store_column(sums, lane, n, bias, out)

    return int4_gemv_kernel


@functools.cache
def dequantize_int4_kernel(group_size: int, dtype: str):
    """The kernel that writes the dequantised matrix in `dtype`."""
    width, _, store = vector_access(dtype)

    @kernel(launch_bounds=WARPS * WARP)
    def dequantize_int4_kernel(codes, scales, zeros, minimums, out):
        """codes [N, K / 2], scales [groups, N], zeros and minimums like scales or None, out [N, K]; one block per row, 32 numbers per
        thread."""
        n, k, words, values = cuda.blockIdx.x, out.shape[1], cuda.local.array(4, uint32), cuda.local.array(EACH, float32)
        for vector in range(int32(cuda.threadIdx.x), k // EACH, WARPS * WARP):
            load_words(codes, (int64(n) * k + vector * EACH) >> 1, words, 0)
            group = vector * EACH // group_size
            zero = zero_point(zeros, minimums, group, n)
            for word in range(4):
                unpack_int4(words[word], zero, values, 8 * word)
            scale, minimum = float32(scales[group, n]), float32(0)
            if minimums is not None:
                minimum = float32(minimums[group, n])
            for j in range(EACH):
                values[j] = values[j] * scale + minimum
            for at in range(0, EACH, width):
                store(out, int64(n) * k + vector * EACH + at, values, at)

    return dequantize_int4_kernel


def int4_gemv(x, weight, out, bias=None, stream=None) -> None:
    """Write x @ weight.T + bias into `out` [M, N].

    x [M, K], M <= 8, K % 32 == 0, float32, float16 or bfloat16; weight: an Int4Weight; bias [N] or None. Raises KernelArgumentError (see
    check_rows and check_groups).
    """
    m, n = check_rows(x, weight.codes, out, bias, EACH, per_byte=2)
    check_groups(n, x.shape[1], EACH, scales=weight.scales, zeros=weight.zeros, minimums=weight.minimums)
    chosen = int4_gemv_kernel(m, x.shape[1] // weight.scales.shape[0], x.dtype.name)
    launch(chosen, ceil_div(n, WARPS), WARPS * WARP, (x, *weight, bias, out), stream)


def dequantize_int4(weight, out, stream=None) -> None:
    """Dequantise an Int4Weight into `out` [N, K], rounded to the dtype of `out`. Raises KernelArgumentError (see check_groups)."""
    check_groups(*out.shape, EACH, scales=weight.scales, zeros=weight.zeros, minimums=weight.minimums)
    chosen = dequantize_int4_kernel(out.shape[1] // weight.scales.shape[0], out.dtype.name)
    launch(chosen, out.shape[0], WARPS * WARP, (*weight, out), stream)
