"""int4 for the GEMVs on tensor cores: which weights they support, their flat arrays, and codes and scales as floats."""

from typing import NamedTuple

from numba import cuda, uint32

from minllm import ptx
from minllm.runtime.array_protocol import Array

BITS = {"float16": "uint16", "bfloat16": "uint16", "float32": "uint32"}  # integers of the same size; scales are loaded as these
LONG_GROUP = 128  # inputs per step of these GEMVs: longer groups are multiples of it
MIDDLE = 8  # zero point of symmetric groups, which store none
MAGIC = {"bfloat16": (0x4300, 0x3F803F80), "float16": (0x6400, 0x3C003C00)}  # bits above a nibble that make it 128, or 1024, + code; ones


class Unit(NamedTuple):
    """How codes become 16-bit floats without arithmetic: as bits of a subnormal number, from bit `place` on."""

    place: int
    of_x: float  # factor of x
    value: float  # product of code 1 and x = 1


UNITS = {"bfloat16": Unit(0, 2.0**64, 2.0**-69), "float16": Unit(3, 1.0, 2.0**-21)}


class Int4Arrays(NamedTuple):
    """An int4 weight [N, K]: codes [N * K / 2], scales [groups * N] as unsigned integers of their bits, zeros [groups * N] or None,
    minimums like scales or None; N."""

    codes: Array
    scales: Array
    zeros: Array
    minimums: Array
    outputs: int


def takes_int4(k: int, weight) -> bool:
    """Whether groups are of 32, 64 or a multiple of 128 inputs, and minimums, if any, of the scales' dtype."""
    groups, outputs = weight.scales.shape
    group_size, dtype = k // groups, weight.scales.dtype
    known = dtype.name in BITS and (weight.minimums is None or weight.minimums.dtype == dtype)
    return known and outputs == weight.codes.shape[0] and (group_size in (32, 64) or group_size % LONG_GROUP == 0)


def int4_arrays(weight, k: int) -> tuple[tuple, Int4Arrays]:
    """Return (kind, arrays) of an Int4Weight; kind: group size, dtype of scales, whether there are zeros, whether there are minimums."""
    scales = weight.scales.dtype.name
    zeros, minimums = (None if one is None else one.reshape(-1) for one in (weight.zeros, weight.minimums))
    minimums = None if minimums is None else minimums.view(BITS[scales])
    kind = (k // weight.scales.shape[0], scales, weight.zeros is not None, minimums is not None)
    return kind, Int4Arrays(weight.codes.reshape(-1), weight.scales.reshape(-1).view(BITS[scales]), zeros, minimums, weight.codes.shape[0])


@cuda.jit(device=True, forceinline=True)
def float_of_float16(word):
    """Return the float16 with the bits of a word, as float32."""
    return ptx.unpack_f16x2(word)[0]


@cuda.jit(device=True, forceinline=True)
def float_of_bfloat16(word):
    """Return the bfloat16 with the bits of a word, as float32."""
    return ptx.uint_as_float(word << uint32(16))


@cuda.jit(device=True, forceinline=True)
def float_of_float32(word):
    """Return the float32 with the bits of a word."""
    return ptx.uint_as_float(word)


FLOAT_OF = {"float16": float_of_float16, "bfloat16": float_of_bfloat16, "float32": float_of_float32}
