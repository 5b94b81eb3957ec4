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

Weights in int4 or fp8 arrive as codes (codes.py); the block decodes each tile once, into a tile of 16-bit numbers beside the ring, which
the tensor cores multiply. The scales of the next step are loaded one step ahead.

The sums of an output are the same bits whatever the tile: one accumulator, in ascending order of k. So a token's result depends on no other
token (batch invariance), and the order of an expert's pairs changes nothing.

P pairs: 2 P N K FLOPs; bytes: N K per touched expert, per tile of its pairs; P K of x per block of `rows` rows of weight, from L2.

Sources: Gale et al. 2023, "MegaBlocks: Efficient Sparse Training with Mixture-of-Experts", section 4; kernels/matmul/flat/tiles.py (the
ring of tiles); PTX ISA, "cp.async", "mma".
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, float32, int32, int64, uint32

from minllm import ptx
from minllm.kernels.activation.sigmoid import sigmoid
from minllm.kernels.arguments import INDEX_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.experts.arguments import check_stack
from minllm.kernels.experts.codes import CodeKind, codes_of, is_quantized, make_scale_at
from minllm.kernels.matmul.arguments import HALF_DTYPES
from minllm.kernels.matmul.flat.mma_tiling import TILE_K
from minllm.kernels.matmul.flat.output import PADDING, make_keep_sums, make_store_eight, stored_together
from minllm.kernels.matmul.fragments import make_multiply_tiles
from minllm.kernels.matmul.shared_tiles import CHUNK, WAIT_FOR_ALL_BUT, make_copy_tile, make_place_of_chunk, with_stages_for_gpu
from minllm.kernels.vector import load_words, vectors_per_row
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
    def tile_words(self) -> int:
        """32-bit words of a weight tile in 16 bits."""
        return self.rows * TILE_K // 2

    def weight_words(self, kind: CodeKind | None) -> int:
        """32-bit words of a weight tile in the ring."""
        return self.tile_words if kind is None else self.tile_words // kind.per_unit

    def stage_words(self, kind: CodeKind | None) -> int:
        """32-bit words of a weight tile plus an x tile."""
        return self.weight_words(kind) + self.tokens * TILE_K // 2

    def shared_bytes(self, kind: CodeKind | None) -> int:
        """Bytes of the ring and, for codes, of a decoded tile, or of the sums that later replace them."""
        decoded = 0 if kind is None else self.tile_words
        return 4 * max(self.stages * self.stage_words(kind) + decoded, self.tokens * (self.rows + PADDING))


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


class DecodeTile(NamedTuple):
    """The device functions that turn a tile of codes into numbers, and `units`, the 16-byte loads of codes per thread."""

    units: int
    load_scales: Any  # (all_scales, expert_row, shape, first_column, first_k, thread, scales): scales[unit] of the tile from first_k on
    decode: Any  # (ring, word, decoded, scales, thread): the tile of codes at `word` as numbers at `decoded`


