"""The consumers of nf4_tma.py: a warp multiplies every `warps`-th step of a block, for all its rows of weight and up to eight tokens.

A byte of codes becomes a register of mma.sync's operand by a shift, a lop3 and a load from the table of pairs (nf4_pairs.py), where int4
takes 1.75 instructions for a pair. Products with table entries are summed per block of 64 inputs, and enter the sums times its absmax.

An absmax is itself an 8-bit code with a scale and an offset. A lane finds those of one of the four blocks of a step, for its rows, and a
shuffle passes them on. Codes and scales are loaded a step before they are looked up in the map, so that no step waits for memory; those of
the first step are loaded before the table is filled.
"""

from typing import Any, NamedTuple

from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.kernels.matmul.flat.output import PADDING
from minllm.kernels.matmul.flat.wgmma_tiling import LINE_BYTES
from minllm.kernels.matmul.fragments import MULTIPLY
from minllm.kernels.matmul.quantized.nf4 import BLOCK_SHIFT, NESTED_SHIFT
from minllm.kernels.matmul.quantized.nf4_pairs import ENTRY_SHIFT
from minllm.kernels.matmul.quantized.tma_tiling import CHUNK_BYTES, STEP, TILE_ROWS, TmaTiling, make_keep_sums, make_row_of
from minllm.kernels.vector import load_words
from minllm.tiles.pipeline import BARRIER_BYTES, Pipeline
from minllm.tiles.warp import ALL_LANES, WARP

TOKENS = 8  # the columns of mma.sync
BLOCKS = STEP >> BLOCK_SHIFT  # blocks of NF4 in a step of a row of weight
BLOCK_BYTES = 1 << BLOCK_SHIFT - 1  # of codes


class Rows(NamedTuple):
    """Arrays over a lane's rows of weight, a number for each of them."""

    starts: Any  # where its absmax begin
    first_blocks: Any
    offsets: Any  # added to absmax
    codes: Any  # the absmax that was loaded last, as its code
    scales: Any  # what belongs to this code; without double quantisation the absmax itself


@cuda.jit(device=True, forceinline=True)
def pair_of_byte(pairs, word, i, copy):
    """The two numbers of byte i of a word; copy: where the lane's begins, in bytes. prmt puts the byte before three zeros."""
    return ptx.load_32(pairs, uint32((ptx.prmt(word, uint32(0), uint32(0x4440 + i)) << uint32(ENTRY_SHIFT)) + copy))


