"""Conversions between float32 and fp8, two values at a time.

e4m3 has 4 exponent bits, and its largest value is 448; e5m2 has 5, and its largest value is 57344.
"""

import ml_dtypes
import numpy as np

from minllm.ptx.instruction import instruction

E4M3, E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
CODES = np.arange(256, dtype=np.uint8)
AS_FLOAT32 = {dtype: list(CODES.view(dtype).astype(np.float32)) for dtype in (E4M3, E5M2)}  # dtype -> value of each byte
E4M3_AS_FLOAT16 = CODES.view(E4M3).astype(np.float16).view(np.uint16).tolist()  # e4m3 byte -> bits of the equal float16


def joined(low, high, dtype):
    """Words with two floats rounded to an 8-bit format, saturating, in their low 16 bits."""
    largest = np.float32(ml_dtypes.finfo(dtype).max)
    low, high = (np.minimum(np.maximum(np.asarray(one, np.float32), -largest), largest).astype(dtype) for one in (low, high))  # NaN stays
    return low.view(np.uint8).astype(np.int64) | high.view(np.uint8).astype(np.int64) << 8


def parts(word, dtype):
    """The two 8-bit floats in the low 16 bits of a word as float32."""
    word, values = int(word), AS_FLOAT32[dtype]
    return values[word & 0xFF], values[word >> 8 & 0xFF]


def pack_e4m3x2(low, high):
    """pack_e4m3x2(low, high) -> uint32: two float32 rounded to e4m3, saturating at 448, `low` in the lowest byte. PTX ISA,
    "cvt.rn.satfinite.e4m3x2.f32"."""
    return int(joined(low, high, E4M3))


def pack_e5m2x2(low, high):
    """pack_e5m2x2(low, high) -> uint32: two float32 rounded to e5m2, saturating at 57344, `low` in the lowest byte. PTX ISA,
    "cvt.rn.satfinite.e5m2x2.f32"."""
    return int(joined(low, high, E5M2))


def pack_e4m3x4(value0, value1, value2, value3):
    """pack_e4m3x4(value0, value1, value2, value3) -> uint32: four float32 rounded to e4m3, saturating at 448, the first in the lowest
    byte. PTX ISA, "cvt.rn.satfinite.e4m3x2.f32"."""
    return int(joined(value0, value1, E4M3) | joined(value2, value3, E4M3) << 16)


def unpack_e4m3x2(word):
    """unpack_e4m3x2(word) -> (low, high): the two e4m3 in the low 16 bits as float32. PTX ISA, "cvt.rn.f16x2.e4m3x2"."""
    return parts(word, E4M3)


def unpack_e5m2x2(word):
    """unpack_e5m2x2(word) -> (low, high): the two e5m2 in the low 16 bits as float32. PTX ISA, "cvt.rn.f16x2.e5m2x2"."""
    return parts(word, E5M2)


def e4m3x2_to_f16x2(word):
    """e4m3x2_to_f16x2(word) -> uint32: the two e4m3 in the low 16 bits as two float16, exactly. PTX ISA, "cvt.rn.f16x2.e4m3x2"."""
    word = int(word)
    return E4M3_AS_FLOAT16[word & 0xFF] | E4M3_AS_FLOAT16[word >> 8 & 0xFF] << 16


def pack_instruction(element, emulation):
    """The function that converts two float32 to fp8; the PTX instruction's result has 16 bits, the function's 32."""
    text = f"{{ .reg .b16 pair; cvt.rn.satfinite.{element}x2.f32 pair, $2, $1; cvt.u32.u16 $0, pair; }}"
    return instruction(text, "r", "ff", emulation=emulation)


def unpack_instruction(element, emulation):
    """The function that converts two fp8 to float32, through float16, which represents both formats exactly."""
    text = (
        f"{{ .reg .b16 pair, low, high; .reg .b32 halves; cvt.u16.u32 pair, $2; cvt.rn.f16x2.{element}x2 halves, pair; "
        "mov.b32 {low, high}, halves; cvt.f32.f16 $0, low; cvt.f32.f16 $1, high; }"
    )
    return instruction(text, "ff", "r", emulation=emulation)


pack_e4m3x2, pack_e5m2x2 = pack_instruction("e4m3", pack_e4m3x2), pack_instruction("e5m2", pack_e5m2x2)
pack_e4m3x4 = instruction(
    "{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, $2, $1; cvt.rn.satfinite.e4m3x2.f32 high, $4, $3; mov.b32 $0, {low, high}; }",
    "r", "ffff", emulation=pack_e4m3x4,
)  # fmt: skip
unpack_e4m3x2, unpack_e5m2x2 = unpack_instruction("e4m3", unpack_e4m3x2), unpack_instruction("e5m2", unpack_e5m2x2)
e4m3x2_to_f16x2 = instruction(
    "{ .reg .b16 pair; cvt.u16.u32 pair, $1; cvt.rn.f16x2.e4m3x2 $0, pair; }", "r", "r", emulation=e4m3x2_to_f16x2
)
