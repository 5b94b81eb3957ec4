"""The main loop of mixed-input GEMM: one thread loads steps by TMA, warpgroups decode and multiply them.

In a step of 64 inputs TMA loads x, and codes and scales of the block's rows of weight. A warpgroup decodes the codes of the next step while
the tensor cores multiply those of this one, and while one warpgroup decodes, the other multiplies. Decoding takes three to five
instructions per pair of weights, and a decoded pair multiplies up to 256 rows.

A lane decodes two rows of weight. Those are neighbours eight rows apart; or, if the block is persistent and gated, a row of gate and the
same row of up, so that the lane has both sums of an output in its registers.

Source: PTX ISA, "wgmma.mma_async" (register operand), "Swizzling modes"; Frantar et al. 2024, "MARLIN", section 3.4.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.kernels.matmul.quantized.mixed_input.decoder import FRAGMENTS, make_decode
from minllm.kernels.matmul.quantized.mixed_input.k_groups import make_advance, make_group_of
from minllm.kernels.matmul.quantized.mixed_input.scales import ScaleTiles
from minllm.kernels.matmul.quantized.mixed_input.tiling import MixedInputTiling
from minllm.kernels.quantization.decoder import STEP, TileDecoder
from minllm.runtime.array_protocol import Array
from minllm.tiles import tma
from minllm.tiles.wgmma import make_wgmma


def make_produce(tiling: MixedInputTiling, decoder: TileDecoder, gated: bool, scale_tiles: ScaleTiles, pipeline, tile_at):
    """The device function of the producer, one thread that keeps the stages full."""
    x_bytes, code_bytes, stages, load_scales = tiling.x_tile.bytes, decoder.code_bytes, tiling.stages, scale_tiles.load
    second_half, arrivals = x_bytes + tiling.rows * code_bytes // 2, x_bytes + tiling.rows * decoder.bytes_of_arrivals
    persistent = tiling.batches > 0

    @cuda.jit(device=True, forceinline=True)
    def load_codes(stage, weight_map, scale_maps, step, tile):
        """Load the codes and scales of a step; the stage is full once x has arrived too."""
        pipeline.producer_expect(stage, arrivals)
        column = (tile.first_step + step) * (code_bytes // 2)
        tma.load_2d(stage, x_bytes, weight_map, column, tile.row)
        load_scales(stage, scale_maps, 0, tile.row, tile.first_step + step)
        if gated:
            tma.load_2d(stage, second_half, weight_map, column, tile.second_row)
            load_scales(stage, scale_maps, 1, tile.second_row, tile.first_step + step)

    @cuda.jit(device=True, forceinline=True)
    def load_x(stage, x_map, step, tile):
        tma.load_2d(stage, 0, x_map, (tile.first_step + step) * STEP, tile.token)

    @cuda.jit(device=True, forceinline=True)
    def load_steps(x_map, weight_map, scale_maps, ring, tile, first, state):
        """Load the steps of a tile from `first` on, each once its stage is empty. Return the PipelineState after them."""
        for step in range(int32(first), tile.steps):
            stage = pipeline.producer_acquire(ring, state)
            load_codes(stage, weight_map, scale_maps, step, tile)
            load_x(stage, x_map, step, tile)
            state = pipeline.advance(state)
        return state

    @cuda.jit(device=True, forceinline=True)
    def produce(x_map, weight_map, scale_maps, ring, grid):
        """Load all steps of the block's tiles in order; the first codes, which no kernel writes, before x is written."""
        tile = tile_at(grid.first, grid)
        ready = min(tile.steps, stages)
        for step in range(ready):
            load_codes(pipeline.stage(ring, pipeline.state(step)), weight_map, scale_maps, step, tile)
        ptx.griddepcontrol_wait()
        for step in range(ready):
            load_x(pipeline.stage(ring, pipeline.state(step)), x_map, step, tile)
        state = load_steps(x_map, weight_map, scale_maps, ring, tile, ready, pipeline.state(ready))
        number = int32(grid.first + grid.stride)
        while persistent and number < grid.chunks * grid.columns:
            state = load_steps(x_map, weight_map, scale_maps, ring, tile_at(number, grid), 0, state)
            number = int32(number + grid.stride)

    return produce


class Consumer(NamedTuple):
    """A consumer thread's part of the block's rows: its warpgroup's part of K, its number in it, and the places of its two rows."""

    group: int
    thread: int
    low: int
    high: int


def make_consumer(tiling: MixedInputTiling, gated: bool):
    """consumer_of(number): the Consumer of a consumer thread."""
    group_of = make_group_of(tiling)
    rows_of_warp, apart = 8 if tiling.pairs_rows(gated) else 16, tiling.rows_apart(gated)

    @cuda.jit(device=True, forceinline=True)
    def consumer_of(number):
        group, thread = group_of(number)
        low = (thread >> 5) * rows_of_warp + (thread >> 2 & 7)
        return Consumer(group, thread, low, low + apart)

    return consumer_of


