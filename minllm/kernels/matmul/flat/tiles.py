"""Flat GEMM for every GPU generation: cp.async loads weights into a ring in shared memory, mma.sync multiplies.

A block owns `rows` rows of weight and up to 128 tokens, and walks K in tiles of 64. Its `warps` form `splits` groups: each group takes its
share of a tile's four steps of 16 columns, and the warps of a group share the rows. So a block stays busy even with few rows, and small
blocks are numerous enough to fill the machine without splitting K among blocks.

The copies of `stages` - 1 tiles are in flight at any moment. The weights of the first ring are loaded before the kernels that compute x
have ended (programmatic dependent launch).

Source: PTX ISA, "cp.async", "mma"; CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization".
"""

import functools

from numba import cuda, float32, int32, int64, uint32

from minllm import ptx
from minllm.kernels.matmul.flat.mma_tiling import TILE_K, FlatTiling
from minllm.kernels.matmul.flat.output import PADDING, make_keep_sums, make_write
from minllm.kernels.matmul.fragments import make_multiply_step
from minllm.kernels.matmul.shared_tiles import CHUNK, WAIT_FOR_ALL_BUT, make_copy_tile
from minllm.runtime.kernel import kernel


def make_added(splits: int, split_words: int):
    """The device function that adds four neighbouring sums over the groups of warps that split K."""

    @cuda.jit(device=True, forceinline=True)
    def added(sums, start, place):
        a, b, c, d = ptx.load_float32(sums, start + place)
        for split in range(1, splits):
            e, f, g, h = ptx.load_float32(sums, start + split * split_words + place)
            a, b, c, d = a + e, b + f, c + g, d + h
        return a, b, c, d

    return added


@functools.cache
def flat_tiles_kernel(tokens: int, tiling: FlatTiling, dtype: str, gated: bool, together: int):
    """The kernel for x and weight of `dtype` and `tokens` rows of x per block, a multiple of 8.

    gated: out = silu(gate) * up of the two halves of weight's rows. together: outputs per store, see `stored_together`.
    """
    tiling.check(tokens)
    rows, warps, splits, stages = tiling
    threads, stage_words, weight_words = tiling.threads, tiling.stage_words(tokens), rows * TILE_K // 2
    warp_rows, columns, split_words = rows * splits // warps, rows // 2 if gated else rows, tokens * (rows + PADDING)
    blocks_a, blocks_b = warp_rows // 16, tokens // 8
    totals, ahead = 4 * blocks_a * blocks_b, stages - 1
    half = rows // 2 if gated else rows  # neighbouring rows of weight
    find_weight, copy_weight = make_copy_tile(half, TILE_K, threads)
    find_x, copy_x = make_copy_tile(tokens, TILE_K, threads)
    weight_copies, x_copies = -(-half * TILE_K // CHUNK // threads), -(-tokens * TILE_K // CHUNK // threads)
    multiply_step = make_multiply_step(warp_rows, tokens, TILE_K, dtype)
    keep_sums = make_keep_sums(rows, blocks_b)
    write = make_write(rows, threads, dtype, gated, together, make_added(splits, split_words))
    wait_for_the_oldest = WAIT_FOR_ALL_BUT[stages - 2]

    @cuda.jit(device=True, forceinline=True)
    def copy_weights(weight, starts, second_starts, step, ring, word, thread):
        """Start copying a tile of weight: neighbouring rows, or half gate rows and half up rows."""
        copy_weight(weight, starts, step * TILE_K, ring, uint32(word), thread)
        if gated:
            copy_weight(weight, second_starts, step * TILE_K, ring, uint32(word + weight_words // 2), thread)

    @cuda.jit(device=True, forceinline=True)
    def multiply(total, ring, word, group, split, lane):
        """total += this split's steps of a stage."""
        weight_address, x_address = ptx.shared_address(ring, word), ptx.shared_address(ring, word + weight_words)
        multiply_step(total, weight_address, x_address, group, 0, lane, split)
        if splits < 4:
            multiply_step(total, weight_address, x_address, group, 0, lane, split + splits)
        if splits < 2:
            multiply_step(total, weight_address, x_address, group, 0, lane, 2)
            multiply_step(total, weight_address, x_address, group, 0, lane, 3)

    @kernel(launch_bounds=threads, dependent_launch=True)
    def matmul_flat_kernel(x, weight, bias, out):
        """x [M, K], weight [N, K], bias [N] or None, out [M, N] or, gated, [M, N / 2]; grid: tiles of out's columns, tiles of tokens."""
        ptx.griddepcontrol_launch_dependents()
        ring = cuda.shared.array(0, uint32, alignment=128)  # [stages, tile of weight then tile of x]
        thread = uint32(cuda.threadIdx.x)
        lane, warp = thread & uint32(31), thread >> uint32(5)
        group, split = warp // uint32(splits), warp % uint32(splits)
        first_column, first_token = int32(cuda.blockIdx.x) * columns, int32(cuda.blockIdx.y) * tokens
        weight_starts, second_starts = cuda.local.array(weight_copies, int64), cuda.local.array(weight_copies, int64)
        x_starts = cuda.local.array(x_copies, int64)
        find_weight(weight, first_column, thread, weight_starts)
        if gated:
            find_weight(weight, first_column + out.shape[1], thread, second_starts)
        find_x(x, first_token, thread, x_starts)
        total = cuda.local.array(totals, float32)
        for i in range(totals):
            total[i] = 0.0
        steps = int32((x.shape[1] + TILE_K - 1) // TILE_K)
        for step in range(ahead):
            if step < steps:
                copy_weights(weight, weight_starts, second_starts, step, ring, step * stage_words, thread)
        ptx.griddepcontrol_wait()
        for step in range(ahead):
            if step < steps:
                copy_x(x, x_starts, step * TILE_K, ring, uint32(step * stage_words + weight_words), thread)
            ptx.cp_async_commit_group()
        step = int32(0)
        while step < steps:
            wait_for_the_oldest()
            cuda.syncthreads()  # this step's copies have arrived for all threads, and all are done with the stage that is filled next
            next_step = int32(step + ahead)
            if next_step < steps:
                word = uint32(next_step) % uint32(stages) * uint32(stage_words)
                copy_weights(weight, weight_starts, second_starts, next_step, ring, word, thread)
                copy_x(x, x_starts, next_step * TILE_K, ring, uint32(word + weight_words), thread)
            ptx.cp_async_commit_group()  # an empty group if nothing is left to copy: the wait counts groups
            multiply(total, ring, uint32(uint32(step) % uint32(stages) * uint32(stage_words)), group, split, lane)
            step = int32(step + 1)
        cuda.syncthreads()  # all tiles have been multiplied: the sums may overwrite them
        sums = cuda.shared.array(0, float32, alignment=128)
        for i in range(blocks_a):
            keep_sums(total, 4 * blocks_b * i, sums, split * split_words, group * warp_rows + 16 * i, lane)
        cuda.syncthreads()
        own_tokens = min(int32(out.shape[0]) - first_token, tokens)
        write(bias, None, None, out, sums, 0, first_token, own_tokens, first_column, thread)

    return matmul_flat_kernel
