"""The kernel of mixed-input GEMM: tiles of codes become 16 bits in registers, as wgmma's left operand.

    out[m, n] = sum over k of x[m, k] * w[n, k]  (+ bias[n])                          w: the dequantised weight, rounded to x's dtype
    gated:  out[m, n] = silu(gate[m, n]) * up[m, n]         gate and up: such sums with the first and the second half of weight's rows

A block computes 64 outputs per warpgroup for up to 256 rows of x. In a step of 64 inputs TMA loads x, and codes and scales of the block's
rows of weight. A warpgroup decodes the codes of the next step while the tensor cores multiply those of this one, and while one warpgroup
decodes, the other multiplies. Decoding takes three to five instructions per pair of weights, and a decoded pair multiplies up to 256 rows.
If there are fewer blocks than SMs, `splits` blocks of a cluster divide K, and add their sums as in flat_wgmma.py.

With k_groups = 2 the two warpgroups of a block have the same 64 rows of weight and divide K between them (k_groups.py).

2 M N K FLOPs. The codes are read once per 256 rows of x, and M K b bytes of x once per 128 rows of weight, or 64 with k_groups = 2, mostly
from L2: blocks that run together share both.

Source: PTX ISA, "wgmma.mma_async" (register operand), "Swizzling modes"; Frantar et al. 2024, "MARLIN", section 3.4.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, float32, int32, uint8, uint32

from minllm import ptx
from minllm.kernels.matmul.flat.mainloop import make_added
from minllm.kernels.matmul.flat.output import make_write
from minllm.kernels.matmul.quantized.mixed_input.decoder import FRAGMENTS, Decoder
from minllm.kernels.matmul.quantized.mixed_input.k_groups import make_advance, make_group_of, make_leave_sums
from minllm.kernels.matmul.quantized.mixed_input.scales import ScaleTiles, make_scale_tiles
from minllm.kernels.matmul.quantized.mixed_input.tiling import STEP, MixedInputTiling
from minllm.runtime.kernel import kernel
from minllm.tiles import tma
from minllm.tiles.pipeline import make_pipeline
from minllm.tiles.shared import first_tile_address
from minllm.tiles.warpgroup import THREADS, sync_blocks
from minllm.tiles.wgmma import make_wgmma


class Tile(NamedTuple):
    """A block's work tile: first row of weight (gated: also of the second half), first row of x, steps of K."""

    row: int
    second_row: int
    token: int
    first_step: int
    steps: int


def make_produce(tiling: MixedInputTiling, decoder: Decoder, gated: bool, scale_tiles: ScaleTiles, pipeline):
    """The device function of the producer, one thread that keeps the stages full."""
    x_bytes, code_bytes, stages, load_scales = tiling.x_tile.bytes, decoder.code_bytes, tiling.stages, scale_tiles.load
    second_half, arrivals = x_bytes + tiling.rows * code_bytes // 2, x_bytes + tiling.rows * decoder.bytes_of_arrivals

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
    def produce(x_map, weight_map, scale_maps, ring, tile):
        """Load all steps in order; the first codes, which no kernel writes, before x is written."""
        first_steps = min(tile.steps, stages)
        for step in range(first_steps):
            load_codes(pipeline.stage(ring, pipeline.state(step)), weight_map, scale_maps, step, tile)
        ptx.griddepcontrol_wait()
        for step in range(first_steps):
            load_x(pipeline.stage(ring, pipeline.state(step)), x_map, step, tile)
        state = pipeline.state(stages)
        for step in range(stages, tile.steps):
            stage = pipeline.producer_acquire(ring, state)
            load_codes(stage, weight_map, scale_maps, step, tile)
            load_x(stage, x_map, step, tile)
            state = pipeline.advance(state)

    return produce


class Codes(NamedTuple):
    """A lane's data for decoding: the weight's arrays, its Lane, where its scales are, and those of a step as pairs of 16-bit floats."""

    weight: Any
    lane: Any  # the decoder's Lane
    elements: Any  # those of ScaleTiles
    pairs: Any


