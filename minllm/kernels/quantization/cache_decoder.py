"""The decoders of cached codes: words of four bytes, or eight nibbles, become numbers or operands of tensor cores, in registers.

    make_dequantize    prompts: float16 numbers, scaled                    flash_attention_2/quantized_tiles.py, channel_scales.py
    operands_of        decode steps: operands of mma, scaled afterwards    split_quantized/

Formats and equations: formats.py, reference.py. float16 holds all codes exactly, and no code needs an integer conversion. A byte or a
nibble in the low bits of the fraction of 0x6400, which is 2**10, is 1024 + code; an fma subtracts 1024, exactly, and another computes code
* scale + zero. Below a byte of zeros it is the float16 code * 2**-24: float16's denormal numbers are integers times 2**-24, and tensor
cores multiply them like any others. One AND extracts two nibbles that lie 16 bits apart, and those of the upper half of a byte are 16 times
as large. cvt.rn.f16x2.e4m3x2 converts fp8_e4m3; fp8_e5m2 is the upper half of a float16, so prmt puts a byte of zeros below it.

As keys, int8 and int4 are multiplied as integers (split_quantized/integers.py): words of int8 are operands, and of int4 one AND extracts
four nibbles, the upper ones after a shift.

Source: Kim et al. 2022, "Who Says Elephants Can't Run", section 4.2 (integers to floats by their bits).
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

from numba import cuda, int32, uint32

from minllm.ptx import e4m3x2_to_f16x2, fma_f16x2, prmt

DENORMAL = 2.0**-24  # value of a denormal float16's lowest bit
TWO_TIMES_1024, MINUS_1024, ONE = 0x64006400, 0xE400E400, 0x3C003C00  # pairs of float16
NIBBLES, UPPER_NIBBLES = 0x000F000F, 0x00F000F0
FOUR_NIBBLES = 0x0F0F0F0F
IN_ORDER, IN_TURN = 0x5410, 0x5140  # prmt: the two lower bytes of one word, then those of another; or alternating bytes of both
SWAP_MIDDLE = 0x3120  # prmt: bytes 0, 2, 1, 3


@cuda.jit(device=True)
def scaled_pair(code, scale, zero):
    """code * scale + zero for two codes, each given as 1024 + code in float16."""
    return fma_f16x2(fma_f16x2(code, uint32(ONE), uint32(MINUS_1024)), scale, zero)


@functools.cache
def make_dequantize(kv_format):
    """The device function dequantize(word, pair, out): converts a word of codes, with its (scale, zero), to pairs of float16.

    out: uint32 [2] for four codes of 8 bits, [4] for eight of 4.
    """
    is_e5m2 = kv_format.name == "fp8_e5m2"

    @cuda.jit(device=True)
    def scaled(code, pair):
        return scaled_pair(code, prmt(pair, uint32(0), uint32(0x1010)), prmt(pair, uint32(0), uint32(0x3232)))

    @cuda.jit(device=True)
    def dequantize_bytes(word, pair, out):
        out[0] = scaled(prmt(word, uint32(0x64646464), uint32(0x4140)), pair)
        out[1] = scaled(prmt(word, uint32(0x64646464), uint32(0x4342)), pair)

    @cuda.jit(device=True)
    def dequantize_nibbles(word, pair, out):
        for i in range(4):
            out[i] = scaled((word >> uint32(4 * i)) & uint32(NIBBLES) | uint32(TWO_TIMES_1024), pair)

    @cuda.jit(device=True)
    def widen_floats(word, pair, out):
        if is_e5m2:
            out[0], out[1] = prmt(word, uint32(0), uint32(0x1404)), prmt(word, uint32(0), uint32(0x3424))
        else:
            out[0], out[1] = e4m3x2_to_f16x2(word), e4m3x2_to_f16x2(word >> uint32(16))

    return widen_floats if kv_format.is_float else dequantize_nibbles if kv_format.bits == 4 else dequantize_bytes


@dataclass(frozen=True)
class CodeOperands:
    """How one format's words become operands; split_quantized/integers.py and floats.py describe key_operands and query_channel."""

    steps: int  # mma steps of 16 channels per chunk of 16 bytes
    unit: float  # the float16 operand for a value's code of 1
    upper_factor: float  # factor on that in the last step of a chunk
    key_operands: Callable
    value_operands: Callable  # (a, words, at, part): the words of A for step `part`, from words[at] and words[at + 1] of eight keys each
    query_channel: Callable
    value_channel: Callable  # (step, half, lane): the channel of row lane // 4 + 8 * half of the accumulator
    byte_order: int = IN_ORDER


@functools.cache
def make_byte_halves(even_pair, odd_pair):
    """value_operands for bytes that prmt converts to float16; even_pair, odd_pair: its selectors for bytes 0 and 2, 1 and 3."""

    @cuda.jit(device=True)
    def value_operands(a, words, at, part):
        for half in range(2):
            a[2 * half] = prmt(words[at + half], uint32(0), uint32(even_pair))
            a[2 * half + 1] = prmt(words[at + half], uint32(0), uint32(odd_pair))

    return value_operands


