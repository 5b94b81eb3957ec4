"""GEMM on Hopper, last rung: TMA and tensor cores run asynchronously; threads only issue their instructions.

    out[m, n] = sum over k of x[m, k] * weight[n, k]  (+ bias[n])  (+ residual[m, n])          x and weight bfloat16 or float16
    out[m, n] = silu(gate[m, n]) * up[m, n]           gate and up: x times the first and the second half of weight's rows

A block reads (128 + 256) 64 elements per step for 2 * 128 * 256 * 64 FLOPs: 85 FLOPs per byte from L2. What makes it fast:

    warp specialisation   One thread, the producer, loads tiles by TMA into a ring of stages (tiles/pipeline.py). Two consumer warpgroups
                          multiply them with wgmma, 64 rows each, the sums in registers. setmaxnreg gives the producer's registers to them.
    in flight             A consumer starts a step's wgmma, then waits for those of the step before: the tensor cores have work while it
                          releases a stage and waits for the next. Its loop has some 35 instructions for 4 wgmma; with 60, among them
                          addresses that the compiler computes again, the tensor cores were idle 8 % of the time instead of 1 %.
    persistent kernel     As many blocks as SMs, each with one tile after another, in an order that shares L2 (output_tiles.py): the
                          producer loads the next tile's first steps while the consumers write this one.
    epilogue              Bias, residual or the gate are applied to sums in registers, which leave by TMA while the next tile is
                          multiplied (epilogue.py). For the gate a tile of weight is half gate and half up rows, so a thread has both
                          sums of an output.
    clusters              Two blocks share every tile of weight, each loading half of it for both (multicast).
    few rows              Up to 256 rows of x, loading weight takes longer than multiplying. Tiles may be narrower (tiling.py), x's rows are
                          divided evenly among consumers in boxes that end where x ends, and blocks start before the preceding kernel has
                          ended (programmatic dependent launch): the first ring of weights, which no kernel writes, is loaded by the
                          time that x is written.

Speed: docs/results, "matmul" with variant wgmma. Any M, N and K: TMA loads zeros from beyond the edges and stores nothing there. Rows of x
and weight must begin on 16 bytes; the table (variants.py) passes others to tensor_core. Every run gives the same bits.

Source: PTX ISA, "wgmma.mma_async", "cp.async.bulk.tensor", "mbarrier", "setmaxnreg"; NVIDIA, "CUTLASS: Efficient GEMM in CUDA".
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint8, uint32

from minllm import ptx
from minllm.kernels.arguments import ceil_div, check_array, rows_begin_on
from minllm.kernels.matmul.arguments import HALF_DTYPES, check_arguments, check_gated_arguments, has_wgmma, why_not
from minllm.kernels.matmul.output_tiles import make_tile_order
from minllm.kernels.matmul.wgmma.epilogue import Output, make_store
from minllm.kernels.matmul.wgmma.tiling import TILE_K, WgmmaTiling, choose_tiling
from minllm.runtime.array_protocol import Array
from minllm.runtime.device import current_device
from minllm.runtime.kernel import check, kernel, launch
from minllm.runtime.tensor_map import tensor_map
from minllm.tiles import tma, warpgroup
from minllm.tiles.pipeline import PipelineState, make_pipeline
from minllm.tiles.shared import first_tile_address, make_clear_rows
from minllm.tiles.warpgroup import ROWS, THREADS, WARP_ROWS
from minllm.tiles.wgmma import make_wgmma

CODES = ("float8_e4m3fn", "int8")
SIMULATED_SMS = 4  # few, so that blocks compute several tiles


def make_loads(tiling: WgmmaTiling, gated: bool):
    """(load_x, load_weight), device functions of the producer, for one step of a tile of out."""
    consumers, cluster, early = tiling.consumers, tiling.cluster, tiling.early
    x_bytes, half_bytes, half, all_blocks = tiling.x_tile.bytes, tiling.weight_tile.bytes // 2, tiling.tile_n // 2, (1 << cluster) - 1
    consumer_bytes = x_bytes // consumers

    @cuda.jit(device=True, forceinline=True)
    def load_x(stage, x_map, k, row, consumer_rows):
        """Load x [tile_m, 64]; if x has few rows, one box per consumer, because 64 rows would reach beyond x's end."""
        tma.load_2d(stage, 0, x_map, k, row)
        if early and consumers == 2:
            tma.load_2d(stage, consumer_bytes, x_map, k, row + consumer_rows)

    @cuda.jit(device=True, forceinline=True)
    def load_weight(stage, weight_map, k, column, n, rank):
        """Load two boxes of weight [tile_n / 2, 64]: neighbours, or gate and up. Each block of a cluster loads one for both."""
        second = int32(column + (n if gated else half))
        if cluster == 1:
            tma.load_2d(stage, x_bytes, weight_map, k, column)
            tma.load_2d(stage, x_bytes + half_bytes, weight_map, k, second)
        elif rank == 0:
            tma.load_2d_multicast(stage, x_bytes, weight_map, k, column, all_blocks)
        else:
            tma.load_2d_multicast(stage, x_bytes + half_bytes, weight_map, k, second, all_blocks)

    return load_x, load_weight


