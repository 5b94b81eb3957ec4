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

Speed: docs/results, "matmul" with variant wgmma. Any M, N and K: TMA loads zeros from beyond the edges and stores nothing there. If rows of
x or weight do not begin on 16 bytes, TMA cannot load them, and tensor_core takes over. Every run gives the same bits.

Source: PTX ISA, "wgmma.mma_async", "cp.async.bulk.tensor", "mbarrier", "setmaxnreg"; NVIDIA, "CUTLASS: Efficient GEMM in CUDA".
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, int32, uint8, uint32

from minllm import ptx
from minllm.kernels.arguments import ceil_div, check_array, rows_begin_on
from minllm.kernels.matmul import VARIANTS
from minllm.kernels.matmul.arguments import HALF_DTYPES, check_arguments, check_gated_arguments, has_wgmma
from minllm.kernels.matmul.output_tiles import make_tile_order
from minllm.kernels.matmul.wgmma.epilogue import Output, make_epilogue
from minllm.kernels.matmul.wgmma.tiling import TILE_K, WgmmaTiling, choose_tiling
from minllm.runtime.array_protocol import Array
from minllm.runtime.device import current_device
from minllm.runtime.kernel import check, kernel, launch
from minllm.runtime.tensor_map import tensor_map
from minllm.tiles import tma, warpgroup
from minllm.tiles.pipeline import Pipeline, PipelineState, make_pipeline
from minllm.tiles.shared import first_tile_address, make_clear_rows
from minllm.tiles.warpgroup import ROWS, THREADS
from minllm.tiles.wgmma import make_wgmma

CODES = ("float8_e4m3fn", "int8")
SIMULATED_SMS = 4  # few, so that blocks compute several tiles


class Grid(NamedTuple):
    """The tiles of out, and how each is computed: in k_steps steps, with consumer_rows rows of x per consumer."""

    tiles_m: int
    tiles_n: int
    k_steps: int
    consumer_rows: int


def make_corner(tiling: WgmmaTiling, gated: bool):
    """The device function corner(number, grid, rank, consumer).

    It returns the first (row, column) of out of a consumer's part of the number-th tile of its cluster.
    """
    consumers, cluster, columns = tiling.consumers, tiling.cluster, tiling.columns(gated)
    tile_at = make_tile_order(tiling.group)

    @cuda.jit(device=True, forceinline=True)
    def corner(number, grid, rank, consumer):
        tile_row, tile_column = tile_at(number, grid.tiles_m, grid.tiles_n)
        return int32(((tile_row * cluster + rank) * consumers + consumer) * grid.consumer_rows), int32(tile_column * columns)

    return corner