@cuda.jit(device=True)
def value_channel_of_bytes(step, half, lane):
    """A 16-bit element is two channels: the even ones become rows 0 to 7, the odd ones rows 8 to 15."""
    return int32(16 * step + 2 * (lane // 4) + half)


@cuda.jit(device=True)
def byte_key_operands(a, words, part, parts):
    """Two chunks in one mma; or, if they belong to different groups, one chunk and zeros."""
    for i in range(4):
        a[i] = words[i] if parts == 1 or i // 2 == part else uint32(0)


@cuda.jit(device=True)
def query_channel_of_bytes(word, half, lane):
    """One word of B per chunk: lane t of a row has bytes 4t to 4t + 3."""
    return int32(16 * word + 4 * (lane % 4) + 2 * half)


@cuda.jit(device=True)
def nibbles(word, part):
    """Two nibbles as float16: the lower ones of bytes 0 and 2, or the upper ones, which are 16 times as large."""
    return uint32(word & uint32(UPPER_NIBBLES if part else NIBBLES))


@cuda.jit(device=True)
def nibble_key_operands(a, words, part, parts):
    """The lower nibbles of four bytes of each word, then the upper ones."""
    for row in range(2):
        a[row] = uint32(words[2 * part + row] & uint32(FOUR_NIBBLES))
        a[2 + row] = uint32((words[2 * part + row] >> uint32(4)) & uint32(FOUR_NIBBLES))


@cuda.jit(device=True)
def nibble_value_operands(a, words, at, part):
    """Nibbles 16 bits apart, of two keys: those of the first and third byte, then those of the second and fourth."""
    for half in range(2):
        a[2 * half] = nibbles(words[at + half], part)
        a[2 * half + 1] = nibbles(words[at + half] >> uint32(8), part)


@cuda.jit(device=True)
def query_channel_of_nibbles(word, half, lane):
    """Two words of B per chunk. Lane t of a row has the eight channels from 8t on, in the order of quantization/reference.py: lower nibbles
    are channels 0, 4, 1 and 5 of these, upper nibbles 2, 6, 3 and 7."""
    return int32(32 * (word // 2) + 8 * (lane % 4) + 2 * (word % 2) + 4 * half)


@cuda.jit(device=True)
def value_channel_of_nibbles(step, half, lane):
    """A 16-bit element is four channels, every second of eight: nibbles 0 and 2 are rows of an even step, 1 and 3 of an odd step."""
    row = lane // 4
    return int32(32 * (step // 2) + 8 * (row // 2) + row % 2 + 4 * half + 2 * (step % 2))


@cuda.jit(device=True)
def e5m2_key_operands(a, words, at, part):
    """e5m2 to float16: a byte of zeros below each byte, two neighbouring channels per word."""
    for row in range(2):
        a[row] = prmt(words[at + row], uint32(0), uint32(0x1404))
        a[2 + row] = prmt(words[at + row], uint32(0), uint32(0x3424))


@cuda.jit(device=True)
def e4m3_key_operands(a, words, at, part):
    """e4m3 to float16: two neighbouring channels per conversion."""
    for row in range(2):
        a[row] = e4m3x2_to_f16x2(words[at + row])
        a[2 + row] = e4m3x2_to_f16x2(words[at + row] >> uint32(16))


@cuda.jit(device=True)
def e4m3_value_operands(a, words, at, part):
    """e4m3 to float16: the bytes of one channel are made neighbours first."""
    for half in range(2):
        word = prmt(words[at + half], uint32(0), uint32(SWAP_MIDDLE))
        a[2 * half] = e4m3x2_to_f16x2(word)
        a[2 * half + 1] = e4m3x2_to_f16x2(word >> uint32(16))


@cuda.jit(device=True)
def query_channel_of_floats(step, half, lane):
    """Lane t of a row has channels 4t to 4t + 3 of a step, in the two words of B."""
    return int32(16 * step + 4 * (lane % 4) + 2 * half)


def operands_of(kv_format):
    """The CodeOperands of a format."""
    if kv_format.name == "int8":
        values = make_byte_halves(0x4240, 0x4341)
        return CodeOperands(1, DENORMAL, 1.0, byte_key_operands, values, query_channel_of_bytes, value_channel_of_bytes)
    if kv_format.name == "fp8_e5m2":
        values = make_byte_halves(0x2404, 0x3414)
        return CodeOperands(1, 1.0, 1.0, e5m2_key_operands, values, query_channel_of_floats, value_channel_of_bytes)
    if kv_format.is_float:
        return CodeOperands(1, 1.0, 1.0, e4m3_key_operands, e4m3_value_operands, query_channel_of_floats, value_channel_of_bytes)
    channels = query_channel_of_nibbles, value_channel_of_nibbles
    return CodeOperands(2, DENORMAL, 16.0, nibble_key_operands, nibble_value_operands, *channels, IN_TURN)
