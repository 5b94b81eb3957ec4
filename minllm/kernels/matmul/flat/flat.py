"""Flat matrix product: 1 to 256 rows of x, which is what decoding a batch does, at the speed at which a weight can be read once.

    out[m, n] = sum over k of x[m, k] * weight[n, k]  (+ bias[n])          M <= 256, x and weight bfloat16 or float16

Work: 2 M N K operations on 2 N K bytes, M operations a byte. Up to some 150 rows memory is the limit on an H200, but threads that multiply
one by one, as gemv's do, are not fast enough from 2 or 4 rows on. Tensor cores are; only their tiles do not fit: a library that gives rows
of x the side of 64 or 128 multiplies mostly padding. FlashDecoding++ turns the product around, out.T = weight @ x.T: weight takes the
large side, and x the side that is a multiple of 8. Then each weight is read once, and nobody multiplies more than 7 rows too many.

What remains is to keep memory busy: a ring of tiles in shared memory, tens of KB under way on every multiprocessor at any moment
(FlashDecoding++'s double buffer, with more than two), and K divided where there are too few rows of weight to fill the machine.

    flat_wgmma    Hopper: the copy engine fills the ring, wgmma multiplies, blocks of a cluster divide K
    flat_tiles    every generation from 8.0 on: cp.async and mma.sync, warps of a block divide K

On an H200, in bfloat16, a weight of 4096 x 14336 takes 28.1 µs for 8 rows, 29.4 for 32 and 34.6 for 128 (cuBLAS 32.4, 33.4, 37.6): 4.2
TB/s up to 16 rows. Of 6144 x 4096, 64 rows take 15.2 µs (cuBLAS 15.9), 128 rows 17.8 (16.5): 96 blocks leave 36 multiprocessors idle, and
two thirds of what each takes in is x (were it fetched for the first ring only, that would save 1.3 µs). wgmma takes 16.2, with 64 clusters
of two blocks, each with 96 rows of weight, of which it fetches one half for both, and with 64 rows of x.

Larger tiles of weight with K divided more often fetch less, and are slower all the same. A cluster lies within one group of some 16
multiprocessors, and groups are not whole multiples: 66 clusters of two blocks that fill a multiprocessor each run at one time, but only 39
of three, 30 of four, 22 of five and 15 of eight. So 192 rows of weight by clusters of four, 32 of them, take two rounds: 35 µs. And 128
rows by clusters of two, 18.3 µs, spend 2.8 on reading each other's sums and writing, where blocks that divide nothing spend 1.0.

Bytes: N K weights once, and M K of x for every block of 64 or 128 rows of weight, which come from L2.

Rows of K elements must begin on multiples of 16 bytes; where they do not, `matmul_flat` leaves the product to tensor_core, which then
reads element by element.

Source: K. Hong et al., "FlashDecoding++: Faster Large Language Model Inference on GPUs", MLSys 2024, section 4.
"""

import numpy as np

from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.arguments import HALF_DTYPES, MOST_ROWS_OF_FLAT, check_arguments, check_gated_arguments
from minllm.kernels.matmul.flat import tiles as flat_tiles
from minllm.kernels.matmul.flat import wgmma_tiling as flat_wgmma_tiling
from minllm.kernels.matmul.flat.flat_wgmma import flat_wgmma_kernel
from minllm.kernels.matmul.flat.output import stored_together
from minllm.kernels.matmul.flat.tiles import FlatTiling, flat_tiles_kernel
from minllm.kernels.matmul.flat.wgmma_tiling import TILE_K, FlatWgmmaTiling
from minllm.kernels.matmul.variants import VARIANTS
from minllm.kernels.matmul.wgmma.wgmma import has_wgmma
from minllm.kernels.vector import vectors_a_row
from minllm.runtime.kernel import check, launch
from minllm.runtime.tensor_map import tensor_map

PADDED_ROWS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # of x, that kernels are compiled for


def fits_flat(x, weight) -> bool:
    """Whether the flat kernels take these arrays: at most 256 rows of x, all of them and of weight beginning on multiples of 16 bytes."""
    return x.dtype in HALF_DTYPES and x.shape[0] <= MOST_ROWS_OF_FLAT and vectors_a_row(x.shape[1], x, weight) > 0


