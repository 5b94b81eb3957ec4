"""Quantised experts: how the codes of a stack of matrices become numbers, for the gather GEMV and the grouped GEMM.

    int4   w[n, k] = (code[n, k] - 8) * scale[k // group_size, n]       two codes per byte, in the order of pack_nibbles
    fp8    w[n, k] = code[n, k] * scale[n]                              e4m3

n counts the rows of all experts. x and its products stay in 16 bits or float32 (W4A16, W8A16): with few tokens per expert the time is that
of reading the weights, and quantising x would need a kernel more.

The GEMV multiplies codes as float32 and their sum by the scale; the GEMM rounds each weight to x's dtype, and the scales of int4 before, as
tensor cores need. The equations in NumPy and the conversions are those of kernels/quantization/int4.py and fp8.py.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int64, uint32

from minllm import ptx
from minllm.kernels.arguments import check_array
from minllm.kernels.quantization.decoder import PACK
from minllm.kernels.quantization.fp8 import unpack_fp8
from minllm.kernels.quantization.int4 import MAGIC, MIDDLE, SIGNS, make_number, unpack_int4
from minllm.runtime.kernel import check

SCALE_DTYPES = {"int4": (np.dtype(np.float16),), "fp8": (np.dtype(np.float32),)}
FEWEST_IN_GROUP = 32


class CodeKind(NamedTuple):
    """What a kernel is specialised for. format: "int4" or "fp8"; group_size: codes per scale along k, 0 for whole rows."""

    format: str
    group_size: int

    @property
    def per_unit(self) -> int:
        """Codes per uint16."""
        return 4 if self.format == "int4" else 2

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
    given = "int4" if hasattr(weight, "minimums") else "fp8"
    plain = given == "fp8" or (weight.zeros is None and weight.minimums is None)
    check(plain, f"{name} has zero points or minimums; experts in int4 have none")
    rows = weight.codes.shape[0]
    groups = weight.scales.shape[0] if given == "int4" else 1
    kind = CodeKind(given, k // groups if given == "int4" else 0)
    check(k % kind.each == 0, f"{name} has rows of {k} codes; in {given} they are multiples of {kind.each}")
    sizes = dict(groups=groups, N=rows) if given == "int4" else dict(N=rows)
    check_array(f"{name}.codes", weight.codes, (np.dtype(np.uint8),), N=rows, bytes=2 * k // kind.per_unit)
    check_array(f"{name}.scales", weight.scales, SCALE_DTYPES[given], **sizes)
    whole = given == "fp8" or (k % groups == 0 and kind.group_size % FEWEST_IN_GROUP == 0)
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

    return group_scale if kind.format == "int4" else row_scale


def make_unpack_eight(kind: CodeKind):
    """unpack_eight(words, eight, values): values[0 : 8] = the codes of that eight in the words of a 16-byte load, as float32."""

    @cuda.jit(device=True)
    def of_nibbles(words, eight, values):
        unpack_int4(words[eight], float32(MIDDLE), values, 0)

    @cuda.jit(device=True)
    def of_e4m3(words, eight, values):
        for half in range(2):
            unpack_fp8(words[2 * eight + half], None, values, 4 * half)

    return of_nibbles if kind.format == "int4" else of_e4m3


@functools.cache
def make_pairs_of_eight(kind: CodeKind, dtype: str):
    """pairs_of_eight(words, eight, scale): the weights of that eight, in four words of two numbers of `dtype`; scale: float32."""
    pack, number = PACK[dtype], make_number(dtype)
    minus_codes = MAGIC[dtype][0] * 0x10001 | SIGNS | MIDDLE * 0x10001  # -(128 + 8), or -(1024 + 8) in float16

    @cuda.jit(device=True, forceinline=True)
    def of_nibbles(words, eight, scale):
        word, both, mask, minus = words[eight], pack(scale, scale), uint32(0x000F000F), uint32(minus_codes)
        low, high = number(word & mask, minus, both), number(word >> uint32(4) & mask, minus, both)
        return low, high, number(word >> uint32(8) & mask, minus, both), number(word >> uint32(12) & mask, minus, both)

    @cuda.jit(device=True, forceinline=True)
    def of_two(word, scale):
        low, high = ptx.unpack_e4m3x2(word)
        return pack(low * scale, high * scale)

    @cuda.jit(device=True, forceinline=True)
    def of_e4m3(words, eight, scale):
        first, second = words[2 * eight], words[2 * eight + 1]
        return of_two(first, scale), of_two(first >> uint32(16), scale), of_two(second, scale), of_two(second >> uint32(16), scale)

    return of_nibbles if kind.format == "int4" else of_e4m3
