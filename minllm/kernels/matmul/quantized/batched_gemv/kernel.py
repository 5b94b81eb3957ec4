"""The kernel of the batched GEMV: codes in registers, x in shared memory, sums exchanged in a cluster.

A warp multiplies 16 rows of weight by all tokens, over its part of K. The blocks of a cluster divide K, because a block with all of K would
read all of x; `splits` warps of a block divide the block's part. A warp's share of a tile is one or more chunks of `unroll` steps; a step
is 128 inputs, 1 KB of codes. As soon as a step has been multiplied, the next one is loaded into its registers, also across tiles.

The sums of a tile are sent to the block that owns its rows, and added there in the order of their parts, whichever arrives first: two runs
give the same bits. A warp of the block writes the outputs of a tile after it has multiplied its part of the next one (sums.py).

2 M N K FLOPs on N K / 2 bytes of codes, and M K b bytes of x per cluster that runs at a time.

Source: PTX ISA, "mma", "barrier.cluster".
"""

import functools

from numba import cuda, float32, int32, uint8, uint32

from minllm import ptx
from minllm.kernels.matmul.quantized.batched_gemv.loads import CODE_WORDS, make_loads
from minllm.kernels.matmul.quantized.batched_gemv.multiply_step import make_multiply_step
from minllm.kernels.matmul.quantized.batched_gemv.sums import BUFFERS, Outputs, make_begin, make_finish, make_send
from minllm.kernels.matmul.quantized.batched_gemv.tiling import INPUTS, BatchedGemvTiling
from minllm.kernels.matmul.quantized.batched_gemv.x import first_sum, make_load_x, x_bytes
from minllm.kernels.matmul.quantized.row_pairs import PAIRS
from minllm.kernels.quantization.decoder import BatchedDecoder
from minllm.runtime.kernel import kernel
from minllm.tiles.unrolled import unrolled


def dynamic_bytes(tiling: BatchedGemvTiling, steps: int, groups: int) -> int:
    """Return the dynamic shared memory of a block in bytes: its part of x, then the buffers of sums.

    Both are dynamic since static arrays are at most 48 KB.
    """
    return x_bytes(tiling, steps, groups) + BUFFERS * 4 * tiling.sums