def make_decode_tile(rows: int, half: int, threads: int, dtype: str, kind: CodeKind) -> DecodeTile:
    """DecodeTile for tiles of `rows` rows of codes, of which each `half` are neighbouring rows of weight."""
    each, chunks, eights = kind.each, TILE_K // kind.each, kind.each // 8
    units, all_decode = ceil_div(rows * chunks, threads), rows * chunks % threads == 0
    place_of_codes, place_of_chunk = make_place_of_chunk(TILE_K // kind.per_unit), make_place_of_chunk(TILE_K)
    pairs_of_eight, scale_at = kind.format.pairs_of_eight(dtype), make_scale_at(kind)

    @cuda.jit(device=True, forceinline=True)
    def load_scales(all_scales, expert_row, shape, first_column, first_k, thread, scales):
        columns, k = shape
        for unit in range(units):
            item = int32(thread + unit * threads)
            row = item // chunks
            if all_decode or row < rows:
                column = min(int32(first_column + row % half), int32(columns - 1))  # rows beyond the edge repeat the last one
                at = min(int32(first_k + item % chunks * each), int32(k - 1))
                scales[unit] = scale_at(all_scales, expert_row + row // half * columns + column, at)

    @cuda.jit(device=True, forceinline=True)
    def decode(ring, word, decoded, scales, thread):
        words = cuda.local.array(4, uint32)
        for unit in range(units):
            item = int32(thread + unit * threads)
            row, chunk = item // chunks, item % chunks
            if all_decode or row < rows:
                tile = uint32(word + row // half * half * chunks * 4)
                load_words(ring, uint32(tile + uint32(4) * place_of_codes(row % half, chunk)), words, 0)
                for eight in range(eights):
                    a, b, c, d = pairs_of_eight(words, eight, scales[unit])
                    place = uint32(decoded + uint32(4) * place_of_chunk(row, chunk * eights + eight))
                    ptx.store_128(ring, place, a, b, c, d)

    return DecodeTile(units, load_scales, decode)


@functools.cache
def grouped_gemm_kernel(tiling: GroupedTiling, dtype: str, chosen: int, together: int, kind: CodeKind | None = None):
    """The kernel for x and weight of `dtype`, or weight in codes of `kind`.

    chosen: experts per token, for gate and up, whose x has a row per token; 0: down, whose x has a row per pair. together: outputs per
    store, see `stored_together`.
    """
    rows, tokens, warps_rows, warps_tokens, stages = tiling
    threads, stage_words, weight_words = tiling.threads, tiling.stage_words(kind), tiling.weight_words(kind)
    gated, is_coded, chunks, decoded = chosen > 0, kind is not None, TILE_K // CHUNK, stages * stage_words
    half = rows // 2 if gated else rows  # neighbouring rows of weight, and columns of out
    warp_rows, warp_tokens, stride = rows // warps_rows, tokens // warps_tokens, rows + PADDING
    blocks_a, blocks_b = warp_rows // 16, warp_tokens // 8
    totals, ahead = 4 * blocks_a * blocks_b, stages - 1
    weight_k = TILE_K if kind is None else TILE_K // kind.per_unit  # elements of weight per row of a tile
    find_weight, copy_weight = make_copy_tile(half, weight_k, threads)
    _, copy_x = make_copy_tile(tokens, TILE_K, threads)
    weight_copies, x_copies = ceil_div(half * weight_k // CHUNK, threads), ceil_div(tokens * chunks, threads)
    units, load_scales, decode = (1, None, None) if kind is None else make_decode_tile(rows, half, threads, dtype, kind)
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
        word, first_k = uint32(step) % uint32(stages) * uint32(stage_words), int32(step * weight_k)
        copy_weight(weight, starts, first_k, ring, word, thread)
        if gated:
            copy_weight(weight, second_starts, first_k, ring, uint32(word + weight_words // 2), thread)
        copy_x(x, x_starts, int32(step * TILE_K), ring, uint32(word + weight_words), thread)

    @cuda.jit(device=True, forceinline=True)
    def multiply(x, pairs, first, end, weight, all_scales, expert_row, starts, second_starts, out, first_column, ring, sums, thread):
        """The outputs of the pairs from `first` on that fit the tile. ring: [stages, tile of weight then tile of x]."""
        lane, warp = thread & uint32(31), thread >> uint32(5)
        warp_row, warp_token = warp // uint32(warps_tokens), warp % uint32(warps_tokens)
        x_starts, total = cuda.local.array(x_copies, int64), cuda.local.array(totals, float32)
        find_x(x, pairs, first, end, thread, x_starts)
        for i in range(totals):
            total[i] = 0.0
        scales, scales_ahead = cuda.local.array(units, float32), cuda.local.array(units, float32)
        shape = int32(out.shape[1]), int32(x.shape[1])
        if is_coded:
            load_scales(all_scales, expert_row, shape, first_column, int32(0), thread, scales_ahead)
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
            tile = word
            if is_coded:
                for unit in range(units):
                    scales[unit] = scales_ahead[unit]
                if step + 1 < steps:
                    load_scales(all_scales, expert_row, shape, first_column, int32((step + 1) * TILE_K), thread, scales_ahead)
                tile = uint32(decoded)
                decode(ring, word, tile, scales, thread)
                cuda.syncthreads()
            multiply_tiles(total, ring, tile, uint32(word + weight_words), warp_row, warp_token, lane)
            step = int32(step + 1)
        cuda.syncthreads()  # all tiles have been multiplied: the sums may overwrite them
        for i in range(blocks_a):
            keep_sums(total, 4 * blocks_b * i, sums, warp_token * warp_tokens * stride, warp_row * warp_rows + 16 * i, lane)
        cuda.syncthreads()
        write(out, pairs, sums, 0, first, min(int32(end - first), tokens), first_column, thread)

    @kernel(launch_bounds=threads, dependent_launch=True)
    def grouped_gemm_kernel(x, pairs, offsets, weight, scales, out):
        """x [T or P, K], pairs [P], offsets [E + 1], weight [E * N, K] or the codes and scales of ExpertCodes, out [P, N / 2 or N]; grid:
        columns, experts, strides."""
        wait_for_predecessors()
        ring, sums = cuda.shared.array(0, uint32, alignment=128), cuda.shared.array(0, float32, alignment=128)  # the same memory
        thread, expert = uint32(cuda.threadIdx.x), int32(cuda.blockIdx.y)
        end = offsets[expert + 1]
        first = int32(offsets[expert] + cuda.blockIdx.z * tokens)
        first_column, columns = int32(cuda.blockIdx.x) * half, int32(out.shape[1])
        starts, second_starts = cuda.local.array(weight_copies, int64), cuda.local.array(weight_copies, int64)
        expert_row = int32(expert * (2 * columns if gated else columns))
        if first < end:
            find_weight(weight, int32(expert_row + first_column), thread, starts)
            if gated:
                find_weight(weight, int32(expert_row + first_column + columns), thread, second_starts)
        while first < end:
            multiply(x, pairs, first, end, weight, scales, expert_row, starts, second_starts, out, first_column, ring, sums, thread)
            cuda.syncthreads()  # the next tile's copies overwrite the sums
            first = int32(first + cuda.gridDim.z * tokens)

    return grouped_gemm_kernel


def fits(*arrays) -> bool:
    """Whether the kernel supports these rows: 16 bits, each row aligned to 16 bytes; and any weights in codes."""
    plain = [array for array in arrays if not is_quantized(array)]
    return all(array.dtype in HALF_DTYPES and vectors_per_row(array.shape[1], array) > 0 for array in plain)


def grouped_gate_up(x, pairs, offsets, gate_up, out, stream=None, tiling: GroupedTiling | None = None) -> None:
    """Write silu(gate_e x_t) * (up_e x_t) of the pairs, in the order of `pairs`, into `out` [P, I].

    x [T, H], pairs [P], offsets [E + 1] as sort_by_expert writes them, gate_up [E * 2 * I, H]: gate, then up, of each expert. x,
    gate_up and out share one dtype, float16 or bfloat16; their rows begin on multiples of 16 bytes. gate_up may also be the Int4Weight or
    Fp8Weight of that matrix. Raises KernelArgumentError for anything else.
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
    check_array("out", out, (x.dtype,), pairs=pairs.shape[0], columns=None)
    check_stack("weight", weight, rows, x.shape[1], x.dtype, offsets.shape[0] - 1)
    check(fits(x, weight), f"rows of x {list(x.shape)} and weight begin on multiples of 16 bytes: take the gather GEMV for others")


def launch_grouped(x, pairs, offsets, weight, out, chosen: int, stream, tiling: GroupedTiling | None) -> None:
    """Launch for checked arrays."""
    count, experts = pairs.shape[0], offsets.shape[0] - 1
    tiling = with_stages_for_gpu(tiling or choose_tiling(count, experts))
    columns = tiling.rows // 2 if chosen else tiling.rows
    strides = ceil_div(2 * count, experts * tiling.tokens)
    grid = (ceil_div(out.shape[1], columns), experts, strides)
    kind, (weight, scales) = codes_of("weight", weight, x.shape[1]) if is_quantized(weight) else (None, (weight, None))
    chosen_kernel = grouped_gemm_kernel(tiling, x.dtype.name, chosen, stored_together(out, x.dtype), kind)
    launch(chosen_kernel, grid, tiling.threads, (x, pairs, offsets, weight, scales, out), stream, tiling.shared_bytes(kind))
