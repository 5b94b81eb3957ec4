"""The kernel of mixed-input GEMM: tiles of codes become 16 bits in registers, as wgmma's left operand.

    out[m, n] = sum over k of x[m, k] * w[n, k]  (+ bias[n])                          w: the dequantised weight, rounded to x's dtype
    gated:  out[m, n] = silu(gate[m, n]) * up[m, n]         gate and up: such sums with the first and the second half of weight's rows

A block computes 64 outputs per warpgroup for up to 256 rows of x (mainloop.py).

    few rows of x       A block computes one tile. If there are fewer tiles than SMs, `splits` blocks of a cluster divide K, and add their
                        sums as in flat_wgmma.py. With k_groups = 2 the two warpgroups of a block have the same 64 rows of weight and
                        divide K between them (k_groups.py). Sums pass through shared memory, in the place of the stages.
    many rows           The kernel is persistent: as many blocks as SMs, each with one tile after another. The producer loads the next
                        tile's first steps while outputs leave (epilogue.py).

2 M N K FLOPs. The codes are read once per 256 rows of x, and M K b bytes of x once per 128 rows of weight, or 64 with k_groups = 2, mostly
from L2: blocks that run together share both.
"""

import functools

from numba import cuda, float32, int32, uint8, uint32

from minllm import ptx
from minllm.kernels.matmul.flat.output import make_added, make_write
from minllm.kernels.matmul.quantized.mixed_input.epilogue import make_store_tile
from minllm.kernels.matmul.quantized.mixed_input.grid import make_grid_of_block, make_tile_at
from minllm.kernels.matmul.quantized.mixed_input.k_groups import make_leave_sums
from minllm.kernels.matmul.quantized.mixed_input.mainloop import Mainloop, make_consumer, make_mainloop, make_produce
from minllm.kernels.matmul.quantized.mixed_input.scales import make_scale_tiles
from minllm.kernels.matmul.quantized.mixed_input.tiling import MixedInputTiling
from minllm.kernels.quantization.decoder import TileDecoder
from minllm.runtime.kernel import kernel
from minllm.tiles.pipeline import make_pipeline
from minllm.tiles.shared import first_tile_address
from minllm.tiles.warpgroup import THREADS, sync_blocks, uniform, wait_for_blocks


def make_consume_one(tiling: MixedInputTiling, dtype: str, gated: bool, together: int, mainloop: Mainloop, pipeline, tile_at):
    """Return the device function with which the consumers multiply and write a block's only tile, with the other blocks of its cluster."""
    splits, tokens, consumers, registers = tiling.splits, tiling.tokens, tiling.warpgroups * THREADS, mainloop.registers
    consumer_of, leave_sums = make_consumer(tiling, gated), make_leave_sums(tiling, registers)
    write = make_write(tiling.rows, splits * consumers, dtype, gated, together, make_added(splits, 1))

    @cuda.jit(device=True, forceinline=True)
    def consume(memory, first_word, ring, staging, grid, thread, weight, table, bias, out, out_map):
        consumer, x, sums = consumer_of(thread), mainloop.x(ring), cuda.local.array(registers, float32)
        tile = tile_at(grid.first, grid)
        mainloop.multiply_tile(memory, first_word, ring, x, tile, consumer, pipeline.state(consumer.group), grid, weight, table, sums)
        ptx.bar_sync(1, consumers)  # all stages have been multiplied: the sums may overwrite them
        leave_sums(sums, memory, first_word, consumer.group, consumer.thread)
        if splits > 1:
            sync_blocks(splits)
        else:
            ptx.bar_sync(1, consumers)
        rows, writer = min(int32(tokens), int32(out.shape[0] - tile.token)), int32(grid.split * consumers + thread)
        write(bias, None, None, out, memory, first_word, tile.token, rows, tile.row, writer)

    return consume