@functools.cache
def batched_gemv_kernel(tiling: BatchedGemvTiling, decoder: BatchedDecoder, outputs: Outputs, dtype: str, k: int):
    """The kernel for x of `dtype` with rows of k numbers, and weights in the format of `decoder`."""
    steps, groups, table_bytes = k // INPUTS, decoder.groups, decoder.table.bytes
    chunks, steps_of_block, tiles_of_cluster = tiling.chunks(steps), tiling.steps_of_block(steps), tiling.tiles
    (warps, splits, cluster, unroll, _, _), registers = tiling, tiling.tokens // 2
    loads, stride_of_chunk = make_loads(tiling, decoder, steps), tiling.unroll * tiling.splits
    load_x, multiply = make_load_x(tiling, decoder, k, dtype), make_multiply_step(tiling, decoder, dtype, first_sum(tiling, steps))
    begin, barrier_words, buffers_at = make_begin(tiling), 4 * BUFFERS, x_bytes(tiling, steps, groups) // 4
    send, finish = make_send(tiling, buffers_at), make_finish(tiling, outputs, decoder.unit, buffers_at)
    code_words, scale_words, scale_values = loads.code_words, loads.scale_words, loads.scale_values
    load_codes, rows_of, fill_table, decoding_of = loads.codes, outputs.rows_of, decoder.table.fill, decoder.table.decoding
    # Without a fence ptxas moves the loads of all steps behind the mma.sync of the last one, which is better only for int4 and 16 tokens.
    loads_stay = tiling.tokens == 8 or table_bytes > 0

    @cuda.jit(device=True, forceinline=True)
    def multiply_step(u, memory, decoding, weight, codes, values, local, total, goes_on, next_places, next_first):
        """Multiply the u-th step in flight, and load the step that takes its registers."""
        multiply(memory, decoding, codes, u * CODE_WORDS, values, u, int32(local + u * splits), total)
        if goes_on:
            load_codes(u, weight.codes, next_places, next_first, codes)
        if loads_stay:
            cuda.syncwarp()

    load_all_codes, multiply_steps = unrolled(load_codes, unroll), unrolled(multiply_step, unroll)

    @cuda.jit(device=True, forceinline=True)
    def rows_of_tile(weight, tile, n):
        """Return the lane's Rows of a tile."""
        low, high = rows_of(int32(tile * PAIRS + (int32(cuda.threadIdx.x) >> 2 & 7)), n)
        return loads.rows(weight, uint32(low), uint32(high))

    @kernel(launch_bounds=(tiling.threads, tiling.blocks), dependent_launch=True)
    def batched_gemv_kernel(x, weight, bias, out, n, pairs):
        """x [M, K], weight [n, K]: the decoder's arrays, bias [n] or None, out [M, n] or [M, n / 2]; pairs: pairs of weight rows."""
        ptx.griddepcontrol_launch_dependents()
        memory, barriers = cuda.shared.array(0, uint32, 128), cuda.shared.array(barrier_words, uint32, 8)
        begin(barriers)
        ptx.barrier_cluster_arrive_relaxed()
        table = cuda.shared.array(table_bytes, uint8, 128)  # without a table (0 bytes) an unused alias of `memory`
        warp, rank = int32(int32(cuda.threadIdx.x) >> 5), int32(ptx.cluster_ctarank())
        tile_of_warp, split = int32(uint32(warp) // uint32(splits)), int32(uint32(warp) % uint32(splits))
        codes, words = cuda.local.array(code_words, uint32), cuda.local.array(scale_words, uint32)
        values, total = cuda.local.array(scale_values, float32), cuda.local.array(registers, float32)
        tiles, stride = int32((pairs + PAIRS - 1) >> 3), int32(uint32(cuda.gridDim.x) // uint32(cluster) * uint32(tiles_of_cluster))
        first_tile, first_step = int32(uint32(cuda.blockIdx.x) // uint32(cluster) * uint32(tiles_of_cluster)), int32(rank * steps_of_block)
        rows = rows_of_tile(weight, int32(first_tile + tile_of_warp), n)
        load_all_codes(weight.codes, loads.places(rows, int32(first_step + split)), int32(first_step + split), codes)
        cuda.syncwarp()  # loads do not move across it: loads of codes are issued before any load that waits for another
        loads.scales(weight, rows, int32(first_step + split), words)
        fill_table(table, weight)
        decoding = decoding_of(table)
        ptx.barrier_cluster_wait()  # all blocks of the cluster have initialised their mbarriers
        ptx.griddepcontrol_wait()
        load_x(x, rank, memory)
        cuda.syncthreads()
        i, tile_before = int32(0), int32(0)
        while first_tile < tiles:
            following = int32(first_tile + stride)
            next_rows = rows_of_tile(weight, int32(following + tile_of_warp), n)
            for register in range(registers):
                total[register] = float32(0)
            for chunk in range(chunks):
                local = int32(chunk * stride_of_chunk + split)
                loads.convert(decoding, rows, words, values)
                if chunk + 1 < chunks:
                    then = (True, rows, int32(first_step + local + stride_of_chunk))
                else:
                    then = (following < tiles, next_rows, int32(first_step + split))
                goes_on, rows_then, first_then = then
                if goes_on:
                    loads.scales(weight, rows_then, first_then, words)
                places = loads.places(rows_then, first_then)
                multiply_steps(memory, decoding, weight, codes, values, local, total, goes_on, places, first_then)
            if i > 0 and warp == i % warps:
                finish(memory, barriers, int32(i - 1), following < tiles, bias, out, rank, tile_before, pairs)
            send(memory, barriers, i, total, rank, split, tile_of_warp)
            tile_before, first_tile, i, rows = first_tile, following, int32(i + 1), next_rows
        if warp == i % warps:
            finish(memory, barriers, int32(i - 1), False, bias, out, rank, tile_before, pairs)

    return batched_gemv_kernel
