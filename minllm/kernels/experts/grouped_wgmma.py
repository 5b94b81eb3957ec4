"""Grouped GEMM on Hopper for prompts: TMA loads tiles, wgmma multiplies them; see grouped_gemm.py for the equations and the grid.

A block owns 64 rows of one expert's weight for each of its warpgroups, and up to 128 pairs at a time. One thread, the producer, loads tiles
of 64 columns of weight and x by TMA into a ring; the warpgroups multiply m64nNk16. TMA loads neighbouring rows, so x is in the order of
experts already (gather_rows.py): rows beyond the expert's pairs are those of the next expert, and their outputs are not stored.

An expert's pairs rarely fill their last tile. N is therefore the smallest of 32, 64 and 128 that holds them, and no more rows of x are
loaded: with 128 pairs per expert on average a tile of 128 alone would multiply half as many rows again as there are.

Sums pass through shared memory, where gate and up meet, as in the flat GEMM, and are the same bits as those of grouped_gemm.py: one
accumulator, in ascending order of k.

Source: PTX ISA, "wgmma.mma_async", "cp.async.bulk.tensor"; kernels/matmul/flat/flat_wgmma.py (weight on the side of 64 rows).
"""

import functools

from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.kernels.arguments import ceil_div
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.experts.grouped_gemm import check_grouped, make_write_pairs
from minllm.kernels.matmul.flat.output import make_keep_sums, stored_together
from minllm.kernels.matmul.flat.wgmma_tiling import LINE_BYTES, TILE_K, FlatWgmmaTiling
from minllm.runtime.kernel import kernel, launch
from minllm.runtime.tensor_map import tensor_map
from minllm.tiles import tma
from minllm.tiles.pipeline import make_pipeline
from minllm.tiles.shared import SharedTile, first_tile_address
from minllm.tiles.warpgroup import ROWS, THREADS
from minllm.tiles.wgmma import make_wgmma

TOKENS, PIECE = 128, 32  # most pairs of a tile, and rows of x per TMA load
TILING = FlatWgmmaTiling(warpgroups=4, stages=4)
FEWEST_PAIRS = 64  # per expert on average: fewer leave most of a tile empty, and reading the weights is the time


