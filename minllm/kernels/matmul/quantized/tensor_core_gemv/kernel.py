"""The kernel of the GEMV on tensor cores: up to 16 rows of x times a quantised weight.

A tile is 16 rows of weight, eight pairs (outputs.py). A warp multiplies a tile by all rows of x, over its part of K: `splits` warps of a
block, and the blocks of a cluster, divide K. A step is 64 bytes of codes per row of weight. A warp takes every `splits`-th step of its
block, so that the warps of a tile load neighbouring bytes, and keeps `unroll` of them, a chunk, in flight in registers: as soon as a step
has been multiplied, the next one is loaded into its registers, also across tiles. The first codes are loaded before x is written (dependent
launch), and are in flight while a block copies x to shared memory.

    one row of x     a block holds all of x, normalised or quantised by itself (normed_x.py). One warp of a tile adds the sums of its warps
                     and writes its outputs, while the others multiply the next tile
    several rows     a block with all of K would read all of x, so the blocks of a cluster divide K, and x (x.py). A warp sends its sums to
                     the block that owns their rows; it adds and writes them after it has multiplied its part of the next tile (sums.py)

2 M N K FLOPs on N K / 2 or N K bytes of codes, and M K b bytes of x per block, or cluster, that runs at a time.

Source: PTX ISA, "mma", "barrier.cluster".
"""

import functools

from numba import cuda, float32, int32, uint8, uint32

from minllm import ptx
from minllm.kernels.matmul.quantized.tensor_core_gemv.codes import make_products_of_codes
from minllm.kernels.matmul.quantized.tensor_core_gemv.loads import CODE_WORDS, Rows, make_load_codes
from minllm.kernels.matmul.quantized.tensor_core_gemv.one_row import make_products_of_one_row
from minllm.kernels.matmul.quantized.tensor_core_gemv.outputs import Outputs
from minllm.kernels.matmul.quantized.tensor_core_gemv.products import Products, Registers
from minllm.kernels.matmul.quantized.tensor_core_gemv.several_rows import make_products_of_rows
from minllm.kernels.matmul.quantized.tensor_core_gemv.sums import BARRIER_WORDS, make_add_in_block, make_cluster_sums
from minllm.kernels.matmul.quantized.tensor_core_gemv.tiling import BUFFERS, CARVEOUT, PAIRS, TILE_ROWS, TensorCoreGemvTiling
from minllm.kernels.quantization.decoder import Format
from minllm.runtime.kernel import kernel
from minllm.tiles.unrolled import unrolled
from minllm.tiles.warp import WARP


def make_products(found: Format, kind: tuple, k: int, tiling: TensorCoreGemvTiling, dtype: str) -> Products:
    """Return the Products of weights of this kind with rows of x of k numbers in `dtype`."""
    if found.codes is not None:
        return make_products_of_codes(found.codes, k, tiling, dtype)
    assert found.mma is not None
    make = make_products_of_one_row if tiling.tokens == 1 else make_products_of_rows
    return make(found.mma(dtype, tiling.threads, *kind), k, tiling, dtype)


def dynamic_bytes(tiling: TensorCoreGemvTiling, products: Products) -> int:
    """Return the dynamic shared memory of a block in bytes: its part of x, then for several rows the buffers of sums.

    Both are dynamic since static arrays are at most 48 KB.
    """
    return products.x_bytes + (0 if tiling.tokens == 1 else BUFFERS * 4 * tiling.sums)


