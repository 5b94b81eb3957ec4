"""Matrix product of Hopper, last rung: the copy engine and the tensor cores work on their own, and threads only tell them what to do.

    out[m, n] = sum over k of x[m, k] * weight[n, k]  (+ bias[n])  (+ residual[m, n])          x and weight bfloat16 or float16
"""

import functools

import numpy as np
from numba import cuda, float32, int32, uint8, uint32, uint64

from minllm import ptx
from minllm.kernels.arguments import ceil_div, check_array
from minllm.kernels.matmul.arguments import HALF_DTYPES, check_arguments
from minllm.kernels.matmul.tensor_core import matmul_tensor_core
from minllm.kernels.matmul.tile_order import make_tile_order
from minllm.kernels.matmul.wgmma_epilogue import (
    CHUNK_BYTES,
    CHUNK_COLUMNS,
    WARP_ROWS,
    make_copy_chunk,
    make_output_pair,
    make_store_chunk,
    make_write,
)
from minllm.kernels.matmul.wgmma_ring import make_fetch, make_ring
from minllm.kernels.matmul.wgmma_tiling import LINE_BYTES, TILE_K, WARPGROUP_ROWS, WgmmaTiling, choose_tiling
from minllm.kernels.vector import address, vectors_a_row
from minllm.runtime.device import current_device
from minllm.runtime.kernel import check, kernel, launch
from minllm.runtime.tensor_map import tensor_map

HOPPER = (9, 0)
SIMULATED_MULTIPROCESSORS = 4  # few, so that blocks compute several tiles
WGMMA_DTYPES = {"bfloat16": "bf16", "float16": "f16"}


LOW_BITS, HIGH_BITS = (int(ptx.matrix_descriptor.py_func(0, 16, 8 * LINE_BYTES, 128)) >> shift & 0xFFFFFFFF for shift in (0, 32))


@cuda.jit(device=True, forceinline=True)
def low_word(address):
    """The lower half of the matrix descriptor of a tile; what lies 16 bytes further on has the next number."""
    return uint32(LOW_BITS | (address >> 4))


@cuda.jit(device=True, forceinline=True)
def descriptor(low):
    """The matrix descriptor with this lower half: nothing has to be computed for the upper one, which is the same for all."""
    return uint64(low) | uint64(HIGH_BITS) << uint64(32)


