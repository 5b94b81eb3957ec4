"""Flat GEMM of Hopper: TMA streams weights through a pipeline in shared memory, and wgmma multiplies them from there.

    out[m, n] = sum over k of x[m, k] * weight[n, k]  (+ bias[n])          M <= 256, x and weight bfloat16 or float16

A block owns 64 rows of weight for each of its warpgroups. One thread, the producer, loads tiles of 64 columns by TMA, as far ahead as the
pipeline has stages; the warpgroups multiply m64nNk16, N being the rows of x (tokens) padded to a multiple of 8. A stage costs one load of
weight, one of x (as many rows as there are: tiles/shared.py), and four wgmma, so nothing but memory's speed is left to wait for.

If a matrix has few rows, `splits` blocks of a cluster divide K (split-K): each leaves its sums in shared memory, and all read each other's
there, always in the same order. With many tokens, tiles of x cost as much of L2's bandwidth as weights do; then `sharers` blocks of a
cluster each load a part of x's tile for all of them (multicast).

The kernel starts before its predecessor has ended (programmatic dependent launch): the first ring of weights, which nobody writes, is
then loaded while x is still being computed.

Source: PTX ISA, "cp.async.bulk.tensor", "wgmma.mma_async", "mapa"; K. Hong et al., "FlashDecoding++", section 4.
"""

import functools
from typing import NamedTuple

from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.kernels.matmul.flat.output import make_keep_sums, make_write
from minllm.kernels.matmul.flat.wgmma_tiling import TILE_K, FlatWgmmaTiling
from minllm.runtime.kernel import kernel
from minllm.tiles import tma
from minllm.tiles.pipeline import Pipeline, PipelineState, make_pipeline
from minllm.tiles.shared import SharedTile, first_tile_address, make_clear_rows
from minllm.tiles.warpgroup import ROWS, THREADS, sync_blocks
from minllm.tiles.wgmma import make_wgmma


class Share(NamedTuple):
    """A block's part of the work: steps of K, rows of weight (gated: and those of what the gate multiplies), m rows of x."""

    first_step: int
    steps: int
    row: int
    second_row: int
    m: int
    sharer: int
    blocks: int  # bit mask of the cluster's blocks that share x


