"""Matrix product of Hopper, last rung: the copy engine and the tensor cores work on their own, and threads only tell them what to do.

    out[m, n] = sum over k of x[m, k] * weight[n, k]  (+ bias[n])  (+ residual[m, n])          x and weight bfloat16 or float16
    out[m, n] = silu(gate[m, n]) * up[m, n]           gate and up the products with the first and the second half of weight's rows

A warpgroup (128 threads) starts wgmma: 64 x tile_n outputs += 64 x 16 by 16 x tile_n, both operands straight from shared memory, sums in
registers. 128 x 256 outputs a block read (128 + 256) 64 elements for 2 * 128 * 256 * 64 operations a step: 85 FLOP a byte from L2.

    roles       One thread of a first warpgroup, the producer, starts the copies of tiles (TMA); two consumer warpgroups multiply them, 64
                rows each (roles.py). A ring of four steps' tiles is between them (ring.py). setmaxnreg gives the producer's
                registers to the consumers, who hold 128 sums a thread.
    in flight   A consumer starts the products of a step, then waits for those of the step before: the tensor cores have work while it
                gives tiles back and waits for new ones. Its loop has some 35 instructions for 4 wgmma; with 60, among them an address
                that the compiler would rather compute again, the tensor cores stand still 8 % of the time instead of 1 %.
    persistent  As many blocks as multiprocessors, each with one tile after another (tile_order.py): the producer fetches the next
                tile's first steps while the consumers write this one.
    epilogue    Bias, residual or the gate are applied to sums in registers, which leave through shared memory and the copy engine while
                the next tile is multiplied (epilogue.py). For the gate, a tile of weight is half gate and half up rows, so that
                a thread has both sums of an output: 2 I columns of products never reach memory.
    clusters    Two blocks share every tile of weight, each fetching half of it for both, where out has rows of tiles for both.
    tile shape  By what fills the machine: 2048 x 3072 outputs are 192 tiles of 128 x 256, one and a half for each of 132
                multiprocessors, but 256 tiles of 128 x 192, nearly two (tiling.py).
    few rows    Up to 256 rows of x, reading weight takes longer than multiplying it. Tiles of 96 or 64 columns give nearly every
                multiprocessor one: 6144 columns are 64 clusters of two blocks. Rows of x are divided evenly among consumers, in boxes
                that end where x ends (absent_rows.py). And blocks start in the last microseconds of the kernel before (programmatic
                dependent launch): a ring of weights, which nobody writes, is there when x is. Larger tiles whose blocks divide K would
                fetch less, but are slower: see flat.py.

On an H200 it computes 780 to 820 TFLOP/s at the shapes of an 8B model's prompt of 2048 tokens and at 4096 and 8192 cubed, 1.00 to 1.02
times cuBLAS beside it, and 680 to 750, as cuBLAS does, once the GPU is hot and lowers its clock to stay within its power. Of a weight of
6144 x 4096, 128 rows take 16.2 µs (cuBLAS 16.5), 256 rows 21.0 (20.8), 224 rows 20.5 (25.9).

Work: 2 M N K operations; x is read by every column of tiles, weight by every row of tiles (of clusters): M K ceil(N / tile_n) and
N K ceil(M / tile_m) / cluster elements from L2, each once from memory if L2 holds what neighbouring tiles share; out is written once.
The result does not depend on which block computes a tile: every run gives the same bits.

Any M, N and K: the copy engine fills with zeros beyond the edges and writes nothing there. Where rows of x or weight do not begin on 16
bytes it cannot fetch, and tensor_core takes over.

Source: PTX ISA, "wgmma.mma_async", "cp.async.bulk.tensor", "mbarrier", "setmaxnreg"; NVIDIA, "CUTLASS: Efficient GEMM in CUDA" (warp
specialisation, persistent kernels).
"""

import functools

import numpy as np
from numba import cuda, int32, uint8, uint32