@functools.cache
def tensor_core_gemv_kernel(tiling: TensorCoreGemvTiling, products: Products, outputs: Outputs):
    """The kernel for these Products, which fix K, the format and the dtype of x."""
    (warps, splits, cluster, unroll, tokens, _), steps, is_one_row = tiling, products.steps, tiling.tokens == 1
    chunks, steps_of_block, tiles_of_cluster = tiling.chunks(steps), tiling.steps_of_block(steps), tiling.tiles
    code_words, words, values, table_bytes = unroll * CODE_WORDS, max(1, products.words), products.values, products.table.bytes
    totals, sum_type, group, stride_of_chunk = max(4, tokens // 2), products.sum_type, products.group, unroll * splits
    places, load_codes = make_load_codes(tiling, steps, products.pieces)
    # Without a fence ptxas moves the loads of all steps behind the mma.sync of the last one, which is better only for int4 and 16 tokens.
    loads_stay, words_of_sums = tokens < 16 or table_bytes > 0, 2 * warps * TILE_ROWS
    add_in_block, in_cluster = make_add_in_block(tiling), make_cluster_sums(tiling, outputs, products.x_bytes // 4)

    @cuda.jit(device=True, forceinline=True)
    def rows_of_tile(tile, n):
        """Return the numbers of the lane's Rows of a tile."""
        low, high = outputs.rows_of(int32(tile * PAIRS + (int32(cuda.threadIdx.x) >> 2 & 7)), n)
        return Rows(uint32(low), uint32(high))

    @cuda.jit(device=True, forceinline=True)
    def begin_rows(weight, rows):
        """Return what the format keeps of these Rows."""
        return Rows(products.begin(weight, rows.low), products.begin(weight, rows.high))

    @cuda.jit(device=True, forceinline=True)
    def multiply_step(u, memory, decoding, weight, kept, registers, local, goes_on, next_places, next_rows, next_kept, next_first):
        """Multiply the u-th step in flight, and load the step that takes its registers; one row: scale the sums of a group of steps."""
        products.multiply(u, memory, decoding, registers, int32(local + u * splits))
        if goes_on:
            load_codes(u, weight.codes, next_places, next_first, registers.codes)
        if loads_stay:
            cuda.syncwarp()
        if group > 0 and u % group == group - 1:
            products.scale(u // group, memory, decoding, kept, registers, local)
            if goes_on:
                products.load_scales(u // group, weight, next_rows, next_kept, next_first, registers.words)

    load_all_codes, load_all_scales, multiply_steps = (
        unrolled(load_codes, unroll), unrolled(products.load_scales, max(1, products.loads)), unrolled(multiply_step, unroll)
    )  # fmt: skip

    @kernel(launch_bounds=(tiling.threads, tiling.blocks), dependent_launch=True, carveout=CARVEOUT)
    def tensor_core_gemv_kernel(x, norm, weight, arrays, n, pairs, epsilon):
        """x [M, K], norm [K] or None, weight [n, K]: the format's arrays, arrays: those of the outputs, pairs: pairs of weight rows."""
        ptx.griddepcontrol_launch_dependents()
        memory = cuda.shared.array(0, uint32, 128)
        table = cuda.shared.array(table_bytes, uint8, 128)  # without a table (0 bytes) an unused alias of `memory`
        if is_one_row:
            sums, rank = cuda.shared.array(words_of_sums, float32), int32(0)
        else:
            barriers, rank = cuda.shared.array(BARRIER_WORDS, uint32, 8), int32(ptx.cluster_ctarank())
            in_cluster.begin(barriers)
            ptx.barrier_cluster_arrive_relaxed()
        lane, warp = int32(int32(cuda.threadIdx.x) & (WARP - 1)), int32(int32(cuda.threadIdx.x) >> 5)
        tile_of_warp, split = int32(uint32(warp) // uint32(splits)), int32(uint32(warp) % uint32(splits))
        registers = Registers(
            cuda.local.array(code_words, uint32), cuda.local.array(words, uint32), cuda.local.array(values, float32),
            cuda.local.array(totals, sum_type),
        )  # fmt: skip
        tiles, stride = int32((pairs + PAIRS - 1) >> 3), int32(uint32(cuda.gridDim.x) // uint32(cluster) * uint32(tiles_of_cluster))
        first_tile, first_step = int32(uint32(cuda.blockIdx.x) // uint32(cluster) * uint32(tiles_of_cluster)), int32(rank * steps_of_block)
        rows = rows_of_tile(int32(first_tile + tile_of_warp), n)
        load_all_codes(weight.codes, places(rows, int32(first_step + split)), int32(first_step + split), registers.codes)
        cuda.syncwarp()  # loads do not move across it: loads of codes are issued before any load that waits for another
        kept = begin_rows(weight, rows)
        load_all_scales(weight, rows, kept, int32(first_step + split), registers.words)
        products.table.fill(table, weight)
        token = outputs.begin(arrays)
        if not is_one_row:
            ptx.barrier_cluster_wait()  # all blocks of the cluster have initialised their mbarriers
        factor = products.prepare(x, norm, epsilon, rank, memory)
        decoding = products.table.decoding(table)
        i, tile_before = int32(0), int32(0)
        while first_tile < tiles:
            following, pair = int32(first_tile + stride), int32((first_tile + tile_of_warp) * PAIRS + (lane & (PAIRS - 1)))
            next_rows = rows_of_tile(int32(following + tile_of_warp), n)
            next_kept = begin_rows(weight, next_rows)
            if is_one_row:
                prepared = outputs.prepare(arrays, token, 0, pair)
            for register in range(totals):
                registers.total[register] = 0
            for chunk in range(chunks):
                local = int32(chunk * stride_of_chunk + split)
                products.convert(decoding, kept, registers)
                if chunk + 1 < chunks:
                    goes_on, rows_then, kept_then, first_then = True, rows, kept, int32(first_step + local + stride_of_chunk)
                else:
                    goes_on, rows_then, kept_then, first_then = following < tiles, next_rows, next_kept, int32(first_step + split)
                if group == 0 and goes_on:
                    load_all_scales(weight, rows_then, kept_then, first_then, registers.words)
                then = places(rows_then, first_then), rows_then, kept_then, first_then
                multiply_steps(memory, decoding, weight, kept, registers, local, goes_on, *then)
            if is_one_row:
                low, high = add_in_block(sums, i, warp, split, *products.finish(kept, registers.total, factor))
                if split == 0 and lane < PAIRS and pair < pairs:
                    outputs.write(arrays, prepared, 0, pair, low, high)
            else:
                if i > 0 and warp == i % warps:
                    in_cluster.finish(
                        memory, barriers, int32(i - 1), following < tiles, arrays, int32(x.shape[0]), rank, tile_before, pairs
                    )
                in_cluster.send(memory, barriers, i, registers.total, rank, split, tile_of_warp)
            tile_before, first_tile, i, rows, kept = first_tile, following, int32(i + 1), next_rows, next_kept
        if not is_one_row and warp == i % warps:
            in_cluster.finish(memory, barriers, int32(i - 1), False, arrays, int32(x.shape[0]), rank, tile_before, pairs)

    return tensor_core_gemv_kernel