def make_produce(tokens: int, tiling: FlatWgmmaTiling, gated: bool, pipeline: Pipeline):
    """The device functions of the producer, one thread: fill the ring with weights, then with x, then keep it full."""
    stages, sharers = tiling.stages, tiling.sharers
    weight_tile, x_part = SharedTile(tiling.rows, TILE_K), SharedTile(tokens // sharers, TILE_K)
    weight_bytes, row_bytes, part_rows, part_bytes = weight_tile.bytes, weight_tile.swizzle, x_part.rows, x_part.bytes

    @cuda.jit(device=True, forceinline=True)
    def load_weight(stage, weight_map, step, share):
        """Columns of one step of `rows` rows: neighbours, or half of them of the gate and half of what it gates."""
        pipeline.producer_expect(stage, weight_bytes + (share.m if sharers == 1 else tokens) * row_bytes)
        tma.load_2d(stage, 0, weight_map, (share.first_step + step) * TILE_K, share.row)
        if gated:
            tma.load_2d(stage, weight_bytes // 2, weight_map, (share.first_step + step) * TILE_K, share.second_row)

    @cuda.jit(device=True, forceinline=True)
    def load_x(stage, x_map, step, share):
        """Columns of one step of all tokens: each of the blocks that share them loads its part, for all."""
        if sharers == 1:
            tma.load_2d(stage, weight_bytes, x_map, (share.first_step + step) * TILE_K, 0)
        else:
            first, at = int32(share.sharer * part_rows), uint32(weight_bytes + share.sharer * part_bytes)
            tma.load_2d_multicast(stage, at, x_map, (share.first_step + step) * TILE_K, first, share.blocks)

    @cuda.jit(device=True, forceinline=True)
    def begin(weight_map, ring, share):
        """Make the barriers and start the first loads of weights, which no kernel writes."""
        pipeline.init(ring)
        for step in range(min(share.steps, stages)):
            load_weight(pipeline.stage(ring, PipelineState(uint32(step), uint32(0))), weight_map, step, share)

    @cuda.jit(device=True, forceinline=True)
    def produce(x_map, weight_map, ring, share):
        """x for the first stages once it is written, and then both for every stage that has become empty."""
        ptx.griddepcontrol_wait()
        for step in range(min(share.steps, stages)):
            load_x(pipeline.stage(ring, PipelineState(uint32(step), uint32(0))), x_map, step, share)
        state, step = pipeline.state(stages), int32(stages)
        while step < share.steps:
            stage = pipeline.producer_acquire(ring, state)
            load_weight(stage, weight_map, step, share)
            load_x(stage, x_map, step, share)
            state, step = pipeline.advance(state), int32(step + 1)

    return begin, produce


def make_consume(tokens: int, tiling: FlatWgmmaTiling, dtype: str, pipeline: Pipeline):
    """The device function of a consumer, a warpgroup: the sums of 64 rows of weight for all tokens, left in shared memory."""
    consumers, sharers = tiling.warpgroups * THREADS, tiling.sharers
    weight_tile, x_tile = SharedTile(tiling.rows, TILE_K), SharedTile(tokens, TILE_K)
    weight_bytes, row_bytes = weight_tile.bytes, weight_tile.swizzle
    keep_sums = make_keep_sums(tiling.rows, tokens // 8)
    clear_rows = make_clear_rows(tiling.stages, tiling.stage_bytes(tokens), row_bytes, consumers, 4)
    wgmma = make_wgmma(x_tile, dtype, left=weight_tile)  # weight takes the 64-row side, x the side that is a multiple of 8
    registers = wgmma.registers

    @cuda.jit(device=True, forceinline=True)
    def consume(memory, sums_at, ring, share, thread):
        """memory[sums_at + token * (rows + PADDING) + row] = the sums of this block's part of K."""
        weight, x = wgmma.left(ring.stages + (thread >> 7) * ROWS * row_bytes), wgmma.right(ring.stages + weight_bytes)
        sums = cuda.local.array(registers, float32)
        for i in range(registers):
            sums[i] = 0.0
        if sharers == 1 and share.m < tokens:
            clear_rows(memory, 4 * sums_at + weight_bytes + share.m * row_bytes, tokens - share.m, thread)
            ptx.bar_sync(1, consumers)
        state = previous = pipeline.state(0)
        for step in range(share.steps):
            pipeline.consumer_wait(ring, state)
            wgmma.multiply(sums, pipeline.operand(weight, state), pipeline.operand(x, state), 1)
            ptx.wgmma_wait_group_1()  # the step before is complete, this one is in flight
            if step > 0:
                pipeline.consumer_release(ring, previous)
            previous, state = state, pipeline.advance(state)
        wgmma.wait(sums)
        ptx.bar_sync(1, consumers)  # all tiles have been multiplied: the sums may lie in their place
        keep_sums(sums, 0, memory, sums_at, (thread >> 5) * 16, thread & 31)

    return consume


def make_added(splits: int, sharers: int):
    """The device function that adds four neighbouring sums over the blocks of a cluster that divide K."""

    @cuda.jit(device=True, forceinline=True)
    def added(sums, start, place):
        if splits == 1:
            return ptx.load_float32(sums, start + place)
        address, sharer = ptx.shared_address(sums, start + place), ptx.cluster_ctarank() % uint32(sharers)
        a, b, c, d = float32(0.0), float32(0.0), float32(0.0), float32(0.0)
        for split in range(splits):
            e, f, g, h = ptx.ld_shared_cluster_v4_f32(ptx.mapa(address, split * sharers + sharer))
            a, b, c, d = a + e, b + f, c + g, d + h
        return a, b, c, d

    return added


@functools.cache
def flat_wgmma_kernel(tokens: int, tiling: FlatWgmmaTiling, dtype: str, gated: bool, together: int):
    """The kernel for x and weight of `dtype` and up to `tokens` rows of x, a multiple of 8.

    gated: out = silu(gate) * up of the two halves of weight's rows. together: outputs stored at a time, as `stored_together` says.
    """
    tiling.check(tokens)
    splits, sharers, consumers = tiling.splits, tiling.sharers, tiling.warpgroups * THREADS
    cluster, all_sharers = splits * sharers, (1 << sharers) - 1
    columns = tiling.rows // 2 if gated else tiling.rows
    pipeline = make_pipeline(tiling.stages, tiling.stage_bytes(tokens), tiling.warpgroups, sharers=sharers)
    ring_bytes = max(pipeline.bytes, tiling.sums_bytes(tokens))
    begin, produce = make_produce(tokens, tiling, gated, pipeline)
    consume = make_consume(tokens, tiling, dtype, pipeline)
    write = make_write(tiling.rows, splits * consumers, dtype, gated, together, make_added(splits, sharers))

    @kernel(launch_bounds=(tiling.threads, 1), dependent_launch=True)
    def matmul_flat_wgmma_kernel(x_map, weight_map, bias, out, k_steps):
        """x [M, K] in boxes [tokens, 64], weight [N, K] in boxes [rows, 64] (gated: half the rows), out [M, N] or [M, N / 2]."""
        ptx.griddepcontrol_launch_dependents()
        memory = cuda.shared.array(0, float32, 1024)
        thread = int32(cuda.threadIdx.x)
        first_stage = first_tile_address(memory)
        rank = int32(cuda.blockIdx.x % cluster)
        split, sharer = rank // sharers, rank % sharers
        ring = pipeline.ring(first_stage, first_stage + ring_bytes, split * sharers)
        tile = int32(cuda.blockIdx.x // cluster * sharers + sharer)
        first_step = int32(k_steps * split // splits)
        steps = int32(k_steps * (split + 1) // splits - first_step)
        column, m = int32(tile * columns), int32(out.shape[0])
        share = Share(first_step, steps, column, int32(column + out.shape[1]), m, sharer, all_sharers << (split * sharers))
        if thread == consumers:
            begin(weight_map, ring, share)
        sync_blocks(sharers)
        sums_at = uint32((first_stage - ptx.shared_address(memory, 0)) >> uint32(2))
        if thread < consumers:
            consume(memory, sums_at, ring, share, thread)
        elif thread == consumers:
            produce(x_map, weight_map, ring, share)
        sync_blocks(cluster)
        if thread < consumers:
            write(bias, out, memory, sums_at, 0, m, column, split * consumers + thread)
        if splits > 1:  # a block's shared memory has to stay while others may read it
            sync_blocks(splits)

    return matmul_flat_wgmma_kernel