def make_produce(tiling: WgmmaTiling, gated: bool):
    """The device function of the producer: one thread, which fetches all tiles of a block as far ahead as the ring has stages."""
    tile_m, columns, cluster, stages, stage_bytes = tiling.tile_m, tiling.columns(gated), tiling.cluster, tiling.stages, tiling.stage_bytes
    half = tiling.tile_n // 2
    fetch, tile_at = make_fetch(tiling), make_tile_order(tiling.group)

    @cuda.jit(device=True, forceinline=True)
    def produce(x_map, weight_map, ring, full, empty, tiles_m, tiles_n, k_steps, n):
        ptx.fence_proxy_tensormap_acquire(x_map)
        ptx.fence_proxy_tensormap_acquire(weight_map)
        rank = int32(ptx.cluster_ctarank())
        stage, phase = uint32(0), uint32(0)
        number = int32(cuda.blockIdx.x // cluster)
        while number < tiles_m * tiles_n:
            tile_row, tile_column = tile_at(number, tiles_m, tiles_n)
            row, first_half = int32((tile_row * cluster + rank) * tile_m), int32(tile_column * columns)
            second_half = int32(first_half + (n if gated else half))
            for step in range(k_steps):
                ptx.mbarrier_wait_parity(empty + 8 * stage, phase ^ uint32(1))
                tile, k = uint32(ring + stage * stage_bytes), int32(step * TILE_K)
                fetch(x_map, weight_map, tile, full + 8 * stage, k, row, first_half, second_half, rank)
                stage = uint32(stage + 1)
                if stage == stages:
                    stage, phase = uint32(0), uint32(phase ^ 1)
            number += int32(cuda.gridDim.x // cluster)

    return produce


def make_consume(tiling: WgmmaTiling, dtype: str, gated: bool, copied: bool, paired: bool):
    """The device function of a consumer: a warpgroup that multiplies 64 rows of every tile of a block, and writes them."""
    tile_m, tile_n, columns, cluster, stages = tiling.tile_m, tiling.tile_n, tiling.columns(gated), tiling.cluster, tiling.stages
    stage_places, warp_bytes = tiling.stage_bytes // 16, tiling.chunks * CHUNK_BYTES
    x_bytes, consumer_bytes = tiling.tile_m * LINE_BYTES, WARPGROUP_ROWS * LINE_BYTES
    totals = tile_n // 2  # float32 a thread
    _, release, _ = make_ring(tiling)
    tile_at = make_tile_order(tiling.group)
    wgmma = ptx.make_wgmma(tile_n, WGMMA_DTYPES[dtype])
    output_pair = make_output_pair(columns // 2, gated)
    store_chunk = make_copy_chunk(dtype, output_pair, tiling.chunks) if copied else make_store_chunk(dtype, output_pair, paired)
    write = make_write(columns, store_chunk)

    @cuda.jit(device=True, forceinline=True)
    def multiply(total, x_tile, weight_tile, add):
        """total += the product of two tiles, given by their places in units of 16 bytes, or = where `add` is 0."""
        ptx.wgmma_fence()
        for step in range(TILE_K // 16):
            x, weight = descriptor(uint32(x_tile + 2 * step)), descriptor(uint32(weight_tile + 2 * step))
            wgmma(total, x, weight, add if step == 0 else 1)
        ptx.wgmma_commit_group()

    @cuda.jit(device=True, forceinline=True)
    def consume(bias, residual, out, out_map, ring, staging, full, empty, tiles_m, tiles_n, k_steps, thread):
        consumer, warp, lane = cuda.shfl_sync(0xFFFFFFFF, (thread >> 7) - 1, 0), (thread >> 5) - 4, thread & 31
        x_ring, weight_ring = ptx.keep_register(low_word(ring + consumer * consumer_bytes)), ptx.keep_register(low_word(ring + x_bytes))
        full, empty = ptx.keep_register(full), ptx.keep_register(empty)
        if copied:
            ptx.fence_proxy_tensormap_acquire(out_map)
        total = cuda.local.array(totals, float32)
        rank = int32(ptx.cluster_ctarank())
        stage, previous, phase = uint32(0), uint32(0), uint32(0)
        number = int32(cuda.blockIdx.x // cluster)
        while number < tiles_m * tiles_n:
            tile_row, tile_column = tile_at(number, tiles_m, tiles_n)
            row, column = int32((tile_row * cluster + rank) * tile_m + warp * WARP_ROWS), int32(tile_column * columns)
            for step in range(k_steps):
                ptx.mbarrier_wait_parity(full + 8 * stage, phase)
                multiply(total, x_ring + stage * stage_places, weight_ring + stage * stage_places, step)
                ptx.wgmma_wait_group_1()  # the products before these are done, these are under way
                if step > 0:
                    release(empty, previous, thread)
                previous = stage
                stage = uint32(stage + 1)
                if stage == stages:
                    stage, phase = uint32(0), uint32(phase ^ 1)
            ptx.wgmma_wait_group_0()
            ptx.keep_registers(total, totals)
            release(empty, previous, thread)
            write(total, bias, residual, out_map, out, uint32(staging + warp * warp_bytes), row, column, lane)
            number += int32(cuda.gridDim.x // cluster)
        if copied and lane == 0:
            ptx.cp_async_bulk_wait_group_read_0()

    return consume


@functools.cache
def wgmma_kernel(tiling: WgmmaTiling, dtype: str, gated: bool, copied: bool, paired: bool):
    """The kernel for x and weight of `dtype`.

    gated: out = silu(gate) * up of the two halves of weight's rows. copied: outputs leave through the copy engine. paired: they do not, but
    rows of out begin on multiples of 4 bytes, and out is of `dtype`.
    """
    tiling.check(gated)
    consumers, cluster, stages, threads = tiling.consumers, tiling.cluster, tiling.stages, tiling.threads
    ring_bytes, staging_bytes = tiling.stages * tiling.stage_bytes, tiling.staging_bytes
    rows, columns = tiling.tile_m * cluster, tiling.columns(gated)  # of out, that a cluster computes at a time
    make_barriers, _, meet = make_ring(tiling)
    produce, consume = make_produce(tiling, gated), make_consume(tiling, dtype, gated, copied, paired)

    @kernel(launch_bounds=(threads, 1))
    def matmul_wgmma_kernel(x_map, weight_map, out_map, bias, residual, out, k_steps):
        """x [M, K] in boxes [tile_m, 64], weight [N, K] in boxes [tile_n / 2, 64], out [M, N], out_map in boxes [16, 64] or None."""
        memory = cuda.shared.array(0, uint8, 1024)
        thread = int32(cuda.threadIdx.x)
        ring = uint32((ptx.shared_address(memory, 0) + uint32(1023)) & uint32(0xFFFFFC00))
        staging = uint32(ring + ring_bytes)
        full = uint32(staging + staging_bytes)
        empty = uint32(full + 8 * stages)
        tiles_m, tiles_n = int32((out.shape[0] + rows - 1) // rows), int32((out.shape[1] + columns - 1) // columns)
        if thread == 0:
            make_barriers(full, empty)
        meet()
        if thread >> 7 == 0:
            if consumers == 2:
                ptx.setmaxnreg_dec(40)
            if thread == 0:
                produce(x_map, weight_map, ring, full, empty, tiles_m, tiles_n, k_steps, int32(out.shape[1]))
        else:
            if consumers == 2:
                ptx.setmaxnreg_inc(232)
            consume(bias, residual, out, out_map, ring, staging, full, empty, tiles_m, tiles_n, k_steps, thread)
        meet()  # a block's shared memory has to stay while the other may still copy to it

    return matmul_wgmma_kernel


def fits(x, weight) -> bool:
    """Whether the copy engine can fetch tiles of x and weight: their rows begin on multiples of 16 bytes."""
    return vectors_a_row(x.shape[1], x, weight) > 0


def has_wgmma(array) -> bool:
    """Whether the kernel runs where the array is: on a GPU of compute capability 9.0, or, slowly, in the simulator."""
    return isinstance(array, np.ndarray) or current_device().compute_capability == HOPPER


def run(x, weight, out, bias, residual, stream, tiling, gated) -> None:
    """Launch for arrays that were checked."""
    (m, n), k, on_host = out.shape, x.shape[1], isinstance(x, np.ndarray)
    check(has_wgmma(x), "the variant wgmma needs a GPU of compute capability 9.0; choose tensor_core, or let the shape choose")
    multiprocessors = SIMULATED_MULTIPROCESSORS if on_host else current_device().sm_count
    tiling = tiling or choose_tiling(m, n, gated, multiprocessors)
    copied = out.dtype == x.dtype and vectors_a_row(n, out) > 0
    paired = out.dtype == x.dtype and n % 2 == 0 and address(out) % 4 == 0
    clusters = min(ceil_div(m, tiling.tile_m * tiling.cluster) * ceil_div(n, tiling.columns(gated)), multiprocessors // tiling.cluster)
    chosen = wgmma_kernel(tiling, x.dtype.name, gated, copied, paired)
    x_map, weight_map = tensor_map(x, (tiling.tile_m, TILE_K)), tensor_map(weight, (tiling.tile_n // 2, TILE_K))
    out_map = tensor_map(out, (WARP_ROWS, CHUNK_COLUMNS)) if copied else None
    arguments = (x_map, weight_map, out_map, bias, residual, out, ceil_div(k, TILE_K))
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
        matmul_tensor_core(x, weight, out, bias, stream)


def matmul_silu_and_multiply(x, gate_up, out, stream=None, tiling: WgmmaTiling | None = None) -> None:
    """Write silu(x @ gate.T) * (x @ up.T) into `out`: x [M, K], gate_up [2 I, K], the gate's rows first, out [M, I].

    The products are not rounded before they meet. All are of one dtype of float16, bfloat16. Raises KernelArgumentError where shapes or
    dtypes do not fit, where rows of x or gate_up do not begin on multiples of 16 bytes, and on a GPU without wgmma.
    """
    check_array("x", x, HALF_DTYPES, M=None, K=None)
    (m, k), n = x.shape, out.shape[1]
    check_array("out", out, (x.dtype,), M=m, I=None)
    check_array("gate_up", gate_up, (x.dtype,), N=2 * n, K=k)
    if m == 0 or n == 0:
        return
    check(fits(x, gate_up), f"x is {x.dtype} {list(x.shape)}; its rows and those of gate_up must begin on multiples of 16 bytes")
    run(x, gate_up, out, None, None, stream, tiling, gated=True)