def matmul_flat(x, weight, out, bias=None, stream=None, tiling: FlatTiling | FlatWgmmaTiling | None = None) -> None:
    """Write x @ weight.T + bias into `out`: x [M, K] with M <= 256, weight [N, K], bias [N], out [M, N].

    x and weight are float16 or bfloat16; out and bias are of that dtype or float32. Where rows of x or weight do not begin on multiples of
    16 bytes (see `fits_flat`) the product is tensor_core's.

    `tiling` overrides the choice by shape and decides which kernel runs. Raises KernelArgumentError where shapes or dtypes do not fit, or
    M is more than 256.
    """
    m, n, _ = check_arguments(x, weight, out, bias, HALF_DTYPES)
    check_rows(m)
    if m == 0 or n == 0:
        return
    if fits_flat(x, weight):
        launch_flat(x, weight, out, bias, stream, tiling, gated=False)
    else:
        VARIANTS.stand_in("flat")(x, weight, out, bias, stream)


def gated_flat(x, gate_up, out, stream=None, tiling: FlatTiling | FlatWgmmaTiling | None = None) -> None:
    """Write silu(x @ gate.T) * (x @ up.T) into `out` [M, I]: x [M, K] with M <= 256, gate_up [2 * I, K], the gate in its first half.

    One dtype: float16 or bfloat16. Sums and gate are float32, and rounded once. `tiling` as in matmul_flat, its rows a multiple of 32.
    Raises KernelArgumentError where shapes or dtypes do not fit, M is more than 256, or rows of x or gate_up do not begin on multiples
    of 16 bytes.
    """
    check_gated_arguments(x, gate_up, out, HALF_DTYPES)
    check_rows(out.shape[0])
    if 0 in out.shape:
        return
    check(fits_flat(x, gate_up), f"x is {x.dtype} {list(x.shape)}; its rows and those of gate_up must begin on multiples of 16 bytes")
    launch_flat(x, gate_up, out, None, stream, tiling, gated=True)


def check_rows(m: int) -> None:
    """Raise KernelArgumentError for more rows of x than the kernels take."""
    check(m <= MOST_ROWS_OF_FLAT, f"flat multiplies up to {MOST_ROWS_OF_FLAT} rows of x, not {m}: choose tensor_core, or variant='auto'")


def launch_flat(x, weight, out, bias, stream, tiling, gated):
    """Launch for arrays that were checked: on Hopper the kernel that is made for it, the other one elsewhere and in the simulator."""
    (m, n), k = out.shape, x.shape[1]
    tokens = min(padded for padded in PADDED_ROWS if padded >= m)
    together = stored_together(out, x.dtype)
    hopper = has_wgmma(x)
    if tiling is None:
        hoppers = hopper and not isinstance(x, np.ndarray)
        tiling = (flat_wgmma_tiling if hoppers else flat_tiles).choose_tiling(tokens, n, k, gated)
    if isinstance(tiling, FlatWgmmaTiling):
        check(hopper, f"{tiling} needs a GPU of compute capability 9.0: give a FlatTiling, or none")
        # Blocks that share tiles of x fetch whole eights of rows each.
        tokens = min(padded for padded in PADDED_ROWS if padded >= m and padded % (8 * tiling.sharers) == 0)
    columns = tiling.rows // 2 if gated else tiling.rows  # of out, that a block computes
    blocks = ceil_div(n, columns)
    if isinstance(tiling, FlatTiling):
        tokens = min(tokens, flat_tiles.MOST_TOKENS)
        chosen = flat_tiles_kernel(tokens, tiling, x.dtype.name, gated, together)
        arguments, grid = (x, weight, bias, out), (blocks, ceil_div(m, tokens))
        launch(chosen, grid, tiling.threads, arguments, stream, tiling.shared_bytes(tokens))
    else:
        chosen = flat_wgmma_kernel(tokens, tiling, x.dtype.name, gated, together)
        # Of tokens that are not there none are fetched: the copy engine would take four times as long to fill them with zeros.
        x_map = tensor_map(x, (m if tiling.sharers == 1 else tokens // tiling.sharers, TILE_K), promotion=128)
        weight_map = tensor_map(weight, (columns, TILE_K), promotion=128)
        arguments = (x_map, weight_map, bias, out, ceil_div(k, TILE_K))
        cluster = tiling.splits * tiling.sharers
        grid, cluster = ceil_div(blocks, tiling.sharers) * cluster, None if cluster == 1 else (cluster, 1, 1)
        launch(chosen, grid, tiling.threads, arguments, stream, tiling.shared_bytes(tokens), cluster)
