"""The consumers of int4_tma.py: a warp multiplies every `warps`-th step of a block, for all its rows of weight and all tokens.

For 16 inputs and 16 rows a lane turns four words of codes into mma.sync's operand A with 1.75 instructions per pair, and multiplies it by
the fragment of x that it has loaded for all rows. Products with the offset in the codes are summed per group, as is x itself, by a product
with ones; the scale and the offset enter once per group. The scales of the next group are loaded before the products of this one.

A tensor core cuts all summands to the digits of the largest (Fasi et al. 2021, "Numerical behavior of NVIDIA tensor cores"), so the offset
multiplies what is lost. In the lowest bits of a float16 a code has an offset of 1024; float16 therefore takes its codes in the highest bits
of the mantissa, where the offset is 16, for a quarter of a shift more per pair.
"""

from typing import NamedTuple

from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.kernels.matmul.flat.output import PADDING
from minllm.kernels.matmul.flat.wgmma_tiling import LINE_BYTES
from minllm.kernels.matmul.fragments import MULTIPLY
from minllm.kernels.matmul.quantized.int4_tensor_core import MIDDLE
from minllm.kernels.matmul.quantized.int4_wgmma import MOST_INPUTS
from minllm.kernels.matmul.quantized.tma_tiling import CHUNK_BYTES, STEP, TILE_ROWS, make_keep_sums, make_row_of
from minllm.kernels.vector import load_words
from minllm.tiles.pipeline import BARRIER_BYTES, Pipeline
from minllm.tiles.warp import WARP
from minllm.tiles.warpgroup import uniform

CHUNK = 32  # inputs whose codes are CHUNK_BYTES of a row


class Offset(NamedTuple):
    """How a code becomes a number: its four bits lie in the mantissa of a 16-bit float from bit `place` on, which makes it value + code."""

    place: int
    value: float
    bits: int  # of a pair of `value`
    ones: int  # of a pair of 1.0


OFFSETS = {"bfloat16": Offset(0, 128.0, 0x43004300, 0x3F803F80), "float16": Offset(6, 16.0, 0x4C004C00, 0x3C003C00)}


def make_pair_of_codes(offset: Offset):
    """The device function that makes two 16-bit floats of codes 2 i and 2 i + 1 of a word, each with the offset."""
    place, bits = offset.place, offset.bits

    @cuda.jit(device=True, forceinline=True)
    def pair_of_codes(word, i, mask):
        if 4 * i < place:
            return (word << uint32(place - 4 * i) & mask) | uint32(bits)
        return (word >> uint32(4 * i - place) & mask) | uint32(bits)

    return pair_of_codes


def make_multiply_chunk(tokens: int, rows: int, dtype: str):
    """The device function with which a warp multiplies 32 inputs of all rows and tokens of a stage."""
    blocks, pairs, pair_of_codes, multiply = tokens // 8, rows // 32, make_pair_of_codes(OFFSETS[dtype]), MULTIPLY[dtype]
    b_words, a_words, pair_bytes = 4 * blocks, 4 * pairs, 2 * TILE_ROWS * LINE_BYTES

    @cuda.jit(device=True, forceinline=True)
    def multiply_chunk(memory, codes, x, panel, mask, ones, biased, plain):
        """biased += (offset + codes) x, plain += ones x.

        codes: the shared address of the lane's row for ldmatrix. x: for each block of 8 tokens the word of `memory` at which the lane's
        eight inputs lie, in panel 0.
        """
        a, b, words = cuda.local.array(4, uint32), cuda.local.array(b_words, uint32), cuda.local.array(a_words, uint32)
        for block in range(blocks):
            load_words(memory, x[block] + panel, b, 4 * block)
        for pair in range(pairs):
            ptx.ldmatrix_x4(words, 4 * pair, uint32(codes + pair * pair_bytes))
        for half in range(2):
            for block in range(blocks):
                multiply(plain, 4 * block, ones, 0, b, 4 * block + 2 * half)
            for tile in range(2 * pairs):
                for i in range(2):
                    a[2 * i] = pair_of_codes(words[2 * tile], 2 * half + i, mask)
                    a[2 * i + 1] = pair_of_codes(words[2 * tile + 1], 2 * half + i, mask)
                for block in range(blocks):
                    multiply(biased, 4 * (tile * blocks + block), a, 0, b, 4 * block + 2 * half)

    return multiply_chunk


