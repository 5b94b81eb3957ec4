"""W4A16 over NF4 on Hopper for few rows of x: as int4_tma.py, with a table of pairs in shared memory in place of arithmetic.

    out[m, n] = sum over blocks of absmax[n, b] * (sum over the block of x[m, k] * table[code[n, k]]) + bias[n]          absmax: nf4.py

An NF4 code is the index of one of 16 numbers. A byte holds two codes, and a table of pairs turns it into a register of mma.sync's operand
with one load (nf4_pairs.py). A pair costs a shift, a lop3 and this load, where int4 takes 1.75 instructions.

A block of 64 inputs has an absmax, itself an 8-bit code with a scale and an offset. A lane finds those of one of the four blocks of a step,
for its rows, a step ahead; a shuffle passes them on. Products with table entries are summed per block, and enter the sums times absmax.

2 M N K FLOPs on N K / 2 bytes of codes and N K / 64 of absmax for each 8 rows of x, which are a launch of their own: up to 32 rows that
takes less time than writing the matrix in 16 bits. TMA, stages and the sums of warps and clusters are those of int4_tma.py.

Source: Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs", section 3; PTX ISA, "Matrix fragments for mma.m16n8k16".
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint8, uint32

from minllm import ptx
from minllm.kernels.arguments import ceil_div, check_array, rows_begin_on
from minllm.kernels.matmul.arguments import FLOAT32, HALF_DTYPES, has_wgmma
from minllm.kernels.matmul.flat.mainloop import launch_flat_wgmma, mainloop_of
from minllm.kernels.matmul.flat.output import PADDING, make_write, stored_together
from minllm.kernels.matmul.flat.wgmma_tiling import LINE_BYTES
from minllm.kernels.matmul.fragments import MULTIPLY
from minllm.kernels.matmul.quantized.nf4 import BLOCK_SHIFT, NESTED_SHIFT
from minllm.kernels.matmul.quantized.nf4_pairs import ENTRY_SHIFT, PAIRS_BYTES, make_fill_pairs
from minllm.kernels.matmul.quantized.tma_tiling import (
    CHUNK_BYTES,
    STEP,
    TILE_ROWS,
    X_PANELS,
    TmaTiling,
    make_added,
    make_keep_sums,
    make_row_of,
)
from minllm.kernels.vector import load_words
from minllm.runtime.kernel import check, kernel
from minllm.tiles.pipeline import BARRIER_BYTES, Pipeline, make_pipeline
from minllm.tiles.warp import ALL_LANES, WARP
from minllm.tiles.warpgroup import sync_blocks

TOKENS = 8  # the columns of mma.sync
MOST_ROWS = 32
BLOCKS = STEP >> BLOCK_SHIFT  # blocks of NF4 in a step of a row of weight
ENTRY_MASK = 255 << ENTRY_SHIFT


class Rows(NamedTuple):
    """Of a lane's rows of weight: where their absmax begin, the numbers of their first blocks, and what is added to absmax."""

    starts: Any
    firsts: Any
    offsets: Any


@cuda.jit(device=True, forceinline=True)
def pair_of_byte(pairs, word, i, copy):
    """The two numbers of byte i of a word; copy: where the lane's begins, in bytes."""
    if i == 0:
        return ptx.load_32(pairs, (word << uint32(ENTRY_SHIFT) & uint32(ENTRY_MASK)) | copy)
    return ptx.load_32(pairs, (word >> uint32(8 * i - ENTRY_SHIFT) & uint32(ENTRY_MASK)) | copy)