def make_produce(tiling: WgmmaTiling, gated: bool, pipeline: Pipeline):
    """The device function of the producer: one thread, which loads all tiles of a block as far ahead as the pipeline has stages."""
    consumers, cluster, early, stages = tiling.consumers, tiling.cluster, tiling.early, tiling.stages
    x_bytes, half_bytes, half = tiling.x_tile.bytes, tiling.weight_tile.bytes // 2, tiling.tile_n // 2
    weight_bytes, consumer_bytes, row_bytes, all_blocks = 2 * half_bytes, x_bytes // consumers, tiling.x_tile.swizzle, (1 << cluster) - 1
    corner = make_corner(tiling, gated)

    @cuda.jit(device=True, forceinline=True)
    def expect(stage, grid):
        """Let the stage become full once the bytes of both tiles have arrived."""
        pipeline.producer_expect(stage, weight_bytes + (consumers * grid.consumer_rows * row_bytes if early else x_bytes))

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

    @cuda.jit(device=True, forceinline=True)
    def load_x(stage, x_map, k, row, grid):
        """Load x [tile_m, 64]; if x has few rows, one box per consumer, because 64 rows would reach beyond x's end."""
        tma.load_2d(stage, 0, x_map, k, row)
        if early and consumers == 2:
            tma.load_2d(stage, consumer_bytes, x_map, k, row + grid.consumer_rows)

    @cuda.jit(device=True, forceinline=True)
    def load_first_ring(x_map, weight_map, ring, grid, n, rank):
        """Fill the stages for the first tile, weights before the wait for the kernel that computes x; returns the number of steps."""
        row, column = corner(int32(cuda.blockIdx.x // cluster), grid, rank, 0)
        steps = int32(min(grid.k_steps, stages))
        for step in range(steps):
            stage = pipeline.stage(ring, PipelineState(uint32(step), uint32(0)))
            expect(stage, grid)
            load_weight(stage, weight_map, int32(step * TILE_K), column, n, rank)
        ptx.griddepcontrol_wait()
        for step in range(steps):
            load_x(pipeline.stage(ring, PipelineState(uint32(step), uint32(0))), x_map, int32(step * TILE_K), row, grid)
        return steps

    @cuda.jit(device=True, forceinline=True)
    def produce(x_map, weight_map, ring, grid, n):
        rank = int32(ptx.cluster_ctarank())
        state, done = pipeline.state(0), int32(0)
        if early:
            done = load_first_ring(x_map, weight_map, ring, grid, n, rank)
            state = pipeline.state(done)
        else:
            ptx.fence_proxy_tensormap_acquire(x_map)
            ptx.fence_proxy_tensormap_acquire(weight_map)
        number = int32(cuda.blockIdx.x // cluster)
        while number < grid.tiles_m * grid.tiles_n:
            row, column = corner(number, grid, rank, 0)
            for step in range(done, grid.k_steps):
                k = int32(step * TILE_K)
                stage = pipeline.producer_acquire(ring, state)
                expect(stage, grid)
                if early:  # weight comes from HBM, and is loaded first
                    load_weight(stage, weight_map, k, column, n, rank)
                load_x(stage, x_map, k, row, grid)
                if not early:
                    load_weight(stage, weight_map, k, column, n, rank)
                state = pipeline.advance(state)
            number, done = int32(number + cuda.gridDim.x // cluster), int32(0)

    return produce


def make_consume(tiling: WgmmaTiling, dtype: str, gated: bool, pipeline: Pipeline, epilogue):
    """The device function of a consumer: a warpgroup that computes its 64 rows of every tile of a block, and stores them."""
    cluster, early, staging_bytes = tiling.cluster, tiling.early, tiling.staging_bytes
    x_bytes, row_bytes = tiling.x_tile.bytes, tiling.x_tile.swizzle
    wgmma = make_wgmma(tiling.weight_tile, dtype, left=tiling.x_tile, halves=True)
    registers, sum_type = wgmma.registers, wgmma.sum_type
    clear_rows = make_clear_rows(tiling.stages, tiling.stage_bytes, row_bytes, THREADS, 1)
    corner = make_corner(tiling, gated)

    @cuda.jit(device=True, forceinline=True)
    def settle(out_map, memory, ring, grid, consumer, thread):
        """Prepare the first wgmma: clear the rows that are not loaded, and wait for the kernel that writes x."""
        if early:
            if grid.consumer_rows < ROWS:
                start = ring.stages - ptx.shared_address(memory, 0) + consumer * ROWS * row_bytes
                clear_rows(memory, start + grid.consumer_rows * row_bytes, ROWS - grid.consumer_rows, thread)
                warpgroup.sync(1 + consumer)
            ptx.griddepcontrol_wait()
        elif out_map is not None:
            ptx.fence_proxy_tensormap_acquire(out_map)

    @cuda.jit(device=True, forceinline=True)
    def consume(output, memory, ring, staging, grid, thread):
        consumer, thread = warpgroup.uniform((thread >> 7) - 1), thread & 127
        x = ptx.keep_register(wgmma.left(ring.stages + consumer * ROWS * row_bytes))
        weight = ptx.keep_register(wgmma.right(ring.stages + x_bytes))
        ring = pipeline.keep(ring)
        settle(output.map, memory, ring, grid, consumer, thread)
        sums = cuda.local.array(registers, sum_type)
        rank = int32(ptx.cluster_ctarank())
        state = previous = pipeline.state(0)
        number = int32(cuda.blockIdx.x // cluster)
        while number < grid.tiles_m * grid.tiles_n:
            row, column = corner(number, grid, rank, consumer)
            for step in range(grid.k_steps):
                pipeline.consumer_wait(ring, state)
                wgmma.multiply(sums, pipeline.operand(x, state), pipeline.operand(weight, state), step)
                ptx.wgmma_wait_group_1()  # the previous step is complete, this one is in flight
                if step > 0:
                    pipeline.consumer_release(ring, previous)
                previous, state = state, pipeline.advance(state)
            epilogue.make_room(consumer, thread)
            wgmma.wait(sums)
            pipeline.consumer_release(ring, previous)
            epilogue.store(sums, output, uint32(staging + consumer * staging_bytes), row, grid.consumer_rows, column, consumer, thread)
            number = int32(number + cuda.gridDim.x // cluster)
        if thread == 0:
            epilogue.finish()

    return consume


@functools.cache
def wgmma_kernel(tiling: WgmmaTiling, dtype: str, gated: bool, copied: bool, pairs: str | None, consumer=None):
    """The kernel for x and weight of `dtype`.

    dtype: bfloat16 or float16; or that of 8-bit codes, float8_e4m3fn or int8, with scales on the sums. gated: out = silu(gate) * up of the
    two halves of weight's rows. copied: outputs leave by TMA. pairs: the dtype of out if its rows begin on multiples of two elements, which
    one store then takes together; None otherwise. consumer: a factory of consumers that apply scales of codes themselves, in place of
    make_consume.
    """
    tiling.check(gated)
    consumers, cluster, threads, early = tiling.consumers, tiling.cluster, tiling.threads, tiling.early
    staging_bytes, columns = consumers * tiling.staging_bytes, tiling.columns(gated)  # columns of out that a cluster computes at a time
    pipeline = make_pipeline(tiling.stages, tiling.stage_bytes, consumers, sharers=cluster)
    ring_bytes, make_ring, init_barriers = pipeline.bytes, pipeline.ring, pipeline.init
    produce = make_produce(tiling, gated, pipeline)
    epilogue = make_epilogue(tiling, gated, copied, pairs, dtype in CODES and consumer is None)
    consume = (consumer or make_consume)(tiling, dtype, gated, pipeline, epilogue)

    @kernel(launch_bounds=(threads, 1), dependent_launch=early)
    def matmul_wgmma_kernel(x_map, weight_map, out_map, bias, residual, x_scales, scales, out, k_steps, few_rows):
        """x [M, K] in boxes [tile_m, 64], weight [N, K] in boxes [tile_n / 2, 64], out [M, N], out_map in boxes [64, 64] or None.

        8-bit codes come in pairs, K pairs for 2 K codes, with x_scales [M] and scales [N], or those that `consumer` applies; else None.
        If early, a consumer has `few_rows` rows of a tile: boxes of x are [few_rows, 64], those of out [few_rows, chunk_columns].
        """
        if early:
            ptx.griddepcontrol_launch_dependents()
        memory = cuda.shared.array(0, uint8, 1024)
        thread = int32(cuda.threadIdx.x)
        first_stage = first_tile_address(memory)
        staging = uint32(first_stage + ring_bytes)
        ring = make_ring(first_stage, uint32(staging + staging_bytes), 0)
        consumer_rows = int32(few_rows if early else ROWS)
        rows = int32(consumer_rows * consumers * cluster)  # rows of out that a cluster computes at a time
        tiles_m, tiles_n = int32((out.shape[0] + rows - 1) // rows), int32((out.shape[1] + columns - 1) // columns)
        grid = Grid(tiles_m, tiles_n, k_steps, consumer_rows)
        if thread == 0:
            init_barriers(ring)
        warpgroup.sync_blocks(cluster)
        if thread >> 7 == 0:
            if consumers == 2:
                ptx.setmaxnreg_dec(40)
            if thread == 0:
                produce(x_map, weight_map, ring, grid, int32(out.shape[1]))
        else:
            if consumers == 2:
                ptx.setmaxnreg_inc(232)
            consume(Output(out, out_map, bias, residual, x_scales, scales), memory, ring, staging, grid, thread)
        warpgroup.sync_blocks(cluster)  # a block must not exit while the other may still copy to its shared memory

    return matmul_wgmma_kernel


def fits(x, weight) -> bool:
    """Whether TMA can load tiles of x and weight: their rows begin on multiples of 16 bytes."""
    return rows_begin_on(16, x, weight)


class Scales(NamedTuple):
    """The dtype of 8-bit codes, and the scales of their sums."""

    dtype: str
    x: Array  # float32 [M], or as the consumer takes them
    weight: Array  # float32 [N], gated [2 N], or as the consumer takes them
    consumer: Any = None  # see wgmma_kernel


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
    dtype, x_scales, weight_scales, consumer = scales or Scales(x.dtype.name, None, None)
    chosen = wgmma_kernel(tiling, dtype, gated, copied, pairs, consumer)
    x_map, weight_map = tensor_map(x, (each if tiling.early else tiling.tile_m, TILE_K)), tensor_map(weight, (tiling.tile_n // 2, TILE_K))
    out_map = tensor_map(out, (each, tiling.chunk_columns), swizzle=2 * tiling.chunk_columns) if copied else None
    arguments = (x_map, weight_map, out_map, bias, residual, x_scales, weight_scales, out, ceil_div(k, TILE_K), each)
    cluster = None if tiling.cluster == 1 else (tiling.cluster, 1, 1)
    launch(chosen, clusters * tiling.cluster, tiling.threads, arguments, stream, tiling.shared_bytes, cluster)


def matmul_wgmma(x, weight, out, bias=None, stream=None, tiling: WgmmaTiling | None = None, residual=None) -> None:
    """Write x @ weight.T + bias + residual into `out`: x [M, K], weight [N, K], bias [N], out and residual [M, N].

    x and weight are float16 or bfloat16; out, bias and residual are of that dtype or float32. If rows of x or weight do not begin on
    multiples of 16 bytes (see `fits`), tensor_core takes over; it takes no residual.

    `tiling` overrides the choice by shape. Raises KernelArgumentError if shapes or dtypes do not fit (see `check_arguments`), and on a GPU
    of a compute capability other than 9.0.
    """
    m, n, _ = check_arguments(x, weight, out, bias, HALF_DTYPES)
    if residual is not None:
        check_array("residual", residual, (x.dtype, np.dtype(np.float32)), M=m, N=n)
    if m == 0 or n == 0:
        return
    if fits(x, weight):
        run(x, weight, out, bias, residual, stream, tiling, gated=False)
    else:
        check(residual is None, f"x is {x.dtype} {list(x.shape)}; for a residual its rows must begin on multiples of 16 bytes")
        VARIANTS.fallback("wgmma")(x, weight, out, bias, stream)


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