class Codes(NamedTuple):
    """A lane's data for decoding: the weight's arrays, its Lane, where its scales are, and those of a step as pairs of 16-bit floats."""

    weight: Any
    lane: Any  # the decoder's Lane
    elements: Any  # those of ScaleTiles
    pairs: Array


class Mainloop(NamedTuple):
    """registers: sums per thread. multiply_tile(memory, first_word, ring, x, tile, consumer, state, grid, weight, table, sums).

    It lets sums = those of the tile's steps that are the warpgroup's, and returns the PipelineState after them. x: the wgmma operand of x
    in the first stage.
    """

    registers: int
    x: Callable  # x(ring) -> that operand
    multiply_tile: Callable


def make_mainloop(tiling: MixedInputTiling, dtype: str, decoder: TileDecoder, gated: bool, scale_tiles: ScaleTiles, pipeline) -> Mainloop:
    """Return the Mainloop of a consumer."""
    rows, stage_words, code_words = tiling.rows, tiling.stage_bytes(decoder.row_bytes) // 4, decoder.code_bytes // 4
    x_words, make_pairs, elements_of = tiling.x_tile.bytes // 4, decoder.make_pairs(scale_tiles.read), scale_tiles.elements
    make_lane, load_ahead, decode = decoder.make_lane, decoder.load_ahead, make_decode(decoder)
    words_apart = tiling.rows_apart(gated) * code_words
    k_groups, advance, pair_registers = tiling.k_groups, make_advance(tiling, pipeline), 2 * decoder.scales[0].groups * decoder.pairs
    wgmma, halves = make_wgmma(tiling.x_tile, dtype, halves=True), 2 if gated else 1
    registers = wgmma.registers

    @cuda.jit(device=True, forceinline=True)
    def row_of(place, tile, last):
        """Return the row of weight for a row of the tile, at most `last`."""
        first = tile.second_row - rows // 2 if gated and place >= rows // 2 else tile.row
        return uint32(min(int32(first + place), last))

    @cuda.jit(device=True, forceinline=True)
    def decode_step(memory, line, ring, tile, state, step, codes, ahead, numbers):
        """numbers = the fragments of a step, once its stage is full.

        Return what is loaded ahead for the warpgroup's next step, still in flight.
        """
        following = load_ahead(codes.weight, codes.lane, tile.first_step + step + k_groups)
        pipeline.consumer_wait(ring, state)
        make_pairs(codes.lane, ahead, pipeline.stage(ring, state).tiles, codes.elements, codes.pairs)
        decode(memory, uint32(line + state.slot * stage_words), words_apart, codes.lane, codes.pairs, numbers)
        return following

    @cuda.jit(device=True, forceinline=True)
    def multiply(memory, line, ring, tile, state, step, x, sums, numbers, codes, ahead, following):
        """sums += a decoded step, while the next is decoded into `following`.

        Return the next step's state, and what is loaded ahead for the step after it.
        """
        wgmma.multiply(sums, numbers, pipeline.operand(x, state), 1)
        next_state = advance(state)
        if step + k_groups < tile.steps:
            ahead = decode_step(memory, line, ring, tile, next_state, step + k_groups, codes, ahead, following)
        wgmma.wait(sums)
        ptx.keep_registers(numbers, FRAGMENTS)
        pipeline.consumer_release(ring, state)
        return next_state, ahead

    @cuda.jit(device=True, forceinline=True)
    def multiply_tile(memory, first_word, ring, x, tile, consumer, state, grid, weight, table, sums):
        group, last = consumer.group, int32(grid.outputs * halves - 1)
        line = ptx.keep_register(uint32(first_word + x_words + consumer.low * code_words))
        lane = make_lane(weight, table, row_of(consumer.low, tile, last), row_of(consumer.high, tile, last))
        codes = Codes(weight, lane, elements_of(consumer.low), cuda.local.array(pair_registers, uint32))
        even, odd = cuda.local.array(FRAGMENTS, uint32), cuda.local.array(FRAGMENTS, uint32)
        for i in range(registers):
            sums[i] = float32(0)
        ahead = load_ahead(weight, lane, tile.first_step + group)
        if k_groups == 1 or group < tile.steps:  # with one step in the tile, the second warpgroup has none
            ahead = decode_step(memory, line, ring, tile, state, group, codes, ahead, even)
        for step in range(int32(group), tile.steps, int32(2 * k_groups)):
            state, ahead = multiply(memory, line, ring, tile, state, step, x, sums, even, codes, ahead, odd)
            if step + k_groups < tile.steps:
                state, ahead = multiply(memory, line, ring, tile, state, step + k_groups, x, sums, odd, codes, ahead, even)
        return state

    @cuda.jit(device=True, forceinline=True)
    def x_of(ring):
        return ptx.keep_register(wgmma.right(ring.stages))

    return Mainloop(registers, x_of, multiply_tile)