def make_multiply(n: int, rows: int, dtype: str, pipeline, weight_bytes: int, consumers: int):
    """The device function of a warpgroup: writes the sums of its 64 rows of weight for n pairs to shared memory."""
    weight_tile, x_tile = SharedTile(rows, TILE_K), SharedTile(n, TILE_K)
    wgmma, keep_sums = make_wgmma(x_tile, dtype, left=weight_tile), make_keep_sums(rows, n // 8)
    registers = wgmma.registers

    @cuda.jit(device=True, forceinline=True)
    def multiply(memory, sums_at, ring, steps, done, thread):
        """done: steps of earlier tiles."""
        weight = wgmma.left(ring.stages + (thread >> 7) * ROWS * LINE_BYTES)
        x = wgmma.right(ring.stages + weight_bytes)
        sums = cuda.local.array(registers, float32)
        for i in range(registers):
            sums[i] = 0
        state = previous = pipeline.state(done)
        for step in range(steps):
            pipeline.consumer_wait(ring, state)
            wgmma.multiply(sums, pipeline.operand(weight, state), pipeline.operand(x, state), 1)
            ptx.wgmma_wait_group_1()  # the previous step is complete, this one is in flight
            if step > 0:
                pipeline.consumer_release(ring, previous)
            previous, state = state, pipeline.advance(state)
        wgmma.wait(sums)
        pipeline.consumer_release(ring, previous)
        ptx.bar_sync(1, consumers)  # all tiles have been multiplied: the sums may overwrite them
        keep_sums(sums, 0, memory, sums_at, (thread >> 5) * 16, thread & 31)

    return multiply


@functools.cache
def grouped_wgmma_kernel(tiling: FlatWgmmaTiling, dtype: str, gated: bool, together: int):
    """The kernel for x and weight of `dtype`; gated: out = silu(gate) * up. together: outputs per store, see `stored_together`."""
    tiling.check(TOKENS)
    rows, consumers = tiling.rows, tiling.warpgroups * THREADS
    half = rows // 2 if gated else rows  # columns of out
    weight_bytes, piece_bytes = rows * LINE_BYTES, PIECE * LINE_BYTES
    pipeline = make_pipeline(tiling.stages, tiling.stage_bytes(TOKENS), tiling.warpgroups)
    ring_bytes = max(pipeline.bytes, tiling.sums_bytes(TOKENS))
    multiply_32, multiply_64, multiply_128 = (make_multiply(n, rows, dtype, pipeline, weight_bytes, consumers) for n in (32, 64, 128))
    write = make_write_pairs(rows, consumers, dtype, gated, together)

    @cuda.jit(device=True, forceinline=True)
    def pieces_of(count):
        """Loads of x that hold `count` pairs in a tile of 32, 64 or 128."""
        return int32(1) if count <= 32 else int32(2) if count <= 64 else int32(4)

    @cuda.jit(device=True, forceinline=True)
    def produce(x_map, weight_map, ring, row, second_row, first, count, steps, done):
        """Load all steps of a tile, as far ahead as stages are empty."""
        pieces, state = pieces_of(count), pipeline.state(done)
        for step in range(steps):
            stage = pipeline.producer_acquire(ring, state)
            pipeline.producer_expect(stage, weight_bytes + pieces * piece_bytes)
            tma.load_2d(stage, 0, weight_map, int32(step * TILE_K), row)
            if gated:
                tma.load_2d(stage, weight_bytes // 2, weight_map, int32(step * TILE_K), second_row)
            for piece in range(pieces):
                at = uint32(weight_bytes + piece * piece_bytes)
                tma.load_2d(stage, at, x_map, int32(step * TILE_K), int32(first + piece * PIECE))
            state = pipeline.advance(state)

    @cuda.jit(device=True, forceinline=True)
    def consume(memory, sums_at, ring, count, steps, done, thread):
        """The sums of `count` pairs, in shared memory."""
        if count <= 32:
            multiply_32(memory, sums_at, ring, steps, done, thread)
        elif count <= 64:
            multiply_64(memory, sums_at, ring, steps, done, thread)
        else:
            multiply_128(memory, sums_at, ring, steps, done, thread)

    @kernel(launch_bounds=(tiling.threads, 1), dependent_launch=True)
    def grouped_wgmma_kernel(x_map, weight_map, pairs, offsets, out, steps):
        """x [P, K] in boxes [32, 64], weight [E * N, K] in boxes [rows, 64] (gated: half the rows), pairs [P], offsets [E + 1],
        out [P, N / 2 or N]; grid: columns, experts, strides."""
        wait_for_predecessors()
        memory = cuda.shared.array(0, float32, 1024)
        thread, expert = int32(cuda.threadIdx.x), int32(cuda.blockIdx.y)
        end = offsets[expert + 1]
        first = int32(offsets[expert] + cuda.blockIdx.z * TOKENS)
        first_column, columns, done = int32(cuda.blockIdx.x) * half, int32(out.shape[1]), int32(0)
        row = int32(expert * (2 * columns if gated else columns) + first_column)
        first_stage = first_tile_address(memory)
        ring = pipeline.ring(first_stage, first_stage + ring_bytes, 0)
        sums_at = uint32((first_stage - ptx.shared_address(memory, 0)) >> uint32(2))
        if first < end and thread == consumers:
            pipeline.init(ring)
        cuda.syncthreads()
        while first < end:
            count = min(int32(end - first), TOKENS)
            if thread == consumers:
                produce(x_map, weight_map, ring, row, int32(row + columns), first, count, steps, done)
            elif thread < consumers:
                consume(memory, sums_at, ring, count, steps, done, thread)
                ptx.bar_sync(1, consumers)
                write(out, pairs, memory, sums_at, first, count, first_column, thread)
            first, done = int32(first + cuda.gridDim.z * TOKENS), int32(done + steps)
            ptx.fence_proxy_async()  # the next tile's loads overwrite the sums
            cuda.syncthreads()

    return grouped_wgmma_kernel


def takes(pairs: int, experts: int) -> bool:
    """Whether this number of pairs is worth the kernel."""
    return pairs >= FEWEST_PAIRS * experts


def wgmma_gate_up(x, pairs, offsets, gate_up, out, stream=None, tiling: FlatWgmmaTiling | None = None) -> None:
    """Write silu(gate_e x[p]) * (up_e x[p]) of the pairs p into `out` [P, I]: grouped_gate_up for x [P, H] in the order of experts."""
    check_grouped(x, pairs, offsets, gate_up, out, 2 * out.shape[1])
    launch_wgmma(x, pairs, offsets, gate_up, out, True, stream, tiling or TILING)


def wgmma_down(activated, pairs, offsets, down, out, stream=None, tiling: FlatWgmmaTiling | None = None) -> None:
    """Write down_e activated[p] of the pairs p into `out` [P, H], in the order of tokens: grouped_down."""
    check_grouped(activated, pairs, offsets, down, out, out.shape[1])
    launch_wgmma(activated, pairs, offsets, down, out, False, stream, tiling or TILING)


def launch_wgmma(x, pairs, offsets, weight, out, gated: bool, stream, tiling: FlatWgmmaTiling) -> None:
    """Launch for checked arrays."""
    rows, count, experts = tiling.rows // 2 if gated else tiling.rows, pairs.shape[0], offsets.shape[0] - 1
    x_map, weight_map = tensor_map(x, (PIECE, TILE_K)), tensor_map(weight, (rows, TILE_K))
    grid = (ceil_div(out.shape[1], rows), experts, ceil_div(2 * count, experts * TOKENS))
    chosen = grouped_wgmma_kernel(tiling, x.dtype.name, gated, stored_together(out, x.dtype))
    arguments = (x_map, weight_map, pairs, offsets, out, ceil_div(x.shape[1], TILE_K))
    launch(chosen, grid, tiling.threads, arguments, stream, tiling.shared_bytes(TOKENS))