@cuda.jit(device=True, forceinline=True)
def acquire(tensor_map):
    """Make the tensor map that the host wrote visible; None for float32 outputs, which are stored from registers."""
    if tensor_map is not None:
        ptx.fence_proxy_tensormap_acquire(tensor_map)


@functools.cache
def wgmma_kernel(tiling: WgmmaTiling, dtype: str, gated: bool, copied: bool, pairs: str | None, make_promotion=None):
    """The kernel for x and weight of `dtype`.

    dtype: bfloat16 or float16; or that of 8-bit codes, float8_e4m3fn or int8, with scales on the sums. gated: out = silu(gate) * up of the
    two halves of weight's rows. copied: outputs leave by TMA. pairs: the dtype of out if its rows begin on multiples of two elements, which
    one store then takes together; None otherwise. make_promotion: of two-level accumulation (quantized/fp8_block_wgmma.py): the factory of
    the device functions that scale each step's sums and add them to those in float32; None to let tensor cores accumulate.
    """
    tiling.check(gated)
    consumers, cluster, stages, threads, early = tiling.consumers, tiling.cluster, tiling.stages, tiling.threads, tiling.early
    columns, staging_bytes, x_bytes, row_bytes = tiling.columns(gated), tiling.staging_bytes, tiling.x_tile.bytes, tiling.x_tile.swizzle
    stage_bytes, weight_bytes = tiling.stage_bytes, tiling.weight_tile.bytes
    pipeline = make_pipeline(stages, stage_bytes, consumers, sharers=cluster)
    wgmma = make_wgmma(tiling.weight_tile, dtype, left=tiling.x_tile, halves=True)
    registers, sum_type, two_levels = wgmma.registers, wgmma.sum_type, make_promotion is not None
    parts, load_scales, add = make_promotion(tiling, gated) if make_promotion else (0, None, None)
    tile_at, clear_rows = make_tile_order(tiling.group), make_clear_rows(stages, stage_bytes, row_bytes, THREADS, 1)
    load_x, load_weight = make_loads(tiling, gated)
    make_room, store = make_store(tiling, gated, copied, pairs, dtype in CODES and not two_levels)

    @cuda.jit(device=True, forceinline=True)
    def corner(number, tiles_m, tiles_n, consumer_rows, rank, consumer):
        """The first (row, column) of out of a consumer's part of the number-th tile of its cluster."""
        tile_row, tile_column = tile_at(number, tiles_m, tiles_n)
        return int32(((tile_row * cluster + rank) * consumers + consumer) * consumer_rows), int32(tile_column * columns)

    @kernel(launch_bounds=(threads, 1), dependent_launch=early)
    def matmul_wgmma_kernel(x_map, weight_map, out_map, bias, residual, x_scales, scales, out, k_steps, few_rows):
        """x [M, K] in boxes [tile_m, 64], weight [N, K] in boxes [tile_n / 2, 64], out [M, N], out_map in boxes [64, 64] or None.

        8-bit codes come in pairs, K pairs for 2 K codes, with x_scales [M] and scales [N], or those of two-level accumulation; else None.
        If early, a consumer has `few_rows` rows of a tile: boxes of x are [few_rows, 64], those of out [few_rows, chunk_columns].
        """
        # Shared memory: the stages, outputs on their way, and the barriers.
        if early:
            ptx.griddepcontrol_launch_dependents()
        memory = cuda.shared.array(0, uint8, 1024)
        thread = int32(cuda.threadIdx.x)
        first_stage = first_tile_address(memory)
        staging = uint32(first_stage + pipeline.bytes)
        ring = pipeline.ring(first_stage, uint32(staging + consumers * staging_bytes), 0)
        if thread == 0:
            pipeline.init(ring)
        # The tiles of out: a cluster computes one after another.
        consumer_rows = int32(few_rows if early else ROWS)
        rows = int32(consumer_rows * consumers * cluster)  # rows of out that a cluster computes at a time
        tiles_m, tiles_n = int32((out.shape[0] + rows - 1) // rows), int32((out.shape[1] + columns - 1) // columns)
        warpgroup.sync_blocks(cluster)
        if thread >> 7 == 0:
            if consumers == 2:
                ptx.setmaxnreg_dec(40)
            # The producer: one thread, which loads all tiles of its block as far ahead as the pipeline has stages.
            if thread == 0:
                rank, n, state, done = int32(ptx.cluster_ctarank()), int32(out.shape[1]), pipeline.state(0), int32(0)
                number = int32(cuda.blockIdx.x // cluster)
                bytes_of_step = int32(weight_bytes + (consumers * consumer_rows * row_bytes if early else x_bytes))
                # The first ring: weights before the wait for the kernel that computes x.
                if early:
                    row, column = corner(number, tiles_m, tiles_n, consumer_rows, rank, 0)
                    done = int32(min(k_steps, stages))
                    for step in range(done):
                        stage = pipeline.stage(ring, PipelineState(uint32(step), uint32(0)))
                        pipeline.producer_expect(stage, bytes_of_step)
                        load_weight(stage, weight_map, int32(step * TILE_K), column, n, rank)
                    ptx.griddepcontrol_wait()
                    for step in range(done):
                        stage = pipeline.stage(ring, PipelineState(uint32(step), uint32(0)))
                        load_x(stage, x_map, int32(step * TILE_K), row, consumer_rows)
                    state = pipeline.state(done)
                else:
                    acquire(x_map)
                    acquire(weight_map)
                while number < tiles_m * tiles_n:
                    row, column = corner(number, tiles_m, tiles_n, consumer_rows, rank, 0)
                    for step in range(done, k_steps):
                        k, stage = int32(step * TILE_K), pipeline.producer_acquire(ring, state)
                        pipeline.producer_expect(stage, bytes_of_step)
                        if early:  # weight comes from HBM, and is loaded first
                            load_weight(stage, weight_map, k, column, n, rank)
                        load_x(stage, x_map, k, row, consumer_rows)
                        if not early:
                            load_weight(stage, weight_map, k, column, n, rank)
                        state = pipeline.advance(state)
                    number, done = int32(number + cuda.gridDim.x // cluster), int32(0)
        else:
            if consumers == 2:
                ptx.setmaxnreg_inc(232)
            # A consumer: a warpgroup, which computes its 64 rows of every tile of its block, and stores them.
            consumer, thread = warpgroup.uniform((thread >> 7) - 1), thread & 127
            first_byte, before = ring.stages - ptx.shared_address(memory, 0), consumer * ROWS * row_bytes
            x = ptx.keep_register(wgmma.left(ring.stages + before))
            weight = ptx.keep_register(wgmma.right(ring.stages + x_bytes))
            ring = pipeline.keep(ring)
            output = Output(out, out_map, bias, residual, x_scales, scales)
            # Before the first step: clear the rows that are not loaded, and wait for the kernel that writes x.
            if early:
                if consumer_rows < ROWS:
                    clear_rows(memory, first_byte + before + consumer_rows * row_bytes, ROWS - consumer_rows, thread)
                    warpgroup.sync(1 + consumer)
                ptx.griddepcontrol_wait()
            else:
                acquire(out_map)
            sums = cuda.local.array(registers, sum_type)
            if two_levels:
                of_step = cuda.local.array(registers, float32)
                of_rows, next_of_rows = cuda.local.array(2, float32), cuda.local.array(2, float32)
                of_columns, next_of_columns = cuda.local.array(parts, float32), cuda.local.array(parts, float32)
            rank = int32(ptx.cluster_ctarank())
            state = previous = pipeline.state(0)
            number = int32(cuda.blockIdx.x // cluster)
            while number < tiles_m * tiles_n:
                row, column = corner(number, tiles_m, tiles_n, consumer_rows, rank, consumer)
                if two_levels:
                    # Each step's sums are complete before they are added; the scales of the next step are loaded meanwhile.
                    lane_row = row + (thread >> 5) * WARP_ROWS + (thread >> 2 & 7)
                    load_scales(output, lane_row, column, 0, next_of_rows, next_of_columns)
                    for i in range(registers):
                        sums[i] = float32(0)
                    for step in range(k_steps):
                        for i in range(2):
                            of_rows[i] = next_of_rows[i]
                        for i in range(parts):
                            of_columns[i] = next_of_columns[i]
                        pipeline.consumer_wait(ring, state)
                        wgmma.multiply(of_step, pipeline.operand(x, state), pipeline.operand(weight, state), 0)
                        load_scales(output, lane_row, column, step + 1, next_of_rows, next_of_columns)
                        wgmma.wait(of_step)
                        pipeline.consumer_release(ring, state)
                        add(sums, of_step, of_rows, of_columns)
                        state = pipeline.advance(state)
                    make_room(consumer, thread)
                else:
                    # One step's wgmma is in flight while the stage of the step before is released.
                    for step in range(k_steps):
                        pipeline.consumer_wait(ring, state)
                        wgmma.multiply(sums, pipeline.operand(x, state), pipeline.operand(weight, state), step)
                        ptx.wgmma_wait_group_1()  # the previous step is complete, this one is in flight
                        if step > 0:
                            pipeline.consumer_release(ring, previous)
                        previous, state = state, pipeline.advance(state)
                    make_room(consumer, thread)
                    wgmma.wait(sums)
                    pipeline.consumer_release(ring, previous)
                # The epilogue: outputs leave while the next tile is multiplied.
                store(sums, output, uint32(staging + consumer * staging_bytes), row, consumer_rows, column, consumer, thread)
                number = int32(number + cuda.gridDim.x // cluster)
            if copied:
                if thread == 0:
                    ptx.cp_async_bulk_wait_group_read_0()
        warpgroup.sync_blocks(cluster)  # a block must not exit while the other may still copy to its shared memory

    return matmul_wgmma_kernel


def fits(x, weight) -> bool:
    """Whether TMA can load tiles of x and weight: their rows begin on multiples of 16 bytes."""
    return rows_begin_on(16, x, weight)


class Scales(NamedTuple):
    """The dtype of 8-bit codes, and the scales of their sums."""

    dtype: str
    x: Array  # float32 [M]
    weight: Array  # float32 [N], gated [2 N]; or as two-level accumulation takes them, as x is
    make_promotion: Any = None  # see wgmma_kernel


def run(x, weight, out, bias, residual, stream, tiling, gated, scales: Scales | None = None) -> None:
    """Launch for checked arrays; with `scales`, x and weight are pairs of 8-bit codes as uint16."""
    (m, n), k, on_host = out.shape, x.shape[1], isinstance(x, np.ndarray)
    check(has_wgmma(x), "the variant wgmma needs a GPU of compute capability 9.0; choose tensor_core, or let the shape choose")
    sms = SIMULATED_SMS if on_host else current_device().sm_count
    tiling = tiling or choose_tiling(m, n, gated, sms)
    copied = out.dtype in HALF_DTYPES and rows_begin_on(16, out)
    pairs = out.dtype.name if rows_begin_on(2 * out.dtype.itemsize, out) else None
    rows = ceil_div(m, tiling.tile_m * tiling.cluster)  # rows of tiles, and of clusters
    clusters = min(rows * ceil_div(n, tiling.columns(gated)), sms // tiling.cluster)
    each = ceil_div(m, rows * tiling.cluster * tiling.consumers) if tiling.early else ROWS  # rows of x per consumer
    dtype, x_scales, weight_scales, make_promotion = scales or Scales(x.dtype.name, None, None)
    chosen = wgmma_kernel(tiling, dtype, gated, copied, pairs, make_promotion)
    x_map, weight_map = tensor_map(x, (each if tiling.early else tiling.tile_m, TILE_K)), tensor_map(weight, (tiling.tile_n // 2, TILE_K))
    out_map = tensor_map(out, (each, tiling.chunk_columns), swizzle=2 * tiling.chunk_columns) if copied else None
    arguments = (x_map, weight_map, out_map, bias, residual, x_scales, weight_scales, out, ceil_div(k, TILE_K), each)
    cluster = None if tiling.cluster == 1 else (tiling.cluster, 1, 1)
    launch(chosen, clusters * tiling.cluster, tiling.threads, arguments, stream, tiling.shared_bytes, cluster)


def matmul_wgmma(x, weight, out, bias=None, stream=None, tiling: WgmmaTiling | None = None, residual=None) -> None:
    """Write x @ weight.T + bias + residual into `out`: x [M, K], weight [N, K], bias [N], out and residual [M, N].

    x and weight are float16 or bfloat16; out, bias and residual are of that dtype or float32. `tiling` overrides the choice
    by shape. Raises KernelArgumentError if shapes or dtypes do not fit (see `check_arguments`), if rows of x or weight do not begin on
    multiples of 16 bytes (VARIANTS["wgmma"] then runs tensor_core), and on a GPU of a compute capability other than 9.0.
    """
    m, n, _ = check_arguments(x, weight, out, bias, HALF_DTYPES)
    if residual is not None:
        check_array("residual", residual, (x.dtype, np.dtype(np.float32)), M=m, N=n)
    if m == 0 or n == 0:
        return
    given = f"x is {x.dtype} {list(x.shape)};" + (" for a residual" if residual is not None else "")
    check(why_not(x, weight) is None, f"{given} {why_not(x, weight)}")
    run(x, weight, out, bias, residual, stream, tiling, gated=False)


def matmul_silu_and_multiply(x, gate_up, out, stream=None, tiling: WgmmaTiling | None = None) -> None:
    """Write silu(x @ gate.T) * (x @ up.T) into `out`: x [M, K], gate_up [2 I, K], the gate's rows first, out [M, I].

    Gate and up are not rounded before they are multiplied. All arrays share one dtype, float16 or bfloat16. Raises KernelArgumentError if
    shapes or dtypes do not fit, if rows of x or gate_up do not begin on multiples of 16 bytes, and on a GPU without wgmma.
    """
    check_gated_arguments(x, gate_up, out, HALF_DTYPES)
    if 0 in out.shape:
        return
    check(fits(x, gate_up), f"x is {x.dtype} {list(x.shape)}; its rows and those of gate_up must begin on multiples of 16 bytes")
    run(x, gate_up, out, None, None, stream, tiling, gated=True)
