"""Grouped GEMM: each expert multiplies the tokens that chose it, on tensor cores.

    gate and up   out[p] = silu(gate_e x_t) * (up_e x_t)          for the pairs p of a token t and an expert e, in the order of experts
    down          out[pairs[p]] = down_e activated[p]              from there back to the order of tokens

The counting sort has put an expert's pairs next to each other: `offsets` says where. A block takes `rows` rows of one expert's weight and
`tokens` pairs at a time, and walks K in steps of 64. The grid is columns x experts x strides, whatever the router chose, as a CUDA graph
demands: blocks of experts without tokens end at once, and a block of a popular expert takes every stride-th tile of its pairs.

    decoding   few pairs per expert, 8 or 16 per tile: each touched expert's weights are read once, and reading them is the time
    prefill    128 pairs per tile: 2 rows tokens / (rows + tokens) FLOPs per element read, most of it from L2

x is gathered: the copies of a tile's rows begin at the tokens of its pairs, so that no kernel has to permute x. As in the flat GEMM, weight
takes the side of 16 rows of mma.sync and x the side of 8, so that few tokens are padded little.

The sums of an output are the same bits whatever the tile: one accumulator, in ascending order of k. So a token's result depends on no other
token (batch invariance), and the order of an expert's pairs changes nothing.

P pairs: 2 P N K FLOPs; bytes: N K per touched expert, per tile of its pairs; P K of x per block of `rows` rows of weight, from L2.

Sources: Gale et al. 2023, "MegaBlocks: Efficient Sparse Training with Mixture-of-Experts", section 4; kernels/matmul/flat/tiles.py (the
ring of tiles); PTX ISA, "cp.async", "mma".
"""

import functools
from typing import NamedTuple

from numba import cuda, float32, int32, int64, uint32

from minllm import ptx
from minllm.kernels.activation.sigmoid import sigmoid
from minllm.kernels.arguments import INDEX_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.experts.arguments import check_stack
from minllm.kernels.matmul.arguments import HALF_DTYPES
from minllm.kernels.matmul.flat.output import PADDING, make_keep_sums, make_store_eight, stored_together
from minllm.kernels.matmul.flat.tiles import TILE_K, WAIT_FOR_ALL_BUT
from minllm.kernels.matmul.fragments import make_multiply_tiles
from minllm.kernels.matmul.shared_tiles import CHUNK, make_copy_tile, with_stages_for_gpu
from minllm.kernels.vector import vectors_per_row
from minllm.runtime.kernel import check, kernel, launch
from minllm.tiles.warp import WARP


class GroupedTiling(NamedTuple):
    """A block's tile, `rows` of weight x `tokens`, the warps that divide each side, and the stages of its ring."""

    rows: int
    tokens: int
    warps_rows: int
    warps_tokens: int
    stages: int

    @property
    def threads(self) -> int:
        """Threads per block."""
        return self.warps_rows * self.warps_tokens * WARP

    @property
    def stage_words(self) -> int:
        """32-bit words of a weight tile plus an x tile."""
        return (self.rows + self.tokens) * TILE_K // 2

    @property
    def shared_bytes(self) -> int:
        """Bytes of the ring, or of the sums that later replace it."""
        return 4 * max(self.stages * self.stage_words, self.tokens * (self.rows + PADDING))


# {pairs per tile: tiling}, for the fewest bytes of x per weight that hold most experts' pairs.
TILINGS = {
    8: GroupedTiling(64, 8, 4, 1, 8),
    16: GroupedTiling(64, 16, 4, 1, 8),
    32: GroupedTiling(64, 32, 4, 1, 6),
    64: GroupedTiling(128, 64, 4, 2, 4),
    128: GroupedTiling(128, 128, 4, 2, 3),
}


def choose_tiling(pairs: int, experts: int) -> GroupedTiling:
    """The tiling in which most experts' pairs fit one tile, if the router is even: twice their mean."""
    return TILINGS[min((tokens for tokens in TILINGS if tokens * experts >= 2 * pairs), default=max(TILINGS))]