from minllm import ptx
from minllm.kernels.arguments import ceil_div, check_array
from minllm.kernels.matmul.arguments import HALF_DTYPES, check_arguments, check_gated_arguments
from minllm.kernels.matmul.variants import HOPPER, VARIANTS
from minllm.kernels.matmul.wgmma.epilogue import ROWS
from minllm.kernels.matmul.wgmma.ring import make_ring
from minllm.kernels.matmul.wgmma.roles import make_consume, make_produce
from minllm.kernels.matmul.wgmma.tiling import TILE_K, WgmmaTiling, choose_tiling
from minllm.kernels.vector import address, vectors_per_row
from minllm.runtime.device import current_device
from minllm.runtime.kernel import check, kernel, launch
from minllm.runtime.tensor_map import tensor_map

SIMULATED_MULTIPROCESSORS = 4  # few, so that blocks compute several tiles


@functools.cache
def wgmma_kernel(tiling: WgmmaTiling, dtype: str, gated: bool, copied: bool, paired: bool):
    """The kernel for x and weight of `dtype`.

    gated: out = silu(gate) * up of the two halves of weight's rows. copied: outputs leave through the copy engine. paired: they do not, but
    rows of out begin on multiples of 4 bytes, and out is of `dtype`.
    """
    tiling.check(gated)
    consumers, cluster, stages, threads, early = tiling.consumers, tiling.cluster, tiling.stages, tiling.threads, tiling.early
    ring_bytes, staging_bytes = tiling.stages * tiling.stage_bytes, tiling.staging_bytes
    columns = tiling.columns(gated)  # of out, that a cluster computes at a time
    make_barriers, _, meet = make_ring(tiling)
    produce, consume = make_produce(tiling, gated), make_consume(tiling, dtype, gated, copied, paired)

    @kernel(launch_bounds=(threads, 1), dependent_launch=early)
    def matmul_wgmma_kernel(x_map, weight_map, out_map, bias, residual, out, k_steps, few_rows):
        """x [M, K] in boxes [tile_m, 64], weight [N, K] in boxes [tile_n / 2, 64], out [M, N], out_map in boxes [64, 64] or None.

        Early, a consumer has `few_rows` rows of a tile: boxes of x are [few_rows, 64], those of out [few_rows, chunk_columns].
        """
        if early:
            ptx.griddepcontrol_launch_dependents()
        memory = cuda.shared.array(0, uint8, 1024)
        thread = int32(cuda.threadIdx.x)
        ring = uint32((ptx.shared_address(memory, 0) + uint32(1023)) & uint32(0xFFFFFC00))
        staging = uint32(ring + ring_bytes)
        full = uint32(staging + staging_bytes)
        empty = uint32(full + 8 * stages)
        each = int32(few_rows if early else ROWS)  # rows of x for a consumer
        rows = int32(each * consumers * cluster)  # of out, that a cluster computes at a time
        tiles_m, tiles_n = int32((out.shape[0] + rows - 1) // rows), int32((out.shape[1] + columns - 1) // columns)
        if thread == 0:
            make_barriers(full, empty)
        meet()
        if thread >> 7 == 0:
            if consumers == 2:
                ptx.setmaxnreg_dec(40)
            if thread == 0:
                produce(x_map, weight_map, ring, full, empty, tiles_m, tiles_n, k_steps, int32(out.shape[1]), each)
        else:
            if consumers == 2:
                ptx.setmaxnreg_inc(232)
            consume(bias, residual, out, out_map, memory, ring, staging, full, empty, tiles_m, tiles_n, k_steps, each, thread)
        meet()  # a block's shared memory has to stay while the other may still copy to it

    return matmul_wgmma_kernel


def fits(x, weight) -> bool:
    """Whether the copy engine can fetch tiles of x and weight: their rows begin on multiples of 16 bytes."""
    return vectors_per_row(x.shape[1], x, weight) > 0


def has_wgmma(array) -> bool:
    """Whether the kernel runs where the array is: on a GPU of compute capability 9.0, or, slowly, in the simulator."""
    return isinstance(array, np.ndarray) or current_device().compute_capability == HOPPER


def run(x, weight, out, bias, residual, stream, tiling, gated) -> None:
    """Launch for arrays that were checked."""
    (m, n), k, on_host = out.shape, x.shape[1], isinstance(x, np.ndarray)
    check(has_wgmma(x), "the variant wgmma needs a GPU of compute capability 9.0; choose tensor_core, or let the shape choose")
    multiprocessors = SIMULATED_MULTIPROCESSORS if on_host else current_device().sm_count
    tiling = tiling or choose_tiling(m, n, gated, multiprocessors)
    copied = out.dtype == x.dtype and vectors_per_row(n, out) > 0
    paired = out.dtype == x.dtype and n % 2 == 0 and address(out) % 4 == 0
    rows = ceil_div(m, tiling.tile_m * tiling.cluster)  # of tiles, and of clusters
    clusters = min(rows * ceil_div(n, tiling.columns(gated)), multiprocessors // tiling.cluster)
    each = ceil_div(m, rows * tiling.cluster * tiling.consumers) if tiling.early else ROWS  # rows of x for a consumer
    chosen = wgmma_kernel(tiling, x.dtype.name, gated, copied, paired)
    x_map, weight_map = tensor_map(x, (each if tiling.early else tiling.tile_m, TILE_K)), tensor_map(weight, (tiling.tile_n // 2, TILE_K))
    out_map = tensor_map(out, (each, tiling.chunk_columns), swizzle=2 * tiling.chunk_columns) if copied else None
    arguments = (x_map, weight_map, out_map, bias, residual, out, ceil_div(k, TILE_K), each)
    cluster = None if tiling.cluster == 1 else (tiling.cluster, 1, 1)
    launch(chosen, clusters * tiling.cluster, tiling.threads, arguments, stream, tiling.shared_bytes, cluster)


def matmul_wgmma(x, weight, out, bias=None, stream=None, tiling: WgmmaTiling | None = None, residual=None) -> None:
    """Write x @ weight.T + bias + residual into `out`: x [M, K], weight [N, K], bias [N], out and residual [M, N].

    x and weight are float16 or bfloat16; out, bias and residual are of that dtype or float32. Where rows of x or weight do not begin on
    multiples of 16 bytes (see `fits`) the product is tensor_core's; that one takes no residual.

    `tiling` overrides the choice by shape. Raises KernelArgumentError where shapes or dtypes do not fit (see `check_arguments`), and on a
    GPU of another compute capability than 9.0.
    """
    m, n, _ = check_arguments(x, weight, out, bias, HALF_DTYPES)
    if residual is not None:
        check_array("residual", residual, (x.dtype, np.dtype(np.float32)), M=m, N=n)
    if m == 0 or n == 0:
        return
    if fits(x, weight):
        run(x, weight, out, bias, residual, stream, tiling, gated=False)
    else:
        check(residual is None, f"x is {x.dtype} {list(x.shape)}; for a residual its rows must begin on multiples of 16 bytes")
        VARIANTS.stand_in("wgmma")(x, weight, out, bias, stream)


def matmul_silu_and_multiply(x, gate_up, out, stream=None, tiling: WgmmaTiling | None = None) -> None:
    """Write silu(x @ gate.T) * (x @ up.T) into `out`: x [M, K], gate_up [2 I, K], the gate's rows first, out [M, I].

    The products are not rounded before they meet. All are of one dtype of float16, bfloat16. Raises KernelArgumentError where shapes or
    dtypes do not fit, where rows of x or gate_up do not begin on multiples of 16 bytes, and on a GPU without wgmma.
    """
    check_gated_arguments(x, gate_up, out, HALF_DTYPES)
    if 0 in out.shape:
        return
    check(fits(x, gate_up), f"x is {x.dtype} {list(x.shape)}; its rows and those of gate_up must begin on multiples of 16 bytes")
    run(x, gate_up, out, None, None, stream, tiling, gated=True)