def make_multiply_chunk(rows: int, dtype: str):
    """The device function with which a warp multiplies 32 inputs of all rows of a stage."""
    tiles, a_words, pair_bytes = rows // TILE_ROWS, rows // TILE_ROWS * 2, 2 * TILE_ROWS * LINE_BYTES
    multiply = MULTIPLY[dtype]

    @cuda.jit(device=True, forceinline=True)
    def multiply_chunk(memory, pairs, codes, x, copy, products):
        """products += table[codes] x; codes: the shared address of the lane's row for ldmatrix; x: the word of the lane's inputs."""
        a, right, words = cuda.local.array(4, uint32), cuda.local.array(4, uint32), cuda.local.array(a_words, uint32)
        load_words(memory, x, right, 0)
        for pair in range(tiles // 2):
            ptx.ldmatrix_x4(words, 4 * pair, uint32(codes + pair * pair_bytes))
        for half in range(2):
            for tile in range(tiles):
                for i in range(2):
                    a[2 * i] = pair_of_byte(pairs, words[2 * tile], 2 * half + i, copy)
                    a[2 * i + 1] = pair_of_byte(pairs, words[2 * tile + 1], 2 * half + i, copy)
                multiply(products, 4 * tile, a, 0, right, 2 * half)

    return multiply_chunk


def make_scales(rows: int):
    """The device functions (find_scales, add_block): absmax of a lane's rows, and what a block of inputs adds to the sums."""
    own = rows // 8

    @cuda.jit(device=True, forceinline=True)
    def find_scales(absmax, nested, absmax_map, rows, block, last, values):
        """values[i] = absmax of a block of the lane's i-th row; of the row's last block, `last`, for any beyond."""
        block = uint32(min(block, last))
        for i in range(own):
            found = absmax[uint32(rows.starts[i] + block)]
            if nested is None:
                values[i] = found
            else:
                values[i] = absmax_map[found] * nested[uint32(rows.firsts[i] + block) >> uint32(NESTED_SHIFT)] + rows.offsets[i]

    @cuda.jit(device=True, forceinline=True)
    def add_block(sums, products, values, block, lane):
        """sums += products * absmax; the lane 4 g + block of a group of four has the absmax of the block."""
        for i in range(own):
            absmax = cuda.shfl_sync(ALL_LANES, values[i], (lane & 28) + block)
            at = 4 * (i // 2) + 2 * (i % 2)
            sums[at] += absmax * products[at]
            sums[at + 1] += absmax * products[at + 1]

    return find_scales, add_block


def make_consume(tiling: TmaTiling, dtype: str, halves: bool, pipeline: Pipeline):
    """The device function of a consuming warp: the sums of its steps for all rows and tokens, left in shared memory."""
    (rows, warps, _, _), own, stage_bytes = tiling, tiling.rows // 8, tiling.stage_bytes(TOKENS)
    registers, weight_words, panel_words = own * 2, rows * LINE_BYTES // 4, TOKENS * LINE_BYTES // 4
    multiply_chunk, row_of, keep_sums = make_multiply_chunk(rows, dtype), make_row_of(rows, halves), make_keep_sums(TOKENS, rows)
    (find_scales, add_block), warp_words = make_scales(rows), TOKENS * (rows + PADDING)

    @cuda.jit(device=True, forceinline=True)
    def multiply_block(memory, pairs, codes, x, block, copy, products):
        """products = the products of the 64 inputs of a block: two chunks of codes, a panel of x."""
        for i in range(registers):
            products[i] = float32(0)
        codes, x = codes ^ (uint32(2 * block) << uint32(4)), x + uint32(block * panel_words)
        multiply_chunk(memory, pairs, codes, x, copy, products)
        multiply_chunk(memory, pairs, codes ^ uint32(CHUNK_BYTES), x ^ uint32(16), copy, products)

    @cuda.jit(device=True, forceinline=True)
    def consume(memory, sums_at, ring, share, thread, pairs, absmax, nested, absmax_map, offsets, first_blocks, blocks, last):
        """memory[sums_at + (warp * tokens + token) * stride + row] = the sums of this warp's steps; last: the last row of weight."""
        lane, warp = thread & (WARP - 1), thread >> 5
        g, t = lane >> 2, lane & 3
        of_rows = Rows(cuda.local.array(own, uint32), cuda.local.array(own, uint32), cuda.local.array(own, float32))
        values, next_values = cuda.local.array(own, float32), cuda.local.array(own, float32)
        sums, products = cuda.local.array(registers, float32), cuda.local.array(registers, float32)
        for i in range(own):
            row = row_of(8 * i + g, share, last)
            of_rows.starts[i] = ptx.keep_register(uint32(row * uint32(blocks)))
            of_rows.firsts[i], of_rows.offsets[i] = uint32(first_blocks[row]), offsets[row]
        token = min((g >> 1) + ((g & 1) << 2), share.m - 1)  # the last one stands for those that are absent
        own_x = uint32(sums_at + weight_words + token * (LINE_BYTES // 4) + ((t ^ (token & 7)) << 2))
        own_codes, copy = uint32(ring.stages + lane * LINE_BYTES + ((lane & 7) << 4)), uint32(4 * lane)
        for i in range(registers):
            sums[i] = float32(0)
        step = int32(warp)
        block = int32((share.first_step + step) * BLOCKS + t)
        find_scales(absmax, nested, absmax_map, of_rows, block, blocks - 1, next_values)
        while step < share.steps:
            state = pipeline.state(step)
            for i in range(own):
                values[i] = next_values[i]
            block = int32(block + warps * BLOCKS)
            find_scales(absmax, nested, absmax_map, of_rows, block, blocks - 1, next_values)
            pipeline.consumer_wait(ring, state)
            begin = uint32(state.slot * uint32(stage_bytes))
            for i in range(BLOCKS):
                multiply_block(memory, pairs, own_codes + begin, own_x + (begin >> uint32(2)), i, copy, products)
                add_block(sums, products, values, i, lane)
            cuda.syncwarp()
            if lane == 0:
                ptx.mbarrier_arrive(ring.empty + uint32(BARRIER_BYTES) * state.slot)
            step = int32(step + warps)
        ptx.bar_sync(1, warps * WARP)  # all steps have been multiplied: the sums may lie in their place
        keep_sums(sums, memory, sums_at + warp * warp_words, lane)

    return consume


@functools.cache
def nf4_tma_kernel(tiling: TmaTiling, dtype: str, gated: bool, together: int):
    """The kernel for x of `dtype`; gated and together as in flat_wgmma_kernel."""
    pipeline = make_pipeline(tiling.stages, tiling.stage_bytes(TOKENS), 1)  # one warp releases a stage
    consume, splits, consumers = make_consume(tiling, dtype, gated, pipeline), tiling.splits, tiling.warps * WARP
    tile_of_block, open, begin, consume, produce, _ = mainloop_of(TOKENS, tiling, gated, pipeline, consume, X_PANELS)
    columns, fill_pairs = tiling.rows // 2 if gated else tiling.rows, make_fill_pairs(dtype)
    added = make_added(splits, tiling.warps, TOKENS * (tiling.rows + PADDING))
    write = make_write(tiling.rows, splits * consumers, dtype, gated, together, added)

    @kernel(launch_bounds=(tiling.threads, 2), dependent_launch=True)
    def nf4_tma_kernel(x_map, weight_map, absmax, nested, absmax_map, offsets, first_blocks, table, blocks, bias, out, k_steps):
        """x [M, K] in boxes [M, 64], codes [N, K / 2] in boxes [rows, 128 bytes], absmax [N * blocks], table [16], bias [N] or None, out
        [M, N] or [M, N / 2]; the others as in nf4_gemv_kernel."""
        ptx.griddepcontrol_launch_dependents()
        memory, pairs = cuda.shared.array(0, float32, 1024), cuda.shared.array(PAIRS_BYTES, uint8, 128)
        thread = int32(cuda.threadIdx.x)
        column, m = int32(tile_of_block() * columns), int32(out.shape[0])
        share, ring, sums_at = open(memory, k_steps, column, int32(column + out.shape[1]), m)
        if thread == consumers:
            begin(weight_map, ring, share)
        elif thread < consumers:
            fill_pairs(pairs, table, thread, consumers)
        sync_blocks(1)
        if thread < consumers:
            last = int32(out.shape[1] * (2 if gated else 1) - 1)
            consume(memory, sums_at, ring, share, thread, pairs, absmax, nested, absmax_map, offsets, first_blocks, blocks, last)
        elif thread == consumers:
            produce(x_map, weight_map, ring, share)
        sync_blocks(splits)
        if thread < consumers:
            write(bias, None, None, out, memory, sums_at, 0, m, column, share.split * consumers + thread)
        if splits > 1:  # a block's shared memory has to stay while others may read it
            sync_blocks(splits)

    return nf4_tma_kernel


def fits(x, weight) -> bool:
    """Whether the kernel takes these arrays, on a GPU with TMA: up to 32 rows of 16 bits that begin on multiples of 16 bytes."""
    return x.shape[0] <= MOST_ROWS and x.dtype in HALF_DTYPES and rows_begin_on(16, x, weight.codes)


def choose_tiling(n: int, gated: bool) -> TmaTiling:
    """Two blocks per SM, and a stage per warp; K is split if there are fewer blocks."""
    return TmaTiling(64, 6, 6) if (2 * n if gated else n) > 8192 else TmaTiling(64, 4, 4, 4)


def run(x, weight, out, bias, stream, tiling: TmaTiling | None, gated: bool) -> None:
    """Launch after checks."""
    (m, k), n = x.shape, weight.codes.shape[0]
    words = f"x is {x.dtype} {[m, k]}; this product of NF4 takes up to {MOST_ROWS} rows of float16 or bfloat16 that begin on"
    check(fits(x, weight), words + " multiples of 16 bytes: take the GEMV, or widen the weight")
    check(has_wgmma(x), "this product of NF4 needs a GPU of compute capability 9.0: take the GEMV, or widen the weight")
    check_array("codes", weight.codes, (np.dtype(np.uint8),), N=n, bytes=k // 2)
    check_array("out", out, (x.dtype,) if gated else (x.dtype, FLOAT32), M=m, N=n // 2 if gated else n)
    if bias is not None:
        check_array("bias", bias, (x.dtype, FLOAT32), N=n)
    if 0 in out.shape:
        return
    tiling, blocks = tiling or choose_tiling(out.shape[1], gated), weight.absmax.shape[1]
    chosen = nf4_tma_kernel(tiling, x.dtype.name, gated, stored_together(out, x.dtype))
    arrays = (weight.absmax.reshape(-1), weight.nested, weight.map, weight.offsets, weight.first_blocks, weight.table, blocks, bias)
    codes, tiles = weight.codes.view("uint16"), ceil_div(n, tiling.rows)
    for first in range(0, m, TOKENS):
        part = slice(first, min(first + TOKENS, m))
        arguments = (*arrays, out[part], ceil_div(k, STEP))
        launch_flat_wgmma(chosen, x[part], codes, arguments, TOKENS, tiling, tiles, gated, stream, X_PANELS)


def nf4_tma(x, weight, out, bias=None, stream=None, tiling: TmaTiling | None = None) -> None:
    """Write x @ weight.T + bias into `out` [M, N]: x [M, K], M <= 32, float16 or bfloat16; weight: an Nf4Weight.

    out and bias are of x's dtype or float32. `tiling` overrides the choice by shape. Raises KernelArgumentError for anything else (see
    `fits`), and on a GPU of another compute capability than 9.0.
    """
    run(x, weight, out, bias, stream, tiling, False)


def gated_nf4_tma(x, gate_up, out, stream=None, tiling: TmaTiling | None = None) -> None:
    """Write silu(x @ gate.T) * (x @ up.T) into `out` [M, I]; gate_up: an Nf4Weight [2 I, K], the gate's rows first. Errors as above."""
    run(x, gate_up, out, None, stream, tiling, True)
