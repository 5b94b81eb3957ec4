"""W4A16 on Hopper for up to 16 rows of x: TMA brings codes and x to shared memory, every warp unpacks and multiplies steps of its own.

    out[m, n] = sum over groups of scale[n, g] * (sum over the group of x[m, k] * (128 + code[n, k]) - (128 + zero[n, g]) * sum of x[m, k])
                + bias[n]                                    (float16: 16 in place of 128)

At one row of x, an H200's HBM delivers 512 bytes of codes, 1,024 numbers, to each of an SM's four schedulers in the time of some 110
instructions, and shifts and logic take the time of two each. So unpacking decides the speed: a pair of codes costs 0.75 shifts and one
lop3, which puts 0x4300 before both and makes them the bfloat16 numbers 128 + code, exactly. The offset leaves with the sum of x, which
mma.sync computes as one more tile, of ones, once for all rows of weight. In all a warp spends some 50 instructions on 512 bytes (8 tokens,
groups of 128), where int4_tensor_core spends 80, int4_wgmma 110 and the GEMV 240 (tests/kernels/matmul/test_matmul_compilation.py).

A block owns `rows` rows of weight. One thread loads steps of 256 inputs: [rows, 128 bytes] of codes and 4 panels of x. A warp takes every
`warps`-th step, for all rows: it reads each fragment of x once for rows / 16 tiles of mma.sync, releases the stage alone, and never waits
for another warp before the end, when the sums of the warps (and of the blocks of a cluster, which split K) are added in shared memory.

mma.sync adds products in any order of k. So codes stay in the order of the file: ldmatrix gives lane 4 g + t the word t of the 16 bytes
that row g has of 32 inputs, codes 8 t to 8 t + 7; the same inputs of x are one load of 16 bytes. The column g of x is token g / 2 of the
first or the last four of eight, which puts the loads of eight lanes into different banks.

2 M N K FLOPs on N K / 2 bytes of codes; M K b bytes of x per block, from L2.

Source: Frantar et al. 2024, "MARLIN", section 3.4 (the conversion); PTX ISA, "Matrix fragments for mma.m16n8k16", "ldmatrix".
"""

import functools

from numba import cuda, float32, int32

from minllm import ptx
from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.flat.flat import padded_rows
from minllm.kernels.matmul.flat.mainloop import launch_flat_wgmma, mainloop_of
from minllm.kernels.matmul.flat.output import PADDING, make_write, stored_together
from minllm.kernels.matmul.quantized import int4_wgmma
from minllm.kernels.matmul.quantized.int4_tma_consumer import make_consume
from minllm.kernels.matmul.quantized.int4_wgmma import check_product
from minllm.kernels.matmul.quantized.tma_tiling import STEP, X_PANELS, TmaTiling, make_added
from minllm.runtime.kernel import kernel
from minllm.tiles.pipeline import make_pipeline
from minllm.tiles.warp import WARP
from minllm.tiles.warpgroup import sync_blocks

MOST_ROWS = 16


@functools.cache
def int4_tma_kernel(tokens: int, tiling: TmaTiling, group_size: int, dtype: str, gated: bool, together: int):
    """The kernel for x of `dtype` and up to `tokens` rows, 8 or 16; gated and together as in flat_wgmma_kernel."""
    pipeline = make_pipeline(tiling.stages, tiling.stage_bytes(tokens), 1)  # one warp releases a stage
    consume = make_consume(tokens, tiling, dtype, group_size, gated, pipeline)
    tile_of_block, open, begin, consume, produce, _ = mainloop_of(tokens, tiling, gated, pipeline, consume, X_PANELS)
    splits, consumers, columns = tiling.splits, tiling.warps * WARP, tiling.rows // 2 if gated else tiling.rows
    added = make_added(splits, tiling.warps, tokens * (tiling.rows + PADDING))
    write = make_write(tiling.rows, splits * consumers, dtype, gated, together, added)

    @kernel(launch_bounds=(tiling.threads, tiling.blocks(tokens)), dependent_launch=True)
    def int4_tma_kernel(x_map, weight_map, scales, zeros, groups, bias, out, k_steps):
        """x [M, K] in boxes [M, 64], codes [N, K / 2] in boxes [rows, 128 bytes], scales [N * groups], zeros alike or None, bias [N] or
        None, out [M, N] or [M, N / 2]."""
        ptx.griddepcontrol_launch_dependents()
        memory = cuda.shared.array(0, float32, 1024)
        thread = int32(cuda.threadIdx.x)
        column, m = int32(tile_of_block() * columns), int32(out.shape[0])
        share, ring, sums_at = open(memory, k_steps, column, int32(column + out.shape[1]), m)
        if thread == consumers:
            begin(weight_map, ring, share)
        sync_blocks(1)
        if thread < consumers:
            last = int32(out.shape[1] * (2 if gated else 1) - 1)
            consume(memory, sums_at, ring, share, thread, scales, zeros, groups, last)
        elif thread == consumers:
            produce(x_map, weight_map, ring, share)
        sync_blocks(splits)
        if thread < consumers:
            write(bias, None, None, out, memory, sums_at, 0, m, column, share.split * consumers + thread)
        if splits > 1:  # a block's shared memory has to stay while others may read it
            sync_blocks(splits)

    return int4_tma_kernel


def fits(x, weight) -> bool:
    """Whether the kernel takes these arrays, on a GPU with TMA: up to 16 rows of 16 bits, groups of 32, 64 or multiples of 128."""
    return x.shape[0] <= MOST_ROWS and int4_wgmma.fits(x, weight)


def choose_tiling(n: int, gated: bool) -> TmaTiling:
    """Three blocks per SM, of four warps each and a stage per warp; K is split if there are fewer blocks."""
    rows = 2 * n if gated else n
    return TmaTiling(64, warps=4, stages=4, splits=1 if rows > 8192 else 4)


def run(x, weight, out, bias, stream, tiling: TmaTiling | None, gated: bool) -> None:
    """Launch after checks."""
    check_product(x, weight, out, bias, gated, MOST_ROWS)
    if 0 in out.shape:
        return
    tokens, n, k = padded_rows(x.shape[0]), weight.codes.shape[0], x.shape[1]
    tiling = tiling or choose_tiling(out.shape[1], gated)
    groups, flat = weight.scales.shape[1], [None if one is None else one.reshape(-1) for one in (weight.scales, weight.zeros)]
    chosen = int4_tma_kernel(tokens, tiling, k // groups, x.dtype.name, gated, stored_together(out, x.dtype))
    tiles, arguments = ceil_div(n, tiling.rows), (*flat, groups, bias, out, ceil_div(k, STEP))
    launch_flat_wgmma(chosen, x, weight.codes.view("uint16"), arguments, tokens, tiling, tiles, gated, stream, X_PANELS)


def int4_tma(x, weight, out, bias=None, stream=None, tiling: TmaTiling | None = None) -> None:
    """Write x @ weight.T + bias into `out` [M, N]: x [M, K], M <= 16, float16 or bfloat16; weight: an Int4Weight without minimums.

    out and bias are of x's dtype or float32. `tiling` overrides the choice by shape. Raises KernelArgumentError for anything else (see
    `fits`), and on a GPU of another compute capability than 9.0.
    """
    run(x, weight, out, bias, stream, tiling, False)


def gated_int4_tma(x, gate_up, out, stream=None, tiling: TmaTiling | None = None) -> None:
    """Write silu(x @ gate.T) * (x @ up.T) into `out` [M, I]; gate_up: an Int4Weight [2 I, K], the gate's rows first. Errors as above."""
    run(x, gate_up, out, None, stream, tiling, True)