def make_multiply_chunk(rows: int, dtype: str):
    """The device function with which a warp multiplies 32 inputs of all rows of a stage."""
    tiles, a_words, pair_bytes = rows // TILE_ROWS, rows // TILE_ROWS * 2, 2 * TILE_ROWS * LINE_BYTES
    multiply = MULTIPLY[dtype]

    @cuda.jit(device=True, forceinline=True)
    def multiply_chunk(memory, pairs, codes, x, copy, products):
        """products += table[codes] x; codes: the shared address of the lane's row for ldmatrix; x: the word of the lane's inputs."""
        a, b, words = cuda.local.array(4, uint32), cuda.local.array(4, uint32), cuda.local.array(a_words, uint32)
        load_words(memory, x, b, 0)
        for pair in range(tiles // 2):
            ptx.ldmatrix_x4(words, 4 * pair, uint32(codes + pair * pair_bytes))
        for half in range(2):
            for tile in range(tiles):
                for i in range(2):
                    a[2 * i] = pair_of_byte(pairs, words[2 * tile], 2 * half + i, copy)
                    a[2 * i + 1] = pair_of_byte(pairs, words[2 * tile + 1], 2 * half + i, copy)
                multiply(products, 4 * tile, a, 0, b, 2 * half)

    return multiply_chunk


def make_absmax(own: int):
    """The device functions (load, find, add_block) for the absmax of `own` rows of weight per lane."""

    @cuda.jit(device=True, forceinline=True)
    def load_codes(absmax, nested, rows, block, last):
        block = uint32(min(block, last))
        for i in range(own):
            if nested is None:
                rows.scales[i] = absmax[uint32(rows.starts[i] + block)]
            else:
                rows.codes[i] = absmax[uint32(rows.starts[i] + block)]
                rows.scales[i] = nested[uint32(rows.first_blocks[i] + block) >> uint32(NESTED_SHIFT)]

    @cuda.jit(device=True, forceinline=True)
    def load(weight, rows, block):
        """Load what belongs to the absmax of a block of each row, or of the row's last block."""
        load_codes(weight.absmax, weight.nested, rows, block, int32(weight.codes.shape[1] // BLOCK_BYTES - 1))

    @cuda.jit(device=True, forceinline=True)
    def look_up(absmax_map, nested, rows, values):
        for i in range(own):
            values[i] = rows.scales[i] if nested is None else absmax_map[rows.codes[i]] * rows.scales[i] + rows.offsets[i]

    @cuda.jit(device=True, forceinline=True)
    def find(weight, rows, values):
        """values[i] = the absmax of the block that was loaded."""
        look_up(weight.map, weight.nested, rows, values)

    @cuda.jit(device=True, forceinline=True)
    def add_block(sums, products, values, block, lane):
        """sums += products * absmax; the lane 4 g + block of a group of four has the absmax of the block."""
        for i in range(own):
            absmax = cuda.shfl_sync(ALL_LANES, values[i], (lane & 28) + block)
            at = 4 * (i // 2) + 2 * (i % 2)
            sums[at] += absmax * products[at]
            sums[at + 1] += absmax * products[at + 1]

    return load, find, add_block


def make_consume(tiling: TmaTiling, dtype: str, halves: bool, pipeline: Pipeline):
    """The device functions (begin_rows, consume) of a consuming warp: the sums of its steps for all rows and tokens, in shared memory."""
    (rows_of_block, warps, _, _), own, stage_bytes = tiling, tiling.rows // 8, tiling.stage_bytes(TOKENS)
    registers, weight_words, panel_words = own * 2, rows_of_block * LINE_BYTES // 4, TOKENS * LINE_BYTES // 4
    multiply_chunk, row_of, keep_sums = (
        make_multiply_chunk(rows_of_block, dtype), make_row_of(rows_of_block, halves), make_keep_sums(TOKENS, rows_of_block)
    )  # fmt: skip
    (load, find, add_block), warp_words = make_absmax(own), TOKENS * (rows_of_block + PADDING)

    @cuda.jit(device=True, forceinline=True)
    def first_block(share, thread):
        """The block whose absmax a lane finds for its warp's first step."""
        return int32((share.first_step + (thread >> 5)) * BLOCKS + (thread & 3))

    @cuda.jit(device=True, forceinline=True)
    def begin_rows(weight, rows, share, thread):
        """Fill `rows`, and start the loads for the first step."""
        last, g = int32(weight.codes.shape[0] - 1), (thread & (WARP - 1)) >> 2
        for i in range(own):
            row = row_of(8 * i + g, share, last)
            rows.starts[i] = ptx.keep_register(uint32(row * uint32(weight.codes.shape[1] // BLOCK_BYTES)))
            rows.first_blocks[i], rows.offsets[i] = uint32(weight.first_blocks[row]), weight.offsets[row]
        load(weight, rows, first_block(share, thread))

    @cuda.jit(device=True, forceinline=True)
    def multiply_block(memory, pairs, codes, x, block, copy, products):
        """products = the products of the 64 inputs of a block: two chunks of codes, a panel of x."""
        for i in range(registers):
            products[i] = float32(0)
        codes, x = codes ^ (uint32(2 * block) << uint32(4)), x + uint32(block * panel_words)
        multiply_chunk(memory, pairs, codes, x, copy, products)
        multiply_chunk(memory, pairs, codes ^ uint32(CHUNK_BYTES), x ^ uint32(16), copy, products)

    @cuda.jit(device=True, forceinline=True)
    def consume(memory, sums_at, ring, share, thread, pairs, weight, rows):
        """memory[sums_at + (warp * tokens + token) * stride + row] = the sums of this warp's steps."""
        lane, warp = thread & (WARP - 1), thread >> 5
        g, t = lane >> 2, lane & 3
        values, sums = cuda.local.array(own, float32), cuda.local.array(registers, float32)
        products = cuda.local.array(registers, float32)
        token = min((g >> 1) + ((g & 1) << 2), share.m - 1)  # the last one stands for those that are absent
        own_x = uint32(sums_at + weight_words + token * (LINE_BYTES // 4) + ((t ^ (token & 7)) << 2))
        own_codes, copy = uint32(ring.stages + lane * LINE_BYTES + ((lane & 7) << 4)), uint32(4 * lane)
        for i in range(registers):
            sums[i] = float32(0)
        step, block = int32(warp), first_block(share, thread)
        while step < share.steps:
            state = pipeline.state(step)
            find(weight, rows, values)
            block = int32(block + warps * BLOCKS)
            load(weight, rows, block)
            pipeline.consumer_wait(ring, state)
            begin = uint32(state.slot * uint32(stage_bytes))
            for i in range(BLOCKS):
                multiply_block(memory, pairs, own_codes + begin, own_x + (begin >> uint32(2)), i, copy, products)
                add_block(sums, products, values, i, lane)
            cuda.syncwarp()
            if lane == 0:
                ptx.mbarrier_arrive(ring.empty + uint32(BARRIER_BYTES) * state.slot)
            step = int32(step + warps)
        ptx.bar_sync(1, warps * WARP)  # all steps have been multiplied: the sums may lie in their place
        keep_sums(sums, memory, sums_at + warp * warp_words, lane)

    return begin_rows, consume
