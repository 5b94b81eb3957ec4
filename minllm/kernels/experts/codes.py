"""Quantised experts: how the codes of a stack of matrices become numbers, for the gather GEMV and the grouped GEMM.

    int4   w[n, k] = (code[n, k] - 8) * scale[k // group_size, n]       two codes per byte, in the order of pack_nibbles
    fp8    w[n, k] = code[n, k] * scale[n]                              e4m3

n counts the rows of all experts. x and its products stay in 16 bits or float32 (W4A16, W8A16): with few tokens per expert the time is that
of reading the weights, and quantising x would need a kernel more.

The GEMV multiplies codes as float32 and their sum by the scale; the GEMM rounds each weight to x's dtype, and the scales of int4 before, as
tensor cores need. The equations in NumPy and the conversions are those of kernels/quantization/int4.py and fp8.py.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int64

from minllm.kernels.arguments import check_array
from minllm.kernels.quantization.decoder import Format
from minllm.kernels.quantization.fp8 import FP8
from minllm.kernels.quantization.int4 import INT4
from minllm.runtime.kernel import check

FEWEST_IN_GROUP = 32


class CodeKind(NamedTuple):
    """What a kernel is specialised for. format: INT4 or FP8; group_size: codes per scale along k, 0 for whole rows."""

    format: Format
    group_size: int

    @property
    def per_unit(self) -> int:
        """Codes per uint16."""
        return 2 * self.format.per_byte

    @property
    def each(self) -> int:
        """Codes per 16 bytes."""
        return 8 * self.per_unit


class ExpertCodes(NamedTuple):
    """The arrays of a stack of N rows of K codes, as kernels take them."""

    codes: Any  # uint16 [N, K / codes per uint16]
    scales: Any  # float16 [groups, N] of int4, float32 [N] of fp8


def is_quantized(weight) -> bool:
    """Whether a weight is the NamedTuple of a format rather than an array."""
    return isinstance(weight, tuple)


def codes_of(name: str, weight, k: int) -> tuple[CodeKind, ExpertCodes]:
    """(kind, arrays) of an Int4Weight without zeros or an Fp8Weight with rows of k numbers.

    Raises KernelArgumentError for other weights, and for rows or groups that are no whole 16-byte loads of codes.
    """
    has_groups, rows = hasattr(weight, "minimums"), weight.codes.shape[0]
    check(
        not has_groups or (weight.zeros is None and weight.minimums is None),
        f"{name} has zero points or minimums; experts in int4 have none",
    )
    groups = weight.scales.shape[0] if has_groups else 1
    kind = CodeKind(INT4, k // groups) if has_groups else CodeKind(FP8, 0)
    check(k % kind.each == 0, f"{name} has rows of {k} codes; in {kind.format.name} they are multiples of {kind.each}")
    check_array(f"{name}.codes", weight.codes, (np.dtype(np.uint8),), N=rows, bytes=2 * k // kind.per_unit)
    dtype, sizes = (np.float16, dict(groups=groups, N=rows)) if has_groups else (np.float32, dict(N=rows))
    check_array(f"{name}.scales", weight.scales, (np.dtype(dtype),), **sizes)
    whole = k % groups == 0 and kind.group_size % FEWEST_IN_GROUP == 0
    check(whole, f"{name} has {groups} groups in {k} inputs; groups are multiples of {FEWEST_IN_GROUP}")
    return kind, ExpertCodes(weight.codes.view(np.uint16), weight.scales)


def make_scale_at(kind: CodeKind):
    """scale_at(scales, row, k): the scale of a row's code k, as float32."""
    group_size = kind.group_size

    @cuda.jit(device=True)
    def group_scale(scales, row, k):
        return float32(scales[int64(k) // group_size, row])

    @cuda.jit(device=True)
    def row_scale(scales, row, k):
        return scales[row]

    return group_scale if kind.group_size else row_scale


def make_unpack_eight(kind: CodeKind):
    """unpack_eight(words, eight, values): values[0 : 8] = the codes of that eight in the words of a 16-byte load, as float32."""
    unpack, middle, per_word = kind.format.unpack, kind.format.middle, 4 * kind.format.per_byte
    each = 8 // per_word

    @cuda.jit(device=True)
    def unpack_eight(words, eight, values):
        for word in range(each):
            unpack(words[each * eight + word], float32(middle), values, per_word * word)

    return unpack_eight