def make_groups(tokens: int, rows: int, group_size: int, dtype: str):
    """The device functions (load_scales, add_group): a lane's scales of a group, and what a group adds to the sums."""
    blocks, tiles, offset = tokens // 8, rows // TILE_ROWS, OFFSETS[dtype].value

    @cuda.jit(device=True, forceinline=True)
    def load_scales(scales, zeros, starts, groups, first, values, offsets):
        """values[i] = the scale of the group of the input `first`, or of the last one, in the row whose scales begin at starts[i].

        offsets[i] = -offset - zero.
        """
        group = uint32(min(uint32(first) // uint32(group_size), uint32(groups - 1)))
        for i in range(2 * tiles):
            values[i] = float32(scales[uint32(starts[i] + group)])
            offsets[i] = float32(-offset - MIDDLE)
            if zeros is not None:
                offsets[i] = float32(-offset) - float32(zeros[uint32(starts[i] + group)])

    @cuda.jit(device=True, forceinline=True)
    def add_group(sums, biased, plain, values, offsets):
        for tile in range(tiles):
            for half in range(2):
                row = 2 * tile + half
                for block in range(blocks):
                    for i in range(2):
                        at = 4 * (tile * blocks + block) + 2 * half + i
                        sums[at] += values[row] * (biased[at] + offsets[row] * plain[4 * block + i])

    return load_scales, add_group


def make_consume(tokens: int, tiling, dtype: str, group_size: int, halves: bool, pipeline: Pipeline):
    """The device function of a consuming warp: the sums of its steps for all rows and tokens, left in shared memory; a TmaTiling."""
    (rows, warps, _, _), blocks, tiles, one_pair = tiling, tokens // 8, tiling.rows // TILE_ROWS, OFFSETS[dtype].ones
    inputs, registers, plain_registers = min(group_size, MOST_INPUTS), tiles * blocks * 4, 4 * blocks
    parts, chunks, own, warp_words = STEP // inputs, inputs // CHUNK, 2 * tiles, tokens * (rows + PADDING)
    weight_words, panel_words, stage_bytes = rows * LINE_BYTES // 4, tokens * LINE_BYTES // 4, tiling.stage_bytes(tokens)
    multiply_chunk, row_of, keep_sums = make_multiply_chunk(tokens, rows, dtype), make_row_of(rows, halves), make_keep_sums(tokens, rows)
    codes_mask = 0x000F000F << OFFSETS[dtype].place
    load_scales, add_group = make_groups(tokens, rows, group_size, dtype)

    @cuda.jit(device=True, forceinline=True)
    def multiply_part(memory, codes, x, part, mask, ones, biased, plain):
        """The products of the inputs of one group, or of 128 of a larger one."""
        even, odd = cuda.local.array(blocks, uint32), cuda.local.array(blocks, uint32)
        first = uint32(uint32(part) * uint32(chunks))
        codes = codes ^ (first << uint32(4))
        for block in range(blocks):  # two chunks of codes are a panel of x
            even[block] = (x[block] ^ ((first & uint32(1)) << uint32(4))) + (first >> uint32(1)) * uint32(panel_words)
            odd[block] = even[block] ^ uint32(16)
        for i in range(registers):
            biased[i] = float32(0)
        for i in range(plain_registers):
            plain[i] = float32(0)
        # Unrolled by hand: the compiler does not always unroll a body this long.
        multiply_chunk(memory, codes, even, uint32(0), mask, ones, biased, plain)
        if chunks > 1:
            multiply_chunk(memory, codes ^ uint32(CHUNK_BYTES), odd, uint32(0), mask, ones, biased, plain)
        if chunks > 2:
            multiply_chunk(memory, codes ^ uint32(2 * CHUNK_BYTES), even, uint32(panel_words), mask, ones, biased, plain)
            multiply_chunk(memory, codes ^ uint32(3 * CHUNK_BYTES), odd, uint32(panel_words), mask, ones, biased, plain)

    @cuda.jit(device=True, forceinline=True)
    def consume(memory, sums_at, ring, share, thread, scales, zeros, groups, last):
        """memory[sums_at + (warp * tokens + token) * stride + row] = the sums of this warp's steps; last: the last row of weight."""
        lane, warp = thread & (WARP - 1), thread >> 5
        g, t = lane >> 2, lane & 3
        starts, own_x, x = cuda.local.array(own, uint32), cuda.local.array(blocks, uint32), cuda.local.array(blocks, uint32)
        values, offsets = cuda.local.array(own, float32), cuda.local.array(own, float32)
        next_values, next_offsets = cuda.local.array(own, float32), cuda.local.array(own, float32)
        sums, biased = cuda.local.array(registers, float32), cuda.local.array(registers, float32)
        plain, ones = cuda.local.array(plain_registers, float32), cuda.local.array(4, uint32)
        for i in range(own):
            starts[i] = ptx.keep_register(uint32(row_of(8 * i + g, share, last) * uint32(groups)))
        for block in range(blocks):  # the lane's token; the last one stands for those that are absent
            token = min(8 * block + (g >> 1) + ((g & 1) << 2), share.m - 1)
            own_x[block] = uint32(sums_at + weight_words + token * (LINE_BYTES // 4) + ((t ^ (token & 7)) << 2))
        for i in range(registers):
            sums[i] = float32(0)
        for i in range(4):
            ones[i] = ptx.keep_register(uint32(one_pair))
        own_codes = uint32(ring.stages + lane * LINE_BYTES + ((lane & 7) << 4))
        mask = uint32(uniform(int32(codes_mask)))  # a lop3 takes one constant; another would be moved to a register for every pair of codes
        step = int32(warp)
        load_scales(scales, zeros, starts, groups, (share.first_step + step) * STEP, next_values, next_offsets)
        while step < share.steps:
            state = pipeline.state(step)
            pipeline.consumer_wait(ring, state)
            begin = uint32(state.slot * uint32(stage_bytes))
            for block in range(blocks):
                x[block] = own_x[block] + (begin >> uint32(2))
            for part in range(parts):
                for i in range(own):
                    values[i], offsets[i] = next_values[i], next_offsets[i]
                following = uint32(uint32(share.first_step + step) * uint32(STEP) + uint32(part + 1) * uint32(inputs))
                if part + 1 == parts:
                    following = uint32(following + uint32((warps - 1) * STEP))
                load_scales(scales, zeros, starts, groups, following, next_values, next_offsets)
                multiply_part(memory, own_codes + begin, x, part, mask, ones, biased, plain)
                add_group(sums, biased, plain, values, offsets)
            cuda.syncwarp()
            if lane == 0:
                ptx.mbarrier_arrive(ring.empty + uint32(BARRIER_BYTES) * state.slot)
            step = int32(step + warps)
        ptx.bar_sync(1, warps * WARP)  # all steps have been multiplied: the sums may lie in their place
        keep_sums(sums, memory, sums_at + warp * warp_words, lane)

    return consume
