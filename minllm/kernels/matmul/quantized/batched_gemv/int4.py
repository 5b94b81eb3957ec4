"""int4 (W4A16) for the batched GEMV: a mask turns two codes into two subnormal 16-bit floats, unit * code.

    sum over a group of scale * (code - zero) * x      = scale * (sum of code * x - zero * sum of x)
    sum over a group of (scale * code + minimum) * x   = scale * sum of code * x + minimum * sum of x

A 16-bit float with an exponent of 0 is subnormal: its lowest bits are a number of units, and tensor cores multiply it as such. In bfloat16
the codes in the lower half of a byte need no shift, and those in the upper half count 16 times as much: the x that they multiply is divided
by 16. The unit 2**-133 would leave float32 little room for products, so x is also multiplied by 2**64, and keeps its precision from 1e-17
to 1.8e19: larger numbers become infinite. In float16 codes begin at bit 3, those of upper halves are shifted, and x is unchanged.

Source: Frantar et al. 2024, "MARLIN", section 3.4 (codes as the mantissas of normal numbers, which takes one more instruction).
"""

import functools

from numba import cuda, float32, uint32

from minllm import ptx
from minllm.kernels.matmul.quantized.batched_gemv.decoder import Decoder, Scale, x_as_it_is
from minllm.kernels.matmul.quantized.batched_gemv.tiling import INPUTS
from minllm.kernels.matmul.quantized.int4_codes import FLOAT_OF, MIDDLE, UNITS, Unit

MINUS_ZEROS = 0x80008000  # a pair of -0: an fma that adds it only multiplies, and keeps the sign of zero
EVEN, ODD = 0x5F805F80, 0x5D805D80  # pairs of the bfloat16 2**64 and 2**60


@cuda.jit(device=True, forceinline=True)
def pair_of_scaled_x(word, i):
    """Return a pair of bfloat16 times 2**64, or 2**60 if i is odd, exactly."""
    return ptx.fma_bf16x2(word, uint32(ODD if i % 2 else EVEN), uint32(MINUS_ZEROS))


def make_pair_of_codes(unit: Unit):
    """pair_of_codes(decoding, word, i): codes 2 i and 2 i + 1 of a word as subnormal numbers.

    If x is multiplied (unit.of_x), odd pairs keep their bits in the upper half of a byte, 16 times as much.
    """
    place, together, mask = unit.place, 2 if unit.of_x != 1 else 1, 0x000F000F << unit.place

    @cuda.jit(device=True, forceinline=True)
    def pair_of_codes(decoding, word, i):
        shift = 4 * (i // together * together) - place
        shifted = word << uint32(-shift) if shift < 0 else word >> uint32(shift)
        return shifted & uint32(mask << 4 * (i % together))

    return pair_of_codes


@cuda.jit(device=True, forceinline=True)
def nothing(table, weight):
    """Decoder.begin_block for a format without a table."""
    return uint32(0)


@cuda.jit(device=True, forceinline=True)
def keep_nothing(weight, row):
    """Decoder.begin for a format without data per row."""
    return row


def make_add(has_zeros: bool, has_minimums: bool):
    """Return Decoder.add for groups with zeros, with minimums, or symmetric."""

    @cuda.jit(device=True, forceinline=True)
    def add(total, factor, offset, codes_times_x, x):
        if has_minimums:
            return total + factor * codes_times_x + offset * x
        if has_zeros:
            return total + factor * (codes_times_x - offset * x)
        return total + factor * (codes_times_x - float32(MIDDLE) * x)

    return add


@functools.cache
def make_int4_decoder(dtype: str, group_size: int, scale_dtype: str, has_zeros: bool, has_minimums: bool) -> Decoder:
    """Return the Decoder of int4 weights in groups of 32, 64 or a multiple of 128."""
    float_of, unit = FLOAT_OF[scale_dtype], UNITS[dtype]
    steps_of_a_group = max(1, group_size // INPUTS)

    @cuda.jit(device=True, forceinline=True)
    def load(weight, row, kept, group, words, at):
        place = uint32(group * uint32(weight.outputs) + row)
        words[at] = uint32(weight.scales[place])
        if has_zeros:
            words[at + 1] = uint32(weight.zeros[place])
        if has_minimums:
            words[at + 1] = uint32(weight.minimums[place])

    @cuda.jit(device=True, forceinline=True)
    def load_of_step(weight, row, kept, step, words, at):
        load(weight, row, kept, uint32(step // uint32(steps_of_a_group)), words, at)

    @cuda.jit(device=True, forceinline=True)
    def scale(decoding, kept, words, at):
        factor, offset = float_of(words[at]), float32(0)
        if has_minimums:
            offset = float_of(words[at + 1])
        if has_zeros:
            offset = float32(words[at + 1])
        return Scale(factor, offset)

    has_offsets, load_group = has_zeros or has_minimums, load if group_size <= INPUTS else load_of_step
    return Decoder(
        max(1, INPUTS // group_size), 1 + has_offsets, 0, unit.value, True, has_offsets, nothing, keep_nothing, load_group, scale,
        make_pair_of_codes(unit), pair_of_scaled_x if unit.of_x != 1 else x_as_it_is, make_add(has_zeros, has_minimums),
    )  # fmt: skip