def make_write_pairs(rows: int, threads: int, dtype: str, gated: bool, together: int):
    """The device function with which `threads` threads store the outputs of a tile from its sums, float32 [tokens, rows + PADDING].

    gated: the first half of the rows is the gate, and a pair's row of out is its place in `pairs`; else it is the pair itself. together: as
    in make_store_eight. A thread stores eight neighbours of a row at a time.
    """
    half, stride = rows // 2 if gated else rows, rows + PADDING
    store_eight = make_store_eight(dtype, together)

    @cuda.jit(device=True, forceinline=True)
    def activated(gate, up):
        return gate * sigmoid(gate) * up

    @cuda.jit(device=True, forceinline=True)
    def outputs(sums, place):
        """Four neighbouring outputs from the sums."""
        a, b, c, d = ptx.load_float32(sums, place)
        if gated:
            e, f, g, h = ptx.load_float32(sums, int32(place + half))
            return activated(a, e), activated(b, f), activated(c, g), activated(d, h)
        return a, b, c, d

    @cuda.jit(device=True, forceinline=True)
    def write(out, pairs, sums, start, first, count, first_column, thread):
        """Store the outputs of the `count` pairs from place `first` on; their sums begin at sums[start]."""
        item = int32(thread)
        while item < count * (half // 8):
            token, eight = item // (half // 8), item % (half // 8)
            place = int32(start + token * stride + 8 * eight)
            row = int32(first + token) if gated else pairs[first + token]
            low, high = outputs(sums, place), outputs(sums, int32(place + 4))
            store_eight(out, row, int32(first_column + 8 * eight), low, high)
            item = int32(item + threads)

    return write


@functools.cache
def grouped_gemm_kernel(tiling: GroupedTiling, dtype: str, chosen: int, together: int):
    """The kernel for x and weight of `dtype`.

    chosen: experts per token, for gate and up, whose x has a row per token; 0: down, whose x has a row per pair. together: outputs per
    store, see `stored_together`.
    """
    rows, tokens, warps_rows, warps_tokens, stages = tiling
    threads, stage_words, weight_words = tiling.threads, tiling.stage_words, rows * TILE_K // 2
    gated, chunks = chosen > 0, TILE_K // CHUNK
    half = rows // 2 if gated else rows  # neighbouring rows of weight, and columns of out
    warp_rows, warp_tokens, stride = rows // warps_rows, tokens // warps_tokens, rows + PADDING
    blocks_a, blocks_b = warp_rows // 16, warp_tokens // 8
    totals, ahead = 4 * blocks_a * blocks_b, stages - 1
    find_weight, copy_weight = make_copy_tile(half, TILE_K, threads)
    _, copy_x = make_copy_tile(tokens, TILE_K, threads)
    weight_copies, x_copies = ceil_div(half * chunks, threads), ceil_div(tokens * chunks, threads)
    multiply_tiles = make_multiply_tiles(warp_rows, warp_tokens, TILE_K, dtype)
    keep_sums, write = make_keep_sums(rows, blocks_b), make_write_pairs(rows, threads, dtype, gated, together)
    wait_for_the_oldest = WAIT_FOR_ALL_BUT[stages - 2]

    @cuda.jit(device=True, forceinline=True)
    def find_x(x, pairs, first, end, thread, starts):
        """starts[copy] = the flat index of this thread's `copy`-th chunk of x; rows beyond the expert's pairs repeat its last one."""
        for copy in range(x_copies):
            place = min(int32(first + int32(thread // uint32(chunks)) + copy * threads // chunks), int32(end - 1))
            row = pairs[place] // chosen if gated else place
            starts[copy] = int64(row) * x.shape[1] + thread % uint32(chunks) * CHUNK

    @cuda.jit(device=True, forceinline=True)
    def copy_stage(x, x_starts, weight, starts, second_starts, step, ring, thread):
        """Start copying a step's tiles of weight, gate rows and then up rows, and of x."""
        word, first_k = uint32(step) % uint32(stages) * uint32(stage_words), int32(step * TILE_K)
        copy_weight(weight, starts, first_k, ring, word, thread)
        if gated:
            copy_weight(weight, second_starts, first_k, ring, uint32(word + weight_words // 2), thread)
        copy_x(x, x_starts, first_k, ring, uint32(word + weight_words), thread)

    @cuda.jit(device=True, forceinline=True)
    def multiply(x, pairs, first, end, weight, starts, second_starts, out, first_column, ring, sums, thread):
        """The outputs of the pairs from `first` on that fit the tile. ring: [stages, tile of weight then tile of x]."""
        lane, warp = thread & uint32(31), thread >> uint32(5)
        warp_row, warp_token = warp // uint32(warps_tokens), warp % uint32(warps_tokens)
        x_starts, total = cuda.local.array(x_copies, int64), cuda.local.array(totals, float32)
        find_x(x, pairs, first, end, thread, x_starts)
        for i in range(totals):
            total[i] = 0.0
        steps = int32((x.shape[1] + TILE_K - 1) // TILE_K)
        for step in range(ahead):
            if step < steps:
                copy_stage(x, x_starts, weight, starts, second_starts, step, ring, thread)
            ptx.cp_async_commit_group()
        step = int32(0)
        while step < steps:
            wait_for_the_oldest()
            cuda.syncthreads()  # this step's copies have arrived for all threads, and all are done with the stage that is filled next
            if step + ahead < steps:
                copy_stage(x, x_starts, weight, starts, second_starts, int32(step + ahead), ring, thread)
            ptx.cp_async_commit_group()  # an empty group if nothing is left to copy: the wait counts groups
            word = uint32(step) % uint32(stages) * uint32(stage_words)
            multiply_tiles(total, ring, word, uint32(word + weight_words), warp_row, warp_token, lane)
            step = int32(step + 1)
        cuda.syncthreads()  # all tiles have been multiplied: the sums may overwrite them
        for i in range(blocks_a):
            keep_sums(total, 4 * blocks_b * i, sums, warp_token * warp_tokens * stride, warp_row * warp_rows + 16 * i, lane)
        cuda.syncthreads()
        write(out, pairs, sums, 0, first, min(int32(end - first), tokens), first_column, thread)

    @kernel(launch_bounds=threads, dependent_launch=True)
    def grouped_gemm_kernel(x, pairs, offsets, weight, out):
        """x [T or P, K], pairs [P], offsets [E + 1], weight [E * N, K], out [P, N / 2 or N]; grid: columns, experts, strides."""
        wait_for_predecessors()
        ring, sums = cuda.shared.array(0, uint32, alignment=128), cuda.shared.array(0, float32, alignment=128)  # the same memory
        thread, expert = uint32(cuda.threadIdx.x), int32(cuda.blockIdx.y)
        end = offsets[expert + 1]
        first = int32(offsets[expert] + cuda.blockIdx.z * tokens)
        first_column, columns = int32(cuda.blockIdx.x) * half, int32(out.shape[1])
        starts, second_starts = cuda.local.array(weight_copies, int64), cuda.local.array(weight_copies, int64)
        if first < end:
            row = int32(expert * (2 * columns if gated else columns) + first_column)
            find_weight(weight, row, thread, starts)
            if gated:
                find_weight(weight, row + columns, thread, second_starts)
        while first < end:
            multiply(x, pairs, first, end, weight, starts, second_starts, out, first_column, ring, sums, thread)
            cuda.syncthreads()  # the next tile's copies overwrite the sums
            first = int32(first + cuda.gridDim.z * tokens)

    return grouped_gemm_kernel


def fits(*arrays) -> bool:
    """Whether the kernel supports these arrays of rows: 16 bits, each row aligned to 16 bytes."""
    return all(array.dtype in HALF_DTYPES and vectors_per_row(array.shape[1], array) > 0 for array in arrays)


def grouped_gate_up(x, pairs, offsets, gate_up, out, stream=None, tiling: GroupedTiling | None = None) -> None:
    """Write silu(gate_e x_t) * (up_e x_t) of the pairs, in the order of `pairs`, into `out` [P, I].

    x [T, H], pairs [P], offsets [E + 1] as sort_by_expert writes them, gate_up [E * 2 * I, H]: gate, then up, of each expert. x,
    gate_up and out share one dtype, float16 or bfloat16; their rows begin on multiples of 16 bytes. Raises KernelArgumentError for
    anything else.
    """
    check_grouped(x, pairs, offsets, gate_up, out, 2 * out.shape[1])
    whole = x.shape[0] > 0 and pairs.shape[0] % x.shape[0] == 0
    check(whole, f"{pairs.shape[0]} pairs are not the same number for each of {x.shape[0]} rows")
    launch_grouped(x, pairs, offsets, gate_up, out, pairs.shape[0] // x.shape[0], stream, tiling)


def grouped_down(activated, pairs, offsets, down, out, stream=None, tiling: GroupedTiling | None = None) -> None:
    """Write down_e activated[p] of the pairs p into `out` [P, H], in the order of tokens: row pairs[p].

    activated [P, I], in the order of `pairs`; down [E * H, I]. Otherwise as grouped_gate_up.
    """
    check_grouped(activated, pairs, offsets, down, out, out.shape[1])
    check_array("activated", activated, HALF_DTYPES, pairs=pairs.shape[0], intermediate=None)
    launch_grouped(activated, pairs, offsets, down, out, 0, stream, tiling)


def check_grouped(x, pairs, offsets, weight, out, rows: int) -> None:
    """Raise KernelArgumentError unless the arrays are those of a grouped GEMM with `rows` rows of weight per expert."""
    check_array("x", x, HALF_DTYPES, rows=None, K=None)
    check_array("pairs", pairs, INDEX_DTYPES, pairs=None)
    check_array("offsets", offsets, INDEX_DTYPES, experts_and_end=None)
    check_array("weight", weight, (x.dtype,), N=rows * (offsets.shape[0] - 1), K=x.shape[1])
    check_array("out", out, (x.dtype,), pairs=pairs.shape[0], columns=None)
    check_stack("weight", weight, rows)
    check(fits(x, weight), f"rows of x {list(x.shape)} and weight begin on multiples of 16 bytes: take the gather GEMV for others")


def launch_grouped(x, pairs, offsets, weight, out, chosen: int, stream, tiling: GroupedTiling | None) -> None:
    """Launch for checked arrays."""
    count, experts = pairs.shape[0], offsets.shape[0] - 1
    tiling = with_stages_for_gpu(tiling or choose_tiling(count, experts))
    columns = tiling.rows // 2 if chosen else tiling.rows
    strides = ceil_div(2 * count, experts * tiling.tokens)
    grid = (ceil_div(out.shape[1], columns), experts, strides)
    chosen_kernel = grouped_gemm_kernel(tiling, x.dtype.name, chosen, stored_together(out, x.dtype))
    launch(chosen_kernel, grid, tiling.threads, (x, pairs, offsets, weight, out), stream, tiling.shared_bytes)
