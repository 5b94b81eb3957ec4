"""GEMM on Hopper, second rung: a producer warp loads tiles while a consumer warpgroup multiplies those that have arrived.

    out[m, n] = sum over k of x[m, k] * weight[n, k]  (+ bias[n])          x and weight bfloat16 or float16, sums in float32

Work: 2 M N K FLOPs. Bytes: as in warpgroup.py; tiles, sums and plain stores are the same: 64 x 256 outputs per block, 51 FLOPs per byte,
mostly from L2. This kernel adds warp specialisation: the two parts of a step move to different warps, with a ring of four stages
between them (tiles/pipeline.py), each with room for a tile of x and one of weight.

    producer    One thread of the fifth warp. It waits until a stage is empty and starts the two TMA loads that fill it, so that it runs up
                to four steps ahead of the consumer.
    consumer    A warpgroup. It waits until a stage is full, multiplies its tiles with wgmma, and releases the stage.

The latency of a load is hidden as long as four steps of wgmma take longer than it. Two mbarriers per stage take the place of the block-wide
barrier of warpgroup.py: full and empty. wgmma.py adds to this a second consumer and a cluster, for fewer bytes per FLOP; the next
step's wgmma in flight while a stage is released; a persistent kernel, and an epilogue that stores by TMA during the next tile.

Recorded as "matmul" with variant warp_specialized: faster than warpgroup at 2048 cubed, level at 4096 cubed, slower at 8192 cubed. With
one block per SM, no other block fills its pauses, as the three blocks of warpgroup.py do for each other; wgmma.py does not need that.

Threads to data: 160 threads per block, one block per tile of out; 160 KB of shared memory, so one block per SM. Edges, and rows that TMA
cannot load: as in warpgroup.py.

Source: PTX ISA, "wgmma.mma_async", "cp.async.bulk.tensor", "mbarrier"; NVIDIA, CUTLASS, "Efficient GEMM in CUDA", section "Warp
Specialization".
"""

import functools

from numba import cuda, float32, int32, uint8

from minllm.kernels.matmul.ladder.warpgroup import STAGE_BYTES, WEIGHT, X, launch_tiles, make_sums
from minllm.kernels.matmul.ladder.warpgroup import why_not as why_not
from minllm.runtime.kernel import kernel
from minllm.tiles import tma, warpgroup
from minllm.tiles.pipeline import make_pipeline
from minllm.tiles.shared import ALIGNMENT, first_tile_address
from minllm.tiles.warp import WARP
from minllm.tiles.wgmma import make_wgmma

STAGES = 4
CONSUMER_THREADS = warpgroup.THREADS
THREADS = CONSUMER_THREADS + WARP  # the consumer, then the producer
PIPELINE = make_pipeline(STAGES, STAGE_BYTES, consumers=1)
SHARED_BYTES = PIPELINE.bytes + PIPELINE.barrier_bytes + ALIGNMENT


def make_produce():
    """The device function of the producer: one thread, which fills stage after stage."""
    pipeline, x_bytes, stage_bytes, depth = PIPELINE, X.bytes, STAGE_BYTES, X.columns

    @cuda.jit(device=True, forceinline=True)
    def produce(x_map, weight_map, ring, row, column, k_steps):
        state = pipeline.state(0)
        for step in range(k_steps):
            # exercise: matmul.producer
            stage = pipeline.producer_acquire(ring, state)  # empty: the consumer has released it, or it has not been filled yet
            pipeline.producer_expect(stage, stage_bytes)
            tma.load_2d(stage, 0, x_map, int32(step * depth), row)
            tma.load_2d(stage, x_bytes, weight_map, int32(step * depth), column)
            state = pipeline.advance(state)
            # end exercise

    return produce


def make_consume(dtype: str, paired: bool):
    """The device function of the consumer: a warpgroup, which multiplies stage after stage and stores the sums."""
    pipeline, x_bytes, wgmma = PIPELINE, X.bytes, make_wgmma(WEIGHT, dtype, left=X)
    registers = wgmma.registers
    begin_sums, store_sums = make_sums(registers, dtype, paired)

    @cuda.jit(device=True, forceinline=True)
    def consume(bias, out, ring, row, column, k_steps, thread):
        sums = cuda.local.array(registers, float32)  # this thread's part of [64, 256]
        begin_sums(sums, bias, column, thread)
        state = pipeline.state(0)
        for _ in range(k_steps):
            pipeline.consumer_wait(ring, state)  # full: both tiles have arrived
            tiles = pipeline.stage(ring, state).tiles
            wgmma.multiply(sums, wgmma.left(tiles), wgmma.right(tiles + x_bytes), 1)
            wgmma.wait(sums)
            pipeline.consumer_release(ring, state)
            state = pipeline.advance(state)
        store_sums(sums, out, row, column, thread)

    return consume


@functools.cache
def warp_specialized_kernel(dtype: str, paired: bool):
    """The kernel for x and weight of `dtype`; paired: out is of `dtype` and its rows begin on multiples of 4 bytes."""
    pipeline, rows, columns = PIPELINE, X.rows, WEIGHT.rows
    produce, consume = make_produce(), make_consume(dtype, paired)

    @kernel(launch_bounds=(THREADS, 1))
    def matmul_warp_specialized_kernel(x_map, weight_map, bias, out, k_steps):
        """x [M, K] in boxes [64, 64], weight [N, K] in boxes [256, 64], bias [N] or None, out [M, N]."""
        row, column, thread = int32(cuda.blockIdx.y * rows), int32(cuda.blockIdx.x * columns), int32(cuda.threadIdx.x)
        first_stage = first_tile_address(cuda.shared.array(0, uint8, 1024))
        ring = pipeline.ring(first_stage, first_stage + pipeline.bytes, 0)
        if thread == 0:
            pipeline.init(ring)
        cuda.syncthreads()
        if thread == CONSUMER_THREADS:
            produce(x_map, weight_map, ring, row, column, k_steps)
        elif thread < CONSUMER_THREADS:
            consume(bias, out, ring, row, column, k_steps, thread)

    return matmul_warp_specialized_kernel


def matmul_warp_specialized(x, weight, out, bias=None, stream=None) -> None:
    """Write x @ weight.T + bias into `out`: x [M, K], weight [N, K], bias [N], out [M, N].

    x and weight are float16 or bfloat16; out and bias are of that dtype or float32. Raises KernelArgumentError if shapes or dtypes do not
    fit (see `check_arguments`).
    """
    launch_tiles(warp_specialized_kernel, THREADS, SHARED_BYTES, x, weight, out, bias, stream)
