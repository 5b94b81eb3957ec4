"""int4 (W4A16) as an operand of mma.sync: a shift and a mask turn two codes into two subnormal floats, unit * code.

    low = sum over groups of scale[low, g] / unit * (sum over the group of x[k] * unit * code[low, k] - zero[low, g] * sum of unit * x[k])

with minimums, which some files store in place of zeros:

    low = sum over groups of scale[low, g] / unit * sum over the group of x[k] * unit * code[low, k] + minimum[low, g] * sum of x[k]

A subnormal bfloat16 is a multiple of 2**-133, and products with it would be too small for float32, so bfloat16 x is multiplied by 2**64
first. x of 1.8e19 or more becomes infinite. With x down to 1e-21 products are multiples of 2**-149, which float32 adds exactly (tensor
cores do not flush subnormal numbers); with smaller x they lose bits. float16 has no such limits.

A step is 128 inputs: eight mma.sync of 16, two for each word of eight codes of a lane. Groups of 64 or 32 are two or four parts of a step
(operand.py).

Source: Frantar et al. 2024, "MARLIN", section 3.4 (pairs of codes by shifts and masks).
"""

import functools

from numba import cuda, float32, uint32

from minllm import ptx
from minllm.kernels.matmul.quantized.int4_codes import FLOAT_OF, MIDDLE, UNITS
from minllm.kernels.matmul.quantized.tensor_core_gemv.activations import make_prepare_numbers
from minllm.kernels.matmul.quantized.tensor_core_gemv.numbers import INPUTS, make_multiply, make_shares
from minllm.kernels.matmul.quantized.tensor_core_gemv.operand import Operand, fill_nothing, keep_nothing, no_decoder


@functools.cache
def make_int4_operand(k: int, tiling, dtype: str, group_size: int, scale_dtype: str, has_zeros: bool, has_minimums: bool) -> Operand:
    """Return the Operand of int4 weights in groups of 32, 64 or a multiple of 128."""
    parts, padded_steps = max(1, INPUTS // group_size), tiling.padded_steps(k // INPUTS)
    shares, padded_k = make_shares(parts, tiling.unroll), padded_steps * INPUTS
    own, unit = shares.parts, UNITS[dtype]
    unit_of_sums = 1.0 if has_minimums else unit.value
    zeros_at = 2 * own  # the words of a group of steps are scales, then zeros or minimums
    words = zeros_at + (2 * own if has_zeros or has_minimums else 0)
    float_of, sums_at, first_part, sum_of_lanes = FLOAT_OF[scale_dtype], padded_k // 2, shares.first_part, shares.sum_of_lanes
    even_mask, odd_mask, place_of_codes, per_unit = 0x000F000F << unit.place, 0x00F000F0 << unit.place, unit.place, 1 / unit.value

    @cuda.jit(device=True, forceinline=True)
    def pair_of(decoder, word, i):
        shifted = word >> uint32(8 - place_of_codes) if i >= 2 else word << uint32(place_of_codes)
        return shifted & uint32(odd_mask if i % 2 else even_mask)

    @cuda.jit(device=True, forceinline=True)
    def load_groups(array, outputs, rows, step, words, at):
        """words[at : at + 2 * own] = an element for each of the lane's groups of row low, then of row high."""
        for part in range(own):
            group = uint32(uint32(step) * uint32(INPUTS) // uint32(group_size) + uint32(first_part() + uint32(part)))
            first = uint32(group * uint32(outputs))
            words[at + part] = uint32(array[uint32(first + rows.low)])
            words[at + own + part] = uint32(array[uint32(first + rows.high)])

    @cuda.jit(device=True, forceinline=True)
    def load(weight, rows, kept, step, words, at):
        load_groups(weight.scales, weight.outputs, rows, step, words, at)
        if has_zeros:
            load_groups(weight.zeros, weight.outputs, rows, step, words, at + zeros_at)
        if has_minimums:
            load_groups(weight.minimums, weight.outputs, rows, step, words, at + zeros_at)

    @cuda.jit(device=True, forceinline=True)
    def scale(memory, decoder, kept, held, index, step, sums):
        total, found, at = sums.total, held.scales, index * words
        for part in range(own):
            plain = ptx.uint_as_float(memory[uint32(uint32(step) * uint32(parts) + first_part() + uint32(sums_at + part))])
            for row in range(2):
                place = at + row * own + part
                scale, sum_of_codes = float_of(found[place]), sums.unscaled[2 * row + part]
                if has_minimums:
                    total[2 * row] += scale * (sum_of_codes * float32(per_unit)) + float_of(found[zeros_at + place]) * plain
                else:
                    zero = float32(found[zeros_at + place]) if has_zeros else float32(MIDDLE)
                    total[2 * row] += scale * ((sum_of_codes - zero * plain) * float32(per_unit))

    @cuda.jit(device=True, forceinline=True)
    def finish(kept, total, factor):
        return factor * sum_of_lanes(total[0]), factor * sum_of_lanes(total[2])

    prepare = make_prepare_numbers(k, padded_k, tiling.threads, dtype, parts, unit.of_x, unit_of_sums)
    multiply = make_multiply(dtype, parts, shares, pair_of, 16)
    x_bytes = padded_k * 2 + padded_steps * parts * 4
    return Operand(
        k // INPUTS, k // 2, shares.group, words, x_bytes, 0, float32, fill_nothing, prepare, no_decoder, keep_nothing,
        shares.own_step, load, multiply, scale, finish,
    )  # fmt: skip
