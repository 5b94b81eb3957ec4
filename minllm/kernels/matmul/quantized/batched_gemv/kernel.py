"""The kernel of the batched GEMV: codes by TMA, x in shared memory, sums to the block of the cluster that writes them.

A warp multiplies 16 rows of weight by all tokens, over its part of K: the blocks of a cluster divide K, because a block that had all of it
would read all of x, and x would come from L2 as often as there are blocks; `splits` warps of a block divide the block's part. What a warp
needs of a tile is a stage of its ring (codes.py). It empties the stage into registers, starts the loads of a later tile in its place, and
multiplies meanwhile.

The sums of a tile are sent to the block that owns its rows, and meet there in the order of their parts, whichever comes first: two runs
give the same bits. A block writes the outputs of a tile after it has multiplied the next one, so that no warp waits for the cluster.

2 M N K FLOPs on N K / 2 bytes of codes, besides M K b bytes of x for the clusters that run at a time.

Source: PTX ISA, "mma", "barrier.cluster", "st" (.shared::cluster).
"""

import functools

from numba import cuda, float32, int32, uint8, uint32

from minllm import ptx
from minllm.kernels.matmul.quantized.batched_gemv.codes import CODE_WORDS, make_load_codes, make_ring
from minllm.kernels.matmul.quantized.batched_gemv.decoder import Decoder
from minllm.kernels.matmul.quantized.batched_gemv.outputs import Outputs
from minllm.kernels.matmul.quantized.batched_gemv.products import make_multiply_step
from minllm.kernels.matmul.quantized.batched_gemv.scales import make_scales
from minllm.kernels.matmul.quantized.batched_gemv.sums import make_finish, make_send
from minllm.kernels.matmul.quantized.batched_gemv.tiling import INPUTS, PAIRS, BatchedGemvTiling
from minllm.kernels.matmul.quantized.batched_gemv.x import make_load_x, make_sum_x
from minllm.runtime.kernel import kernel
from minllm.tiles.unrolled import unrolled

AT_A_TIME = 4  # steps whose codes a lane holds


def make_multiply_steps(tiling: BatchedGemvTiling, decoder: Decoder, dtype: str, steps: int, first_sum: int, first: int, count: int):
    """The device functions (load, multiply) of `count` of a warp's steps from `first` on, whose codes are held together."""
    load_codes, multiply = make_load_codes(tiling, steps, decoder.groups), make_multiply_step(tiling, decoder, dtype, steps, first_sum)

    @cuda.jit(device=True, forceinline=True)
    def load_step(u, memory, stage, codes):
        load_codes(memory, stage, first + u, codes, u * CODE_WORDS)

    @cuda.jit(device=True, forceinline=True)
    def multiply_step(u, memory, decoding, codes, values, first_step, total):
        multiply(memory, decoding, codes, u * CODE_WORDS, values, first + u, int32(first_step + first + u), total)

    return unrolled(load_step, count), unrolled(multiply_step, count)


