"""Between float32 and the 16-bit formats, two at a time, and between floats and their bits."""

import ml_dtypes
import numpy as np
from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from minllm.ptx.instruction import emulated, instruction


def halves(word, dtype):
    """Low and high half of a 32-bit word as float32."""
    pair = np.array([int(word) & 0xFFFFFFFF], np.uint32).view(dtype).astype(np.float32)
    return pair[0], pair[1]


def joined(low, high, dtype):
    """Two floats rounded to `dtype`, packed into a 32-bit word."""
    with np.errstate(over="ignore"):
        return int(np.array([low, high], np.float32).astype(dtype).view(np.uint32)[0])


def pack_bf16x2(low, high):
    """pack_bf16x2(low, high) -> uint32: two float32 rounded to bfloat16, `low` in the low half. PTX ISA, "cvt.rn.bf16x2.f32"."""
    return joined(low, high, ml_dtypes.bfloat16)


def pack_f16x2(low, high):
    """pack_f16x2(low, high) -> uint32: two float32 rounded to float16, `low` in the low half. PTX ISA, "cvt.rn.f16x2.f32"."""
    return joined(low, high, np.float16)


def unpack_bf16x2(word):
    """unpack_bf16x2(word) -> (low, high): the two bfloat16 of a word as float32; a bfloat16 is the upper half of a float32."""
    return halves(word, ml_dtypes.bfloat16)


def unpack_f16x2(word):
    """unpack_f16x2(word) -> (low, high): the two float16 of a word as float32. PTX ISA, "cvt.f32.f16"."""
    return halves(word, np.float16)


def float_as_uint(x):
    """float_as_uint(x) -> uint32: the bits of a float32."""
    return int(np.array([x], np.float32).view(np.uint32)[0])


def uint_as_float(word):
    """uint_as_float(word) -> float32 with these bits."""
    return np.array([int(word) & 0xFFFFFFFF], np.uint32).view(np.float32)[0]


pack_bf16x2 = instruction("cvt.rn.bf16x2.f32 $0, $2, $1;", "r", "ff", emulation=pack_bf16x2)
pack_f16x2 = instruction("cvt.rn.f16x2.f32 $0, $2, $1;", "r", "ff", emulation=pack_f16x2)
unpack_bf16x2 = instruction("{ shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000; }", "ff", "r", emulation=unpack_bf16x2)
unpack_f16x2 = instruction(
    "{ .reg .b16 low, high; mov.b32 {low, high}, $2; cvt.f32.f16 $0, low; cvt.f32.f16 $1, high; }", "ff", "r", emulation=unpack_f16x2
)


def bit_cast(emulation, given, wanted, low_type):
    """An intrinsic that reads a register under another type."""

    def cast(typing_context, value):
        def lower(context, builder, signature, arguments):
            return builder.bitcast(context.cast(builder, arguments[0], signature.args[0], given), low_type)

        return wanted(value), lower

    cast.__name__ = emulation.__name__
    return emulated(intrinsic(cast), emulation)


float_as_uint = bit_cast(float_as_uint, types.float32, types.uint32, ir.IntType(32))
uint_as_float = bit_cast(uint_as_float, types.uint32, types.float32, ir.FloatType())