def make_consume_all(tiling: MixedInputTiling, dtype: str, gated: bool, mainloop: Mainloop, pipeline, tile_at):
    """Return the device function with which a consumer multiplies and stores its rows of all tiles of a persistent block."""
    consumer_of, store_tile, registers = make_consumer(tiling, gated), make_store_tile(tiling, dtype, gated), mainloop.registers

    @cuda.jit(device=True, forceinline=True)
    def consume(memory, first_word, ring, staging, grid, thread, weight, table, bias, out, out_map):
        consumer, x, sums = consumer_of(thread), mainloop.x(ring), cuda.local.array(registers, float32)
        state, number, warpgroup = pipeline.state(0), grid.first, uniform(thread // THREADS)
        while number < grid.chunks * grid.columns:
            tile = tile_at(number, grid)
            state = mainloop.multiply_tile(memory, first_word, ring, x, tile, consumer, state, grid, weight, table, sums)
            store_tile(sums, bias, out_map, staging, tile.token, tile.row, warpgroup, thread % THREADS)
            number = int32(number + grid.stride)
        if thread % THREADS == 0:
            ptx.cp_async_bulk_wait_group_read_0()

    return consume


@functools.cache
def mixed_input_kernel(tiling: MixedInputTiling, decoder: TileDecoder, dtype: str, gated: bool, together: int):
    """The kernel for x of `dtype` and weights in the format of `decoder`; gated and together as in flat_wgmma_kernel."""
    ring_bytes, staging_bytes = tiling.ring_bytes(decoder.row_bytes), tiling.staging_bytes
    pipeline = make_pipeline(tiling.stages, tiling.stage_bytes(decoder.row_bytes), tiling.warpgroups // tiling.k_groups, by_thread=True)
    scale_tiles, tile_at = make_scale_tiles(decoder.scales, tiling, gated, decoder.code_bytes), make_tile_at(tiling, gated)
    produce = make_produce(tiling, decoder, gated, scale_tiles, pipeline, tile_at)
    mainloop = make_mainloop(tiling, dtype, decoder, gated, scale_tiles, pipeline)
    if tiling.batches:
        consume = make_consume_all(tiling, dtype, gated, mainloop, pipeline, tile_at)
    else:
        consume = make_consume_one(tiling, dtype, gated, together, mainloop, pipeline, tile_at)
    splits, two_consumers, table_bytes, fill_table = tiling.splits, tiling.warpgroups == 2, decoder.table.bytes, decoder.table.fill
    grid_of_block = make_grid_of_block(tiling, gated)
    producer_registers, consumer_registers = 40, 232 if tiling.blocks == 1 else 96  # together all that the launch bounds leave to a block

    @kernel(launch_bounds=(tiling.threads, tiling.blocks), dependent_launch=True)
    def mixed_input_kernel(x_map, weight_map, scale_maps, out_map, weight, bias, out, steps):
        """x [M, K] in boxes [tokens, 64], codes [N, bytes] in boxes [rows, code_bytes] (gated: half the rows), scale_maps: ScaleMaps,
        weight: the arrays that lanes load, or None, bias [N] or None, out [M, N] or [M, N / 2]; out_map: out in boxes [tokens of a batch,
        columns of a warpgroup] for a persistent kernel, else None."""
        ptx.griddepcontrol_launch_dependents()
        memory = cuda.shared.array(0, float32, 1024)
        table = cuda.shared.array(table_bytes, uint8, 128)  # without a table (0 bytes) an unused alias of `memory`
        thread, grid, first_stage = int32(cuda.threadIdx.x), grid_of_block(out, steps), first_tile_address(memory)
        staging = uint32(first_stage + ring_bytes)
        ring = pipeline.ring(first_stage, uint32(staging + staging_bytes), 0)
        first_word = (first_stage - ptx.shared_address(memory, 0)) >> uint32(2)
        fill_table(table, weight)
        if thread == 0:
            pipeline.init(ring)
        cuda.syncthreads()
        if thread < THREADS:
            if two_consumers:
                ptx.setmaxnreg_dec(producer_registers)
            if thread == 0:
                produce(x_map, weight_map, scale_maps, ring, grid)
        else:
            if two_consumers:
                ptx.setmaxnreg_inc(consumer_registers)
            consume(memory, first_word, ring, staging, grid, int32(thread - THREADS), weight, table, bias, out, out_map)
        # A block must not exit while others may read its shared memory. This is the consumers' second barrier, but the first one for the
        # producer's warpgroup, which counts as arrived at the second once it has exited.
        if splits > 1:
            wait_for_blocks()

    return mixed_input_kernel