@functools.cache
def batched_gemv_kernel(tiling: BatchedGemvTiling, decoder: Decoder, outputs: Outputs, dtype: str, k: int):
    """The kernel for x of `dtype` with rows of k numbers, and weights that `decoder` knows."""
    steps, groups, table_bytes, has_sums, rows_of = k // INPUTS, decoder.groups, decoder.table_bytes, decoder.has_sums, outputs.rows_of
    (_, splits, cluster, ahead, _, _), sums_of_block, registers, tiles_of_cluster = tiling, tiling.sums, tiling.tokens // 2, tiling.tiles
    steps_of_warp, steps_of_block, two_buffers = tiling.steps_of_warp(steps), tiling.steps_of_block(steps), 2 * tiling.sums
    (begin_ring, start, wait), scales, barrier_words = make_ring(tiling, steps), make_scales(tiling, decoder, steps), 2 * tiling.warps * ahead
    load_x, (sum_x, first_sum) = (
        make_load_x(tiling, k, steps, groups, decoder.pair_of_x), make_sum_x(tiling, steps, groups, decoder.pair, dtype)
    )  # fmt: skip
    first_steps, is_two = min(steps_of_warp, AT_A_TIME), steps_of_warp > AT_A_TIME
    of_steps = functools.partial(make_multiply_steps, tiling, decoder, dtype, steps, first_sum)
    load_first, multiply_first = of_steps(0, first_steps)
    load_second, multiply_second = of_steps(first_steps, max(1, steps_of_warp - first_steps))
    code_words, scale_words, scale_values = first_steps * CODE_WORDS, scales.words, scales.values
    send, finish = make_send(tiling), make_finish(tiling, outputs, decoder.unit)

    @cuda.jit(device=True, forceinline=True)
    def rows_of_tile(weight, tile, n):
        """The lane's Rows of a tile."""
        low, high = rows_of(int32(tile * PAIRS + (int32(cuda.threadIdx.x) >> 2 & 7)), n)
        return scales.rows(weight, uint32(low), uint32(high))

    @cuda.jit(device=True, forceinline=True)
    def start_tile(ring, weight_map, tile, n, step, stage):
        """Start the loads of the warp's part of a tile."""
        low, high = rows_of(int32(tile * PAIRS), n)
        start(ring, weight_map, low, high, step, stage)

    @kernel(launch_bounds=(tiling.threads, tiling.blocks), dependent_launch=True)
    def batched_gemv_kernel(x, weight_map, weight, bias, out, n, pairs):
        """x [M, K], codes as [steps, n, 64 bytes] in boxes [steps of a warp, 8, 64], weight [n, K]: the decoder's arrays, bias [n] or None,
        out [M, n] or [M, n / 2]; pairs: of rows of weight."""
        ptx.griddepcontrol_launch_dependents()
        ptx.barrier_cluster_arrive()  # the blocks of the cluster have begun: their shared memory may be written
        memory, barriers = cuda.shared.array(0, uint32, 128), cuda.shared.array(barrier_words, uint32, 8)
        table = cuda.shared.array(table_bytes, uint8, 128)  # of a format without a table the memory above: nothing touches it
        sums = cuda.shared.array(two_buffers, float32)
        warp, rank = int32(int32(cuda.threadIdx.x) >> 5), int32(ptx.cluster_ctarank())
        tile_of_warp, split = int32(uint32(warp) // uint32(splits)), int32(uint32(warp) % uint32(splits))
        codes, words = cuda.local.array(code_words, uint32), cuda.local.array(scale_words, uint32)
        values, total = cuda.local.array(scale_values, float32), cuda.local.array(registers, float32)
        tiles, stride = int32((pairs + PAIRS - 1) >> 3), int32(uint32(cuda.gridDim.x) // uint32(cluster) * uint32(tiles_of_cluster))
        first_tile, local = int32(uint32(cuda.blockIdx.x) // uint32(cluster) * uint32(tiles_of_cluster)), int32(split * steps_of_warp)
        first_step = int32(rank * steps_of_block + local)
        ring = begin_ring(memory, barriers)
        for i in range(ahead):
            if first_tile + i * stride < tiles:
                start_tile(ring, weight_map, int32(first_tile + i * stride + tile_of_warp), n, first_step, i)
        rows = rows_of_tile(weight, int32(first_tile + tile_of_warp), n)
        scales.load(weight, rows, first_step, words)
        decoding = decoder.begin_block(table, weight)
        ptx.griddepcontrol_wait()
        load_x(x, rank, memory)
        cuda.syncthreads()
        if has_sums:
            sum_x(memory, decoding)
            cuda.syncthreads()
        buffer, tile_before, stage, phase = int32(0), int32(-1), int32(0), int32(0)
        while first_tile < tiles:
            following, later = int32(first_tile + stride), int32(first_tile + ahead * stride)
            next_rows = rows_of_tile(weight, int32(following + tile_of_warp), n)
            for i in range(registers):
                total[i] = float32(0)
            scales.convert(decoding, rows, words, values)
            scales.load(weight, next_rows, first_step, words)
            wait(ring, stage, phase)
            load_first(memory, stage, codes)
            if is_two:
                multiply_first(memory, decoding, codes, values, local, total)
                load_second(memory, stage, codes)
            if later < tiles:
                start_tile(ring, weight_map, int32(later + tile_of_warp), n, first_step, stage)
            if is_two:
                multiply_second(memory, decoding, codes, values, local, total)
            else:
                multiply_first(memory, decoding, codes, values, local, total)
            ptx.barrier_cluster_wait()
            if tile_before >= 0:
                finish(sums, int32(sums_of_block - buffer), bias, out, rank, tile_before, pairs)
            send(sums, buffer, total, rank, split, tile_of_warp)
            ptx.barrier_cluster_arrive()
            stage = int32(stage + 1)
            if stage == ahead:
                stage, phase = int32(0), int32(phase ^ 1)
            tile_before, first_tile, buffer, rows = first_tile, following, int32(sums_of_block - buffer), next_rows
        ptx.barrier_cluster_wait()
        finish(sums, int32(sums_of_block - buffer), bias, out, rank, tile_before, pairs)

    return batched_gemv_kernel