def make_consume(tiling: MixedInputTiling, dtype: str, decoder: Decoder, gated: bool, scale_tiles: ScaleTiles, pipeline):
    """The device function of a consumer, which leaves the sums of 64 rows of weight in shared memory."""
    rows, stage_words, code_words = tiling.rows, tiling.stage_bytes(decoder.row_bytes) // 4, decoder.code_bytes // 4
    x_words, make_pairs, elements_of = tiling.x_tile.bytes // 4, decoder.make_pairs(scale_tiles.read), scale_tiles.elements
    make_lane, load_ahead, decode = decoder.make_lane, decoder.load_ahead, decoder.decode
    k_groups, group_of, advance = tiling.k_groups, make_group_of(tiling), make_advance(tiling, pipeline)
    wgmma = make_wgmma(tiling.x_tile, dtype, halves=True)
    consumers, registers, pair_registers = tiling.warpgroups * THREADS, wgmma.registers, decoder.pairs
    leave_sums = make_leave_sums(tiling, registers)

    @cuda.jit(device=True, forceinline=True)
    def row_of(row, tile, last):
        """Return the row of weight for a row of the tile, at most `last`."""
        first = tile.second_row - rows // 2 if gated and row >= rows // 2 else tile.row
        return uint32(min(int32(first + row), last))

    @cuda.jit(device=True, forceinline=True)
    def decode_step(memory, line, ring, tile, state, step, codes, ahead, numbers):
        """numbers = the fragments of a step, once its stage is full.

        Return what is loaded ahead for the warpgroup's next step, still in flight.
        """
        following = load_ahead(codes.weight, codes.lane, tile.first_step + step + k_groups)
        pipeline.consumer_wait(ring, state)
        make_pairs(codes.weight, codes.lane, ahead, pipeline.stage(ring, state).tiles, codes.elements, codes.pairs)
        decode(memory, uint32(line + state.slot * stage_words), codes.lane, codes.pairs, numbers)
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
    def consume(memory, first_word, ring, tile, consumer, n, weight, table):
        """memory[first_word + token * (rows + PADDING) + row] = the sums of the tile's steps."""
        group, thread = group_of(consumer)
        row, last = (thread >> 5) * 16 + (thread >> 2 & 7), int32(n - 1)
        x = ptx.keep_register(wgmma.right(ring.stages))
        line = ptx.keep_register(uint32(first_word + x_words + row * code_words))
        lane = make_lane(weight, table, row_of(row, tile, last), row_of(row + 8, tile, last))
        codes = Codes(weight, lane, elements_of(row), cuda.local.array(pair_registers, uint32))
        sums = cuda.local.array(registers, float32)
        even, odd = cuda.local.array(FRAGMENTS, uint32), cuda.local.array(FRAGMENTS, uint32)
        for i in range(registers):
            sums[i] = 0
        state = pipeline.state(group)
        ahead = load_ahead(weight, lane, tile.first_step + group)
        if k_groups == 1 or group < tile.steps:  # with one step in the tile, the second warpgroup has none
            ahead = decode_step(memory, line, ring, tile, state, group, codes, ahead, even)
        for step in range(group, tile.steps, 2 * k_groups):
            state, ahead = multiply(memory, line, ring, tile, state, step, x, sums, even, codes, ahead, odd)
            if step + k_groups < tile.steps:
                state, ahead = multiply(memory, line, ring, tile, state, step + k_groups, x, sums, odd, codes, ahead, even)
        ptx.bar_sync(1, consumers)  # all tiles have been multiplied: the sums may overwrite them
        leave_sums(sums, memory, first_word, group, thread)

    return consume


