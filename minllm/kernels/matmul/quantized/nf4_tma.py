"""W4A16 over NF4 on Hopper for up to 8 rows of x: as int4_tma.py, with a table of pairs in shared memory in place of arithmetic.

    out[m, n] = sum over blocks of absmax[n, b] * (sum over the block of x[m, k] * table[code[n, k]]) + bias[n]          absmax: nf4.py

2 M N K FLOPs on N K / 2 bytes of codes and N K / 64 of absmax. TMA, stages and the sums of warps and clusters are those of int4_tma.py.

Source: Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs", section 3; PTX ISA, "Matrix fragments for mma.m16n8k16".
"""

import functools

import numpy as np
from numba import cuda, float32, int32, uint8, uint32

from minllm import ptx
from minllm.kernels.arguments import ceil_div, check_array, rows_begin_on
from minllm.kernels.matmul.arguments import HALF_DTYPES, has_wgmma
from minllm.kernels.matmul.flat.mainloop import launch_flat_wgmma, mainloop_of
from minllm.kernels.matmul.flat.output import PADDING, make_write, stored_together
from minllm.kernels.matmul.quantized.arguments import check_out
from minllm.kernels.matmul.quantized.nf4 import Nf4Arrays
from minllm.kernels.matmul.quantized.nf4_pairs import PAIRS_BYTES, make_fill_pairs
from minllm.kernels.matmul.quantized.nf4_tma_consumer import TOKENS, Rows, make_consume
from minllm.kernels.matmul.quantized.tma_tiling import STEP, X_PANELS, TmaTiling, make_added
from minllm.runtime.kernel import check, kernel
from minllm.tiles.pipeline import make_pipeline
from minllm.tiles.warp import WARP
from minllm.tiles.warpgroup import sync_blocks

MOST_ROWS = TOKENS


@functools.cache
def nf4_tma_kernel(tiling: TmaTiling, dtype: str, gated: bool, together: int):
    """The kernel for x of `dtype`; gated and together as in flat_wgmma_kernel."""
    pipeline = make_pipeline(tiling.stages, tiling.stage_bytes(TOKENS), 1)  # one warp releases a stage
    (begin_rows, consume), splits, consumers = make_consume(tiling, dtype, gated, pipeline), tiling.splits, tiling.warps * WARP
    tile_of_block, open, begin, consume, produce, _ = mainloop_of(TOKENS, tiling, gated, pipeline, consume, X_PANELS)
    columns, own, fill_pairs = tiling.rows // 2 if gated else tiling.rows, tiling.rows // 8, make_fill_pairs(dtype)
    added = make_added(splits, tiling.warps, TOKENS * (tiling.rows + PADDING))
    write = make_write(tiling.rows, splits * consumers, dtype, gated, together, added)

    @kernel(launch_bounds=(tiling.threads, 2), dependent_launch=True)
    def nf4_tma_kernel(x_map, weight_map, weight, bias, out, k_steps):
        """x [M, K] in boxes [M, 64], codes [N, K / 2] in boxes [rows, 128 bytes], weight: Nf4Arrays with absmax [N * blocks], bias [N]
        or None, out [M, N] or [M, N / 2]."""
        ptx.griddepcontrol_launch_dependents()
        memory, pairs = cuda.shared.array(0, float32, 1024), cuda.shared.array(PAIRS_BYTES, uint8, 128)
        rows = Rows(
            cuda.local.array(own, uint32), cuda.local.array(own, uint32), cuda.local.array(own, float32),
            cuda.local.array(own, uint32), cuda.local.array(own, float32),
        )  # fmt: skip
        thread = int32(cuda.threadIdx.x)
        column, m = int32(tile_of_block() * columns), int32(out.shape[0])
        share, ring, sums_at = open(memory, k_steps, column, int32(column + out.shape[1]), m)
        if thread == consumers:
            begin(weight_map, ring, share)
        elif thread < consumers:
            begin_rows(weight, rows, share, thread)
            fill_pairs(pairs, weight.table, thread, consumers)
        sync_blocks(1)
        if thread < consumers:
            consume(memory, sums_at, ring, share, thread, pairs, weight, rows)
        elif thread == consumers:
            produce(x_map, weight_map, ring, share)
        sync_blocks(splits)
        if thread < consumers:
            write(bias, None, None, out, memory, sums_at, 0, m, column, share.split * consumers + thread)
        if splits > 1:  # a block's shared memory has to stay while others may read it
            sync_blocks(splits)

    return nf4_tma_kernel


def fits(x, weight) -> bool:
    """Whether the kernel takes these arrays, on a GPU with TMA: up to 8 rows of 16 bits that begin on multiples of 16 bytes."""
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
    check_out(x, out, bias, n, gated)
    if 0 in out.shape:
        return
    tiling = tiling or choose_tiling(out.shape[1], gated)
    chosen = nf4_tma_kernel(tiling, x.dtype.name, gated, stored_together(out, x.dtype))
    flat = Nf4Arrays(*weight)._replace(absmax=weight.absmax.reshape(-1))
    codes, arguments = weight.codes.view("uint16"), (flat, bias, out, ceil_div(k, STEP))
    launch_flat_wgmma(chosen, x, codes, arguments, TOKENS, tiling, ceil_div(n, tiling.rows), gated, stream, X_PANELS)


def nf4_tma(x, weight, out, bias=None, stream=None, tiling: TmaTiling | None = None) -> None:
    """Write x @ weight.T + bias into `out` [M, N]: x [M, K], M <= 8, float16 or bfloat16; weight: an Nf4Weight.

    out and bias are of x's dtype or float32. `tiling` overrides the choice by shape. Raises KernelArgumentError for anything else (see
    `fits`), and on a GPU of another compute capability than 9.0.
    """
    run(x, weight, out, bias, stream, tiling, False)


def gated_nf4_tma(x, gate_up, out, stream=None, tiling: TmaTiling | None = None) -> None:
    """Write silu(x @ gate.T) * (x @ up.T) into `out` [M, I]; gate_up: an Nf4Weight [2 I, K], the gate's rows first. Errors as above."""
    run(x, gate_up, out, None, stream, tiling, True)
