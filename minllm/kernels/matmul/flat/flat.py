"""Flat GEMM: 1 to 256 rows of x, as in decoding a batch, at nearly the speed of reading the weight once.

    out[m, n] = sum over k of x[m, k] * weight[n, k]  (+ bias[n])          M <= 256, x and weight bfloat16 or float16

Work: 2 M N K FLOPs on 2 N K bytes, M FLOPs per byte. Up to some 150 rows an H200 is memory-bound, but CUDA cores, as in gemv, are too slow
from 2 or 4 rows on. Tensor cores are fast enough, but a library that puts rows of x on a tile side of 64 or 128 multiplies mostly padding.
FlashDecoding++ transposes the product, out.T = weight @ x.T: weight takes the large side, and x the side that is a multiple of 8. Then
each weight is read once, and at most 7 rows are padding.

What remains is to keep memory busy: a ring of tiles in shared memory, tens of KB in flight on every SM (streaming multiprocessor) at any
moment (FlashDecoding++'s double buffer, with more than two), and split-K if weight has too few rows to fill the machine.

    flat_wgmma    Hopper: TMA fills the ring, wgmma multiplies, blocks of a cluster split K
    flat_tiles    every generation: cp.async and mma.sync, warps of a block split K

In a decode step on Hopper, kernels with the same mainloop also add the residual, begin and finish the RMSNorm between two GEMMs, and write
keys and values to the cache: fused.py.

Recorded as "matmul", variant "flat", beside cuBLAS in docs/results/h200.json. The weakest shape is 128 rows by 6144 x 4096: 96 blocks
leave 36 of 132 SMs idle, and two thirds of each block's loads are x.

Larger tiles of weight with a deeper split-K load less, and are still slower. A cluster must fit one GPC, a group of some 16 SMs, which
leaves SMs unused: of clusters of blocks that each fill an SM, 66 of two blocks run at a time, but only 39 of three, 30 of four, 22 of five
and 15 of eight.

Bytes: N K weights once, and M K of x for every block of 64 or 128 rows of weight, from L2.

Rows of K elements must begin on multiples of 16 bytes; the table (variants.py) passes others to tensor_core.

Source: K. Hong et al., "FlashDecoding++: Faster Large Language Model Inference on GPUs", MLSys 2024, section 4.
"""

import numpy as np

from minllm.kernels.arguments import ceil_div, rows_begin_on
from minllm.kernels.matmul.arguments import (
    HALF_DTYPES,
    MOST_ROWS_OF_FLAT,
    check_arguments,
    check_gated_arguments,
    has_wgmma,
    padded_rows,
    why_not,
)
from minllm.kernels.matmul.flat import mma_tiling as flat_mma_tiling
from minllm.kernels.matmul.flat import wgmma_tiling as flat_wgmma_tiling
from minllm.kernels.matmul.flat.flat_wgmma import launch_flat_matmul
from minllm.kernels.matmul.flat.mma_tiling import FlatTiling
from minllm.kernels.matmul.flat.output import stored_together
from minllm.kernels.matmul.flat.tiles import flat_tiles_kernel
from minllm.kernels.matmul.flat.wgmma_tiling import FlatWgmmaTiling
from minllm.kernels.matmul.shared_tiles import with_stages_for_gpu
from minllm.runtime.kernel import check, launch


def fits_flat(x, weight) -> bool:
    """Whether the flat kernels support these arrays: at most 256 rows of x, and rows of both aligned to 16 bytes."""
    return x.dtype in HALF_DTYPES and x.shape[0] <= MOST_ROWS_OF_FLAT and rows_begin_on(16, x, weight)


def matmul_flat(x, weight, out, bias=None, stream=None, tiling: FlatTiling | FlatWgmmaTiling | None = None) -> None:
    """Write x @ weight.T + bias into `out`: x [M, K] with M <= 256, weight [N, K], bias [N], out [M, N].

    x and weight are float16 or bfloat16; out and bias are of that dtype or float32. `tiling` overrides the choice by shape and decides
    which kernel runs. Raises KernelArgumentError if shapes or dtypes do not fit, M is more than 256, or rows of x or weight do not begin
    on multiples of 16 bytes (VARIANTS["flat"] then runs tensor_core).
    """
    m, n, _ = check_arguments(x, weight, out, bias, HALF_DTYPES)
    check_rows(m)
    if m == 0 or n == 0:
        return
    check(why_not(x, weight) is None, f"x is {x.dtype} {list(x.shape)}; {why_not(x, weight)}")
    launch_flat(x, weight, out, bias, stream, tiling, gated=False)


def gated_flat(x, gate_up, out, stream=None, tiling: FlatTiling | FlatWgmmaTiling | None = None) -> None:
    """Write silu(x @ gate.T) * (x @ up.T) into `out` [M, I]: x [M, K] with M <= 256, gate_up [2 * I, K], the gate in its first half.

    One dtype: float16 or bfloat16. Sums and gate are float32, rounded once. `tiling` as in matmul_flat, its rows a multiple of 32.
    Raises KernelArgumentError if shapes or dtypes do not fit, M is more than 256, or rows of x or gate_up do not begin on multiples
    of 16 bytes.
    """
    check_gated_arguments(x, gate_up, out, HALF_DTYPES)
    check_rows(out.shape[0])
    if 0 in out.shape:
        return
    check(fits_flat(x, gate_up), f"x is {x.dtype} {list(x.shape)}; its rows and those of gate_up must begin on multiples of 16 bytes")
    launch_flat(x, gate_up, out, None, stream, tiling, gated=True)


def check_rows(m: int) -> None:
    """Raise KernelArgumentError if x has more rows than the kernels support."""
    check(m <= MOST_ROWS_OF_FLAT, f"flat multiplies up to {MOST_ROWS_OF_FLAT} rows of x, not {m}: choose tensor_core, or variant='auto'")


def launch_flat(x, weight, out, bias, stream, tiling, gated):
    """Launch for checked arrays: flat_wgmma on Hopper, flat_tiles elsewhere and in the simulator."""
    (m, n), k = out.shape, x.shape[1]
    tokens, hopper = padded_rows(m), has_wgmma(x)
    if tiling is None:
        hoppers = hopper and not isinstance(x, np.ndarray)
        tiling = (flat_wgmma_tiling if hoppers else flat_mma_tiling).choose_tiling(tokens, n, k, gated)
        tiling = tiling if hoppers else with_stages_for_gpu(tiling)
    if isinstance(tiling, FlatWgmmaTiling):
        check(hopper, f"{tiling} needs a GPU of compute capability 9.0: give a FlatTiling, or none")
        launch_flat_matmul(x, weight, (None, None), out, bias, x.dtype.name, x.dtype.name, tiling, gated, stream)
        return
    tokens, columns = min(tokens, flat_mma_tiling.MOST_TOKENS), tiling.rows // 2 if gated else tiling.rows  # columns of out per block
    chosen = flat_tiles_kernel(tokens, tiling, x.dtype.name, gated, stored_together(out, x.dtype))
    arguments, grid = (x, weight, bias, out), (ceil_div(n, columns), ceil_div(m, tokens))
    launch(chosen, grid, tiling.threads, arguments, stream, tiling.shared_bytes(tokens))