@functools.cache
def mixed_input_kernel(tiling: MixedInputTiling, decoder: Decoder, dtype: str, gated: bool, together: int):
    """The kernel for x of `dtype` and weights in the format of `decoder`; gated and together as in flat_wgmma_kernel."""
    stage_bytes, barriers_at = tiling.stage_bytes(decoder.row_bytes), tiling.ring_bytes(decoder.row_bytes)
    pipeline = make_pipeline(tiling.stages, stage_bytes, tiling.warpgroups // tiling.k_groups, by_thread=True)
    scale_tiles = make_scale_tiles(decoder.scales, tiling, gated, decoder.code_bytes)
    produce = make_produce(tiling, decoder, gated, scale_tiles, pipeline)
    consume = make_consume(tiling, dtype, decoder, gated, scale_tiles, pipeline)
    halves, consumers, tokens = 2 if gated else 1, tiling.warpgroups * THREADS, tiling.tokens
    columns = tiling.rows // halves
    splits, two_consumers, table_bytes, fill_table = tiling.splits, tiling.warpgroups == 2, decoder.table_bytes, decoder.fill_table
    write = make_write(tiling.rows, splits * consumers, dtype, gated, together, make_added(splits, 1))

    @cuda.jit(device=True, forceinline=True)
    def place_of_block(m):
        """Return the block's (part of K, chunk of x, tile of outputs).

        The chunks of a tile run side by side, because they share the codes in L2. Unsigned numbers are divided in 32 bits.
        """
        block, chunks = uint32(cuda.blockIdx.x), uint32(uint32(m + tokens - 1) // uint32(tokens))
        number = uint32(block // uint32(splits))
        return int32(block % uint32(splits)), int32(number % chunks), int32(number // chunks)

    producer_registers, consumer_registers = 40, 232 if tiling.blocks == 1 else 96  # together all that the launch bounds leave to a block

    @kernel(launch_bounds=(tiling.threads, tiling.blocks), dependent_launch=True)
    def mixed_input_kernel(x_map, weight_map, scale_maps, weight, bias, out, steps):
        """x [M, K] in boxes [tokens, 64], codes [N, bytes] in boxes [rows, code_bytes] (gated: half the rows), scale_maps: ScaleMaps,
        weight: the arrays that lanes load, or None, bias [N] or None, out [M, N] or [M, N / 2]."""
        ptx.griddepcontrol_launch_dependents()
        memory = cuda.shared.array(0, float32, 1024)
        table = cuda.shared.array(table_bytes, uint8, 128)  # without a table (0 bytes) an unused alias of `memory`
        thread, m, n = int32(cuda.threadIdx.x), int32(out.shape[0]), int32(out.shape[1] * halves)
        first_stage = first_tile_address(memory)
        split, chunk, column = place_of_block(m)
        token, column, first_step = int32(chunk * tokens), int32(column * columns), int32(steps * split // splits)
        tile = Tile(column, int32(column + out.shape[1]), token, first_step, int32(steps * (split + 1) // splits - first_step))
        ring = pipeline.ring(first_stage, first_stage + barriers_at, 0)
        first_word = (first_stage - ptx.shared_address(memory, 0)) >> uint32(2)
        fill_table(table, weight)
        if thread == 0:
            pipeline.init(ring)
        cuda.syncthreads()
        if thread < THREADS:
            if two_consumers:
                ptx.setmaxnreg_dec(producer_registers)
            if thread == 0:
                produce(x_map, weight_map, scale_maps, ring, tile)
            if splits > 1:
                sync_blocks(splits)
        else:
            if two_consumers:
                ptx.setmaxnreg_inc(consumer_registers)
            consume(memory, first_word, ring, tile, int32(thread - THREADS), n, weight, table)
            if splits > 1:
                sync_blocks(splits)
            else:
                ptx.bar_sync(1, consumers)
            rows, writer = min(int32(tokens), int32(m - token)), int32(split * consumers + thread - THREADS)
            write(bias, None, None, out, memory, first_word, token, rows, column, writer)
        if splits > 1:  # a block must not exit while others may read its shared memory
            sync_blocks(splits)

    return mixed_input_kernel
