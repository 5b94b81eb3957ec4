"""Kernels with a planted bug, each beside its correct twin: what the simulator is measured by.

A function makes both: `bug` says which. It returns (kernel, grid, block, arguments), with further options of `simulate` behind, or a whole
program for numba.cuda; its decorator names the bug and what the message says.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint16, uint32, uint64

from minllm import ptx
from minllm.sim import output, simulate, unwritten, using_engine
from minllm.sim.engines import DEFAULT
from minllm.sim.numba_launches import simulated_launches

FULL = 0xFFFFFFFF
RACE_OF_SHARED, RACE_OF_GLOBAL = "race on shared memory", "race on global memory"
UNWRITTEN, TOO_EARLY = "nobody wrote", "writes it later, .* is a barrier or a wait missing"


class Case(NamedTuple):
    """A bug: make(bug) -> (kernel, grid, block, arguments) or a program, and a part of the message."""

    bug: str
    message: str
    make: Any


CASES = []


def planted(bug, message):
    """Add a case."""

    def add(make):
        CASES.append(Case(bug, message, make))
        return make

    return add


def run(case, bug, engine=None):
    """Run one of a case's two kernels or programs under all detectors."""
    made = case.make(bug)
    if callable(made):
        with simulated_launches(), using_engine(engine or DEFAULT):
            made()
    else:
        kernel, grid, block, arguments, *options = made
        simulate(kernel, grid, block, *arguments, detect=True, engine=engine, **dict(*options))


def numbers(count, dtype=np.float32):
    return np.arange(count).astype(dtype)


# Shared memory


@planted("a tile is read without a barrier after it is filled", RACE_OF_SHARED)
def reverse(bug):
    def kernel(x, out):
        tile, i = cuda.shared.array(64, float32), cuda.threadIdx.x
        tile[i] = x[i]
        if not bug:
            cuda.syncthreads()
        out[i] = tile[63 - i]

    return kernel, 1, 64, (numbers(64), numbers(64))


@planted("a tree reduction has its barrier outside of the loop", RACE_OF_SHARED)
def tree_reduction(bug):
    def kernel(x, out):
        tile, i = cuda.shared.array(64, float32), cuda.threadIdx.x
        tile[i] = x[i]
        cuda.syncthreads()
        width = 32
        while width:
            if i < width:
                tile[i] += tile[i + width]
            if not bug:
                cuda.syncthreads()
            width //= 2
        cuda.syncthreads()
        if i == 0:
            out[0] = tile[0]

    return kernel, 1, 64, (numbers(64), numbers(1))


@planted("a scan writes what a neighbour has yet to read", RACE_OF_SHARED)
def inclusive_scan(bug):
    def kernel(x, out):
        tile, i = cuda.shared.array(64, float32), cuda.threadIdx.x
        tile[i] = x[i]
        cuda.syncthreads()
        distance = 1
        while distance < 64:
            left = tile[i - distance] if i >= distance else float32(0)
            if not bug:
                cuda.syncthreads()
            tile[i] += left
            cuda.syncthreads()
            distance *= 2
        out[i] = tile[i]

    return kernel, 1, 64, (numbers(64), numbers(64))


@planted("a tile is filled again while others read it", RACE_OF_SHARED)
def tiled_product(bug):
    def kernel(a, b, out):
        ours, theirs = cuda.shared.array((8, 8), float32), cuda.shared.array((8, 8), float32)
        column, row = cuda.threadIdx.x, cuda.threadIdx.y
        total = float32(0)
        for start in range(0, 16, 8):
            ours[row, column], theirs[row, column] = a[row, start + column], b[start + row, column]
            cuda.syncthreads()
            for k in range(8):
                total += ours[row, k] * theirs[k, column]
            if not bug:
                cuda.syncthreads()
        out[row, column] = total

    return kernel, 1, (8, 8), (numbers(128).reshape(8, 16), numbers(128).reshape(16, 8), np.zeros((8, 8), np.float32))


@planted("one of two buffers is filled a step too early", RACE_OF_SHARED)
def double_buffer(bug):
    def kernel(x, out, steps):
        tiles, i = cuda.shared.array((2, 64), float32), cuda.threadIdx.x
        tiles[0, i] = x[0, i]
        total = float32(0)
        for step in range(steps):
            if not bug:
                cuda.syncthreads()
            if step + 1 < steps:
                tiles[(step + 1) % 2, i] = x[step + 1, i]
            total += tiles[step % 2, 63 - i]
            if bug and step == 0:
                cuda.syncthreads()
        out[i] = total

    return kernel, 1, 64, (numbers(256).reshape(4, 64), numbers(64), 4)


@planted("a transpose reads its tile without a barrier", TOO_EARLY)
def transpose(bug):
    def kernel(x, out):
        tile, column, row = cuda.shared.array((16, 17), float32), cuda.threadIdx.x, cuda.threadIdx.y
        tile[row, column] = x[row, column]
        if not bug:
            cuda.syncthreads()
        out[row, column] = tile[column, row]

    return kernel, 1, (16, 16), (numbers(256).reshape(16, 16), np.zeros((16, 16), np.float32))


@planted("a shuffle stands where a memory fence should", RACE_OF_SHARED)
def shuffle_as_fence(bug):
    def kernel(x, out):
        tile, lane = cuda.shared.array(32, float32), cuda.threadIdx.x
        tile[lane] = x[lane]
        first = cuda.shfl_sync(FULL, x[lane], 0)
        if not bug:
            cuda.syncwarp()
        out[lane] = tile[lane ^ 1] + first

    return kernel, 1, 32, (numbers(32), numbers(32))


@planted("a ballot stands where a memory fence should", RACE_OF_GLOBAL)
def ballot_as_fence(bug):
    def kernel(x, out):
        lane = cuda.threadIdx.x
        out[lane, 0] = x[lane]
        votes = cuda.ballot_sync(FULL, x[lane] > 3)
        if not bug:
            cuda.syncwarp()
        out[lane, 1] = out[lane ^ 1, 0] + votes

    return kernel, 1, 32, (numbers(32), np.zeros((32, 2), np.float32))


@planted("a warp relies on its lanes going in step", RACE_OF_SHARED)
def warp_synchronous_reduction(bug):
    def kernel(x, out):
        tile, lane = cuda.shared.array(64, float32), cuda.threadIdx.x
        tile[lane], tile[lane + 32] = x[lane], x[lane + 32]
        width = 32
        while width:
            other = tile[lane + width]
            if not bug:
                cuda.syncwarp()
            if lane < width:
                tile[lane] += other
            if not bug:
                cuda.syncwarp()
            width //= 2
        if lane == 0:
            out[0] = tile[0]

    return kernel, 1, 32, (numbers(64), numbers(1))


@planted("a histogram in shared memory has no atomics", RACE_OF_SHARED)
def shared_histogram(bug):
    def kernel(keys, counts):
        bins, i = cuda.shared.array(8, int32), cuda.threadIdx.x
        if i < 8:
            bins[i] = 0
        cuda.syncthreads()
        if bug:
            bins[keys[i]] += 1
        else:
            cuda.atomic.add(bins, keys[i], 1)
        cuda.syncthreads()
        if i < 8:
            cuda.atomic.add(counts, i, bins[i])

    return kernel, 1, 64, (numbers(64, np.int32) % 8, np.zeros(8, np.int32))


@planted("the bins of a histogram are not set to 0", UNWRITTEN)
def bins_without_zero(bug):
    def kernel(keys, counts):
        bins, i = cuda.shared.array(8, int32), cuda.threadIdx.x
        if i < 8 and not (bug and i == 7):
            bins[i] = 0
        cuda.syncthreads()
        cuda.atomic.add(bins, keys[i], 1)
        cuda.syncthreads()
        if i < 8:
            counts[i] = bins[i]

    return kernel, 1, 64, (numbers(64, np.int32) % 8, np.zeros(8, np.int32))


@planted("the halo of a stencil's tile is not loaded", UNWRITTEN)
def stencil(bug):
    def kernel(x, out):
        tile, i = cuda.shared.array(66, float32), cuda.threadIdx.x
        tile[i + 1] = x[i + 1]
        if i == 0 and not bug:
            tile[0], tile[65] = x[0], x[65]
        cuda.syncthreads()
        out[i] = tile[i] + tile[i + 1] + tile[i + 2]

    return kernel, 1, 64, (numbers(66), numbers(64))


@planted("a bitonic sort lacks the barrier between two steps", RACE_OF_SHARED)
def bitonic_sort(bug):
    def kernel(x):
        tile, i = cuda.shared.array(64, float32), cuda.threadIdx.x
        tile[i] = x[i]
        cuda.syncthreads()
        size = 2
        while size <= 64:
            distance = size // 2
            while distance:
                other = i ^ distance
                if other > i and (tile[i] > tile[other]) == ((i & size) == 0):
                    tile[i], tile[other] = tile[other], tile[i]
                if not bug:
                    cuda.syncthreads()
                distance //= 2
            size *= 2
        x[i] = tile[i]

    return kernel, 1, 64, (numbers(64)[::-1].copy(),)


@planted("a maximum and a sum share one word, and no barrier is in between", RACE_OF_SHARED)
def softmax(bug):
    def kernel(x, out):
        shared, i = cuda.shared.array(1, float32), cuda.threadIdx.x
        if i == 0:
            shared[0] = x[63]
        cuda.syncthreads()
        value = x[i] - shared[0]
        if not bug:
            cuda.syncthreads()
        if i == 0:
            shared[0] = 0
        cuda.syncthreads()
        cuda.atomic.add(shared, 0, value)
        cuda.syncthreads()
        out[i] = value / shared[0]

    return kernel, 1, 64, (numbers(64), numbers(64))


@planted("the sums of the warps are read without a barrier", TOO_EARLY)
def block_sum(bug):
    def kernel(x, out):
        sums, i = cuda.shared.array(4, float32), cuda.threadIdx.x
        total = x[i]
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(FULL, total, distance)
        if i % 32 == 0:
            sums[i // 32] = total
        if not bug:
            cuda.syncthreads()
        out[i] = sums[0] + sums[1] + sums[2] + sums[3]

    return kernel, 1, 128, (numbers(128), numbers(128))


@planted("a tile is read before its asynchronous copy is there", "cp.async that thread .* writes, and nobody has waited for that yet")
def asynchronous_copy(bug):
    def kernel(x, out):
        tile, i = cuda.shared.array(128, float32, 16), cuda.threadIdx.x
        ptx.cp_async_16(ptx.shared_address(tile, 4 * i), x, 4 * i, 16)
        ptx.cp_async_commit_group()
        if not bug:
            ptx.cp_async_wait_group_0()
        cuda.syncthreads()
        out[i] = tile[127 - i]

    return kernel, 1, 32, (numbers(128), numbers(32))


# Asynchronous operations


A, B = 64 * 16, 8 * 16  # elements of the operands of a product
BOTH = A + B
PRODUCT = ptx.make_wgmma(8, "bf16")
PRODUCT_OF_REGISTERS = ptx.make_wgmma(8, "bf16", a="registers")


@cuda.jit(device=True)
def fill(tile, value):
    """Write the operands of a product, and let the tensor cores see them."""
    for i in range(cuda.threadIdx.x, tile.size, cuda.blockDim.x):
        tile[i] = value
    ptx.fence_proxy_async()
    cuda.syncthreads()


@cuda.jit(device=True)
def start_product(accumulator, tile):
    """Start the product of the operands in `tile`, A [64, 16] and B [8, 16], without swizzle."""
    a = ptx.matrix_descriptor(ptx.shared_address(tile, 0), 1024, 128, 0)
    b = ptx.matrix_descriptor(ptx.shared_address(tile, A), 128, 128, 0)
    ptx.wgmma_fence()
    PRODUCT(accumulator, a, b, 0)


@planted("a wgmma is not committed before the wait", "race on registers: .* no wgmma.commit_group has committed it")
def uncommitted_product(bug):
    def kernel(out):
        tile, accumulator = cuda.shared.array(BOTH, uint16, 128), cuda.local.array(4, float32)
        fill(tile, 1)
        start_product(accumulator, tile)
        if not bug:
            ptx.wgmma_commit_group()
        ptx.wgmma_wait_group_0()
        out[cuda.threadIdx.x] = accumulator[0]

    return kernel, 1, 128, (numbers(128),)


@planted("the sums of a wgmma are read before the wait", "race on registers: this thread reads .* nobody has waited for that yet")
def early_sums(bug):
    def kernel(out):
        tile, accumulator = cuda.shared.array(BOTH, uint16, 128), cuda.local.array(4, float32)
        for i in range(4):
            accumulator[i] = 0
        fill(tile, 1)
        start_product(accumulator, tile)
        ptx.wgmma_commit_group()
        if not bug:
            ptx.wgmma_wait_group_0()
        out[cuda.threadIdx.x] = accumulator[0]
        ptx.wgmma_wait_group_0()

    return kernel, 1, 128, (numbers(128),)


@planted("one of two wgmmas in flight is read", "race on registers: this thread reads .* nobody has waited for that yet")
def sums_of_the_newer_group(bug):
    def kernel(out):
        tile = cuda.shared.array(BOTH, uint16, 128)
        older, newer = cuda.local.array(4, float32), cuda.local.array(4, float32)
        fill(tile, 1)
        start_product(older, tile)
        ptx.wgmma_commit_group()
        start_product(newer, tile)
        ptx.wgmma_commit_group()
        ptx.wgmma_wait_group_1()
        out[cuda.threadIdx.x] = newer[0] if bug else older[0]
        ptx.wgmma_wait_group_0()

    return kernel, 1, 128, (numbers(128),)


@planted("operands of a wgmma are stored without a fence of the async proxy", "no fence.proxy.async stands between the stores and wgmma")
def unfenced_operands(bug):
    def kernel(out):
        tile, accumulator = cuda.shared.array(BOTH, uint16, 128), cuda.local.array(4, float32)
        for i in range(cuda.threadIdx.x, BOTH, 128):
            tile[i] = 1
        if not bug:
            ptx.fence_proxy_async()
        cuda.syncthreads()
        start_product(accumulator, tile)
        ptx.wgmma_commit_group()
        ptx.wgmma_wait_group_0()
        out[cuda.threadIdx.x] = accumulator[0]

    return kernel, 1, 128, (numbers(128),)


@planted("a wgmma adds to sums that are not set to 0", "read of memory that nobody wrote: the local array")
def sums_without_zero(bug):
    scale = int(bug)

    def kernel(out):
        tile, accumulator = cuda.shared.array(BOTH, uint16, 128), cuda.local.array(4, float32)
        fill(tile, 1)
        a = ptx.matrix_descriptor(ptx.shared_address(tile, 0), 1024, 128, 0)
        b = ptx.matrix_descriptor(ptx.shared_address(tile, A), 128, 128, 0)
        ptx.wgmma_fence()
        PRODUCT(accumulator, a, b, scale)
        ptx.wgmma_commit_group()
        ptx.wgmma_wait_group_0()
        out[cuda.threadIdx.x] = accumulator[0]

    return kernel, 1, 128, (numbers(128),)


@planted("registers of A change under a wgmma", "race on registers: this thread writes .* a wgmma .* reads")
def changing_operand(bug):
    def kernel(out):
        tile, accumulator = cuda.shared.array(B, uint16, 128), cuda.local.array(4, float32)
        a = cuda.local.array(4, uint32)
        fill(tile, 1)
        for i in range(4):
            a[i] = 1
        ptx.wgmma_fence()
        PRODUCT_OF_REGISTERS(accumulator, a, 0, ptx.matrix_descriptor(ptx.shared_address(tile, 0), 128, 128, 0), 0)
        ptx.wgmma_commit_group()
        if not bug:
            ptx.wgmma_wait_group_0()
        a[0] = 2
        ptx.wgmma_wait_group_0()
        out[cuda.threadIdx.x] = accumulator[0] + a[0]

    return kernel, 1, 128, (numbers(128),)


@planted("asynchronous copies are not committed before the wait", "cp.async that thread .* no cp.async.commit_group has committed it")
def uncommitted_copy(bug):
    def kernel(x, out):
        tile, i = cuda.shared.array(128, float32, 16), cuda.threadIdx.x
        ptx.cp_async_16(ptx.shared_address(tile, 4 * i), x, 4 * i, 16)
        if not bug:
            ptx.cp_async_commit_group()
        ptx.cp_async_wait_group_0()
        cuda.syncthreads()
        out[i] = tile[127 - i]

    return kernel, 1, 32, (numbers(128), numbers(32))


@planted("a pipeline of copies waits for one group too few at its end", "cp.async that thread .* nobody has waited for that yet")
def tail_of_a_pipeline(bug):
    def kernel(x, out, steps):
        tiles, i, total = cuda.shared.array((2, 128), float32, 16), cuda.threadIdx.x, float32(0)
        ptx.cp_async_16(ptx.shared_address(tiles, 4 * i), x, 4 * i, 16)
        ptx.cp_async_commit_group()
        for step in range(steps):
            if step + 1 < steps:
                ptx.cp_async_16(ptx.shared_address(tiles, (step + 1) % 2 * 128 + 4 * i), x, 128 * (step + 1) + 4 * i, 16)
            if step + 1 < steps or not bug:
                ptx.cp_async_commit_group()
            ptx.cp_async_wait_group_1()
            cuda.syncthreads()
            total += tiles[step % 2, 127 - i]
            cuda.syncthreads()
        out[i] = total

    return kernel, 1, 32, (numbers(384), numbers(32), 3)


@planted("what a bulk store writes is read after a wait for its reads", "wait_group.read has waited for its reads alone")
def read_back(bug):
    def kernel(out, found):
        tile, i = cuda.shared.array(64, float32, 128), cuda.threadIdx.x
        tile[i] = i
        ptx.fence_proxy_async()
        cuda.syncthreads()
        if i == 0:
            ptx.cp_async_bulk_global_shared(out, 0, ptx.shared_address(tile, 0), 256)
            ptx.cp_async_bulk_commit_group()
            if bug:
                ptx.cp_async_bulk_wait_group_read_0()
            else:
                ptx.cp_async_bulk_wait_group_0()
        cuda.syncthreads()
        found[i] = out[63 - i]

    return kernel, 1, 64, (numbers(64), numbers(64))


@planted("a bulk store is not committed", "ends with a bulk store in flight, and no cp.async.bulk.commit_group has committed it")
def uncommitted_store(bug):
    def kernel(out):
        tile, i = cuda.shared.array(64, float32, 128), cuda.threadIdx.x
        tile[i] = i
        ptx.fence_proxy_async()
        cuda.syncthreads()
        if i == 0:
            ptx.cp_async_bulk_global_shared(out, 0, ptx.shared_address(tile, 0), 256)
            if not bug:
                ptx.cp_async_bulk_commit_group()
            ptx.cp_async_bulk_wait_group_0()

    return kernel, 1, 64, (numbers(64),)


@planted("an mbarrier is used before a barrier has shown its initialisation", "this thread uses the mbarrier .* nothing orders")
def unpublished_mbarrier(bug):
    def kernel(out):
        barriers = cuda.shared.array(1, uint64)
        i, barrier = cuda.threadIdx.x, ptx.shared_address(barriers, 0)
        if i == 0:
            ptx.mbarrier_init(barrier, 64)
            ptx.fence_mbarrier_init()
        if not bug:
            cuda.syncthreads()
        ptx.mbarrier_arrive(barrier)
        ptx.mbarrier_wait_parity(barrier, 0)
        out[i] = i

    return kernel, 1, 64, (numbers(64),)


def two_stages(parity_bug, bytes_bug, wait_bug):
    """Two copies through one stage, read by all threads. The bugs: always parity 0; fewer bytes expected than sent; no last wait."""

    def kernel(x, out, steps):
        tile = cuda.shared.array(64, float32, 128)
        barriers = cuda.shared.array(1, uint64)
        i, barrier = cuda.threadIdx.x, ptx.shared_address(barriers, 0)
        if i == 0:
            ptx.mbarrier_init(barrier, 1)
            ptx.fence_mbarrier_init()
        cuda.syncthreads()
        for step in range(steps):
            if i == 0:
                ptx.mbarrier_arrive_expect_tx(barrier, 192 if bytes_bug else 256)
                ptx.cp_async_bulk_shared_global(ptx.shared_address(tile, 0), x, 64 * step, 256, barrier)
            if step + 1 < steps or not wait_bug:
                ptx.mbarrier_wait_parity(barrier, 0 if parity_bug else step & 1)
                out[i] += tile[63 - i]
            cuda.syncthreads()

    return kernel, 1, 64, (numbers(128), np.zeros(64, np.float32), 2)


@planted("every wait for an mbarrier is for parity 0", "race on shared memory: this thread reads tile.* a bulk copy that thread")
def one_parity(bug):
    return two_stages(bug, False, False)


@planted("an mbarrier expects fewer bytes than are sent", "gets 64 bytes more than it expects")
def too_few_bytes(bug):
    return two_stages(False, bug, False)


@planted("a thread gives a stage back twice", "race on shared memory: a bulk copy that this thread starts writes stages")
def double_arrival(bug):
    def kernel(x, out, steps):
        stages = cuda.shared.array((2, 64), float32, 128)
        barriers = cuda.shared.array(4, uint64)
        i = cuda.threadIdx.x
        if i == 0:
            for stage in range(2):
                ptx.mbarrier_init(ptx.shared_address(barriers, stage), 1)
                ptx.mbarrier_init(ptx.shared_address(barriers, 2 + stage), 32)
            ptx.fence_mbarrier_init()
        cuda.syncthreads()
        for step in range(steps):
            stage, parity = step % 2, step // 2 % 2
            full, empty = ptx.shared_address(barriers, stage), ptx.shared_address(barriers, 2 + stage)
            if i == 32:
                ptx.mbarrier_wait_parity(empty, parity ^ 1)
                ptx.mbarrier_arrive_expect_tx(full, 256)
                ptx.cp_async_bulk_shared_global(ptx.shared_address(stages, 64 * stage), x, 64 * step, 256, full)
            elif i < 32:
                ptx.mbarrier_wait_parity(full, parity)
                out[i] += stages[stage, 63 - i]
                ptx.mbarrier_arrive(empty)
                if bug and i == 0:
                    ptx.mbarrier_arrive(empty)

    return kernel, 1, 64, (numbers(512), np.zeros(32, np.float32), 8)


@planted("a block ends while a bulk copy into it is under way", "ends before 256 bytes of copies into its shared memory have landed")
def abandoned_copy(bug):
    return two_stages(False, False, bug)


@planted("a named barrier counts half of its threads", TOO_EARLY)
def half_a_barrier(bug):
    count = 64 if bug else 128

    def kernel(x, out):
        tile, i = cuda.shared.array(128, float32), cuda.threadIdx.x
        tile[i] = x[i]
        ptx.bar_sync(1, count)
        out[i] = tile[127 - i]

    return kernel, 1, 128, (numbers(128), numbers(128))


# Clusters


@planted("another block's shared memory is read before that block has begun", "may not have begun: a cluster's blocks meet")
def neighbour_not_begun(bug):
    def kernel(x, out):
        tile, i, rank = cuda.shared.array(32, float32), cuda.threadIdx.x, ptx.cluster_ctarank()
        tile[i] = x[cuda.grid(1)]
        if not bug:
            ptx.barrier_cluster_arrive()
            ptx.barrier_cluster_wait()
        out[cuda.grid(1)] = ptx.ld_shared_cluster_f32(ptx.mapa(ptx.shared_address(tile, 31 - i), rank ^ 1))
        ptx.barrier_cluster_arrive_relaxed()
        ptx.barrier_cluster_wait()

    return kernel, 2, 32, (numbers(64), numbers(64)), {"cluster": 2}


@planted("a block ends while another one may still read its shared memory", "which may have ended: a cluster's blocks meet at a barrier")
def neighbour_ended(bug):
    def kernel(x, out):
        tile, i, rank = cuda.shared.array(32, float32), cuda.threadIdx.x, ptx.cluster_ctarank()
        tile[i] = x[cuda.grid(1)]
        ptx.barrier_cluster_arrive()
        ptx.barrier_cluster_wait()
        out[cuda.grid(1)] = ptx.ld_shared_cluster_f32(ptx.mapa(ptx.shared_address(tile, 31 - i), rank ^ 1))
        if not bug:
            ptx.barrier_cluster_arrive_relaxed()
            ptx.barrier_cluster_wait()

    return kernel, 2, 32, (numbers(64), numbers(64)), {"cluster": 2}


@planted("a relaxed arrival stands between a store and a read of another block", "memory of a cluster: this thread reads tile")
def relaxed_arrival(bug):
    def kernel(x, out):
        tile = cuda.shared.array(32, float32)
        i, rank = cuda.threadIdx.x, ptx.cluster_ctarank()
        tile[i] = x[cuda.grid(1)]
        if bug:
            ptx.barrier_cluster_arrive_relaxed()
        else:
            ptx.barrier_cluster_arrive()
        ptx.barrier_cluster_wait()
        out[cuda.grid(1)] = ptx.ld_shared_cluster_f32(ptx.mapa(ptx.shared_address(tile, 31 - i), rank ^ 1))
        ptx.barrier_cluster_arrive_relaxed()
        ptx.barrier_cluster_wait()

    return kernel, 2, 32, (numbers(64), numbers(64)), {"cluster": 2}


@planted("a tile is written anew while another block reads it", "race on shared memory of a cluster: ")
def exchanged_twice(bug):
    def kernel(x, out, steps):
        tile, i, rank = cuda.shared.array(32, float32), cuda.threadIdx.x, ptx.cluster_ctarank()
        for step in range(steps):
            tile[i] = x[step, cuda.grid(1)]
            ptx.barrier_cluster_arrive()
            ptx.barrier_cluster_wait()
            out[step, cuda.grid(1)] = ptx.ld_shared_cluster_f32(ptx.mapa(ptx.shared_address(tile, 31 - i), rank ^ 1))
            if not bug or step + 1 == steps:
                ptx.barrier_cluster_arrive()
                ptx.barrier_cluster_wait()

    return kernel, 2, 32, (numbers(128).reshape(2, 64), numbers(128).reshape(2, 64), 2), {"cluster": 2}


@planted("a producer fills a stage that another block has yet to give back", "memory of a cluster: a bulk copy .* writes")
def stage_of_another_block(bug):
    def kernel(x, out, steps):
        tile, barriers = cuda.shared.array(64, float32, 128), cuda.shared.array(2, uint64)
        i, rank = cuda.threadIdx.x, ptx.cluster_ctarank()
        address, full, empty = ptx.shared_address(tile, 0), ptx.shared_address(barriers, 0), ptx.shared_address(barriers, 1)
        if i == 0:
            ptx.mbarrier_init(full, 1)
            ptx.mbarrier_init(empty, 32 if bug else 64)
            ptx.fence_mbarrier_init()
        ptx.barrier_cluster_arrive()
        ptx.barrier_cluster_wait()
        for step in range(steps):
            if i == 32:
                ptx.mbarrier_arrive_expect_tx(full, 256)
                if rank == 0:
                    ptx.mbarrier_wait_parity(empty, step + 1 & 1)
                    for target in range(2):
                        ptx.cp_async_bulk_shared_global(ptx.mapa(address, target), x, 64 * step, 256, ptx.mapa(full, target))
            if i < 32:
                ptx.mbarrier_wait_parity(full, step & 1)
                out[rank, i] += tile[63 - i]
                ptx.mbarrier_arrive_cluster(ptx.mapa(empty, rank if bug else 0))
        ptx.barrier_cluster_arrive_relaxed()
        ptx.barrier_cluster_wait()

    return kernel, 2, 64, (numbers(128), np.zeros((2, 32), np.float32), 2), {"cluster": 2}


# Global memory


@planted("a histogram in global memory has no atomics", RACE_OF_GLOBAL)
def global_histogram(bug):
    def kernel(keys, counts):
        i = cuda.grid(1)
        if bug:
            counts[keys[i]] += 1
        else:
            cuda.atomic.add(counts, keys[i], 1)

    return kernel, 4, 32, (numbers(128, np.int32) % 8, np.zeros(8, np.int32))


@planted("a dot product adds up without an atomic", RACE_OF_GLOBAL)
def dot_product(bug):
    def kernel(x, y, out):
        total, i = x[cuda.grid(1)] * y[cuda.grid(1)], cuda.threadIdx.x
        for distance in (16, 8, 4, 2, 1):
            total += cuda.shfl_down_sync(FULL, total, distance)
        if i == 0:
            if bug:
                out[0] += total
            else:
                cuda.atomic.add(out, 0, total)

    return kernel, 4, 32, (numbers(128), numbers(128), np.zeros(1, np.float32))


@planted("the last block reads sums that no fence has published", RACE_OF_GLOBAL)
def last_block_done(bug):
    def kernel(x, sums, arrived, out):
        if cuda.threadIdx.x == 0:
            sums[cuda.blockIdx.x] = x[cuda.blockIdx.x]
            if not bug:
                cuda.threadfence()
            if cuda.atomic.add(arrived, 0, 1) == cuda.gridDim.x - 1:
                total = float32(0)
                for block in range(cuda.gridDim.x):
                    total += sums[block]
                out[0] = total

    return kernel, 5, 32, (numbers(5), np.zeros(5, np.float32), np.zeros(1, np.int32), np.zeros(1, np.float32))


@planted("another block's result is read without a barrier of the grid", RACE_OF_GLOBAL)
def two_phases(bug):
    def kernel(x, out):
        grid, i = cuda.cg.this_grid(), cuda.grid(1)
        x[i] *= float32(2)
        if not bug:
            grid.sync()
        out[i] = x[(i + 32) % x.size]

    return kernel, 2, 32, (numbers(64), numbers(64))


@planted("a grid needs two barriers per step and has one", RACE_OF_GLOBAL)
def rotation(bug):
    def kernel(x, steps):
        grid, i = cuda.cg.this_grid(), cuda.grid(1)
        for _ in range(steps):
            value = x[(i + 1) % x.size]
            grid.sync()
            x[i] = value
            if not bug:
                grid.sync()

    return kernel, 2, 8, (numbers(16), 3)


@planted("a plain read meets atomics on a counter", "and nothing orders the two")
def counter_read_plainly(bug):
    def kernel(counter, ticket):
        ticket[cuda.grid(1)] = cuda.atomic.add(counter, 0, 1)
        if bug:
            ticket[cuda.grid(1)] = counter[0]

    return kernel, 2, 32, (np.zeros(1, np.int32), np.zeros(64, np.int32))


@planted("the stride of a grid-stride loop is that of a block", RACE_OF_GLOBAL)
def grid_stride(bug):
    def kernel(x, out):
        i = cuda.grid(1)
        while i < x.size:
            out[i] += x[i]
            i += cuda.blockDim.x if bug else cuda.gridsize(1)

    return kernel, 2, 32, (numbers(100), np.zeros(100, np.float32))


@planted("a grid-stride loop leaves out the last element", "no thread has written 1 of the 100 elements")
def last_element(bug):
    def kernel(x, out):
        i = cuda.grid(1)
        while i < x.size - bug:
            out[i] = x[i]
            i += cuda.gridsize(1)

    return kernel, 2, 32, (numbers(100), output(100, np.float32))


@planted("input and output overlap", RACE_OF_GLOBAL)
def overlap(bug):
    def kernel(x, out):
        i = cuda.grid(1)
        out[i] = x[i] + float32(1)

    memory = numbers(129)
    return kernel, 2, 32, (memory[1:65], memory[:64] if bug else memory[65:])


@planted("a lock releases without a fence", RACE_OF_GLOBAL)
def spin_lock(bug):
    def kernel(lock, total):
        if cuda.threadIdx.x == 0:
            while cuda.atomic.cas(lock, 0, 0, 1) != 0:
                cuda.nanosleep(10)
            total[0] += 1
            if not bug:
                cuda.threadfence()
            cuda.atomic.exch(lock, 0, 0)

    return kernel, 4, 32, (np.zeros(1, np.int32), np.zeros(1, np.int32))


@planted("a lock is given back by a plain store", "changes the global array lock, .* what others change by atomics is stored by one")
def plain_unlock(bug):
    def kernel(total, lock):
        if cuda.threadIdx.x == 0:
            while cuda.atomic.cas(lock, 0, 0, 1) != 0:
                cuda.nanosleep(10)
            total[0] += 1
            cuda.threadfence()
            if bug:
                lock[0] = 0
            else:
                cuda.atomic.exch(lock, 0, 0)

    return kernel, 4, 32, (np.zeros(1, np.int32), np.zeros(1, np.int32))


@planted("counters in global memory never get a first value", "changes it at .*, but nobody gives it a value first")
def counters_without_zero(bug):
    def kernel(keys, counts):
        i = cuda.grid(1)
        cuda.atomic.add(counts, keys[i], 1)

    return kernel, 2, 32, (numbers(64, np.int32) % 8, unwritten(8, np.int32) if bug else np.zeros(8, np.int32))


@planted("a flag is raised before its data are fenced", RACE_OF_GLOBAL)
def flag(bug):
    def kernel(data, raised, out):
        if cuda.blockIdx.x == 0 and cuda.threadIdx.x == 0:
            data[0] = 7
            if not bug:
                cuda.threadfence()
            cuda.atomic.exch(raised, 0, 1)
        if cuda.blockIdx.x == 1 and cuda.threadIdx.x == 0:
            while cuda.atomic.add(raised, 0, 0) == 0:
                cuda.nanosleep(10)
            out[0] = data[0]

    return kernel, 2, 32, (np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32))


@planted("neighbours of a block are changed in place without a barrier", RACE_OF_GLOBAL)
def in_place(bug):
    def kernel(x):
        i = cuda.threadIdx.x
        value = x[(i + 1) % 64]
        if not bug:
            cuda.syncthreads()
        x[i] = value

    return kernel, 1, 64, (numbers(64),)


@planted("threads store different values to one element", RACE_OF_GLOBAL)
def raised_by_all(bug):
    def kernel(x, found):
        i = cuda.grid(1)
        if x[i] > 3:
            found[0] = i if bug else 1

    return kernel, 2, 32, (numbers(64), np.zeros(1, np.int32))


@planted("a union-find races, and no comment says why it may", RACE_OF_GLOBAL)
def union_find(bug):
    def kernel(parent, edges):
        i = cuda.grid(1)
        parent[edges[i, 0]] = edges[i, 1]

    def waived(parent, edges):
        i = cuda.grid(1)
        parent[edges[i, 0]] = edges[i, 1]  # allow-race: any of the parents will do

    edges = np.array([[0, 1], [0, 2], [1, 2], [2, 2]], np.int32)
    return (kernel if bug else waived), 1, 4, (np.zeros(3, np.int32), edges)


@planted("the grid is too small for the output", "no thread has written 8 of the 72 elements")
def small_grid(bug):
    def kernel(x, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = x[i]

    return kernel, 2 if bug else 3, 32, (numbers(72), output(72, np.float32))


@planted("a local array is read before it is written", UNWRITTEN)
def local_array(bug):
    def kernel(x, out):
        i, window = cuda.grid(1), cuda.local.array(4, float32)
        for k in range(3 if bug else 4):
            window[k] = x[i + k]
        out[i] = window[0] + window[3]

    return kernel, 1, 32, (numbers(36), numbers(32))


# Streams and the host


@cuda.jit
def double(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= 2


@cuda.jit
def add_one(x, out, first, count):
    i = cuda.grid(1)
    if i < count:
        out[first + i] = x[first + i] + 1


@planted("a kernel on another stream reads a result, and no event is in between", "race between streams: kernel add_one .* reads")
def two_streams(bug):
    def program():
        first, second, done = cuda.stream(), cuda.stream(), cuda.event()
        x, out = cuda.to_device(numbers(64)), cuda.device_array(64, np.float32)
        double[2, 32, first](x)
        done.record(first)
        if not bug:
            done.wait(second)
        add_one[2, 32, second](x, out, 0, 64)
        cuda.synchronize()

    return program


@planted("an event is recorded before the kernel for which it stands", "race between streams: kernel add_one .* reads")
def early_event(bug):
    def program():
        first, second, done = cuda.stream(), cuda.stream(), cuda.event()
        x, out = cuda.to_device(numbers(64)), cuda.device_array(64, np.float32)
        if bug:
            done.record(first)
        double[2, 32, first](x)
        if not bug:
            done.record(first)
        done.wait(second)
        add_one[2, 32, second](x, out, 0, 64)
        cuda.synchronize()

    return program


@planted("the halves of two streams overlap by one element", r"race between streams: kernel add_one .* writes element \[31\] of out")
def overlapping_halves(bug):
    def program():
        x, out = cuda.to_device(numbers(64)), cuda.to_device(numbers(64))
        add_one[1, 32, cuda.stream()](x, out, 0, 32)
        add_one[1, 32, cuda.stream()](x, out, 31 if bug else 32, 32)
        cuda.synchronize()

    return program


@planted("a copy to the host on another stream does not wait for the kernel", "race between streams: copy_to_host on stream 2 reads")
def early_copy(bug):
    def program():
        first, second = cuda.stream(), cuda.stream()
        x = cuda.to_device(numbers(64))
        double[2, 32, first](x)
        if not bug:
            first.synchronize()
        x.copy_to_host(stream=second)

    return program


@planted("two streams share one buffer", "race between streams: kernel double on stream 2 writes")
def shared_buffer(bug):
    def program():
        streams, buffers = [cuda.stream(), cuda.stream()], [cuda.device_array(64, np.float32) for _ in range(2)]
        parts = cuda.pinned_array((4, 64), np.float32)
        parts[:] = 1
        for number, part in enumerate(parts):
            stream, buffer = streams[number % 2], buffers[number % 2]
            buffer.copy_to_device(part, stream=stream)
            double[2, 32, stream](buffers[0] if bug else buffer)
            buffer.copy_to_host(part, stream=stream)
        cuda.synchronize()

    return program


@planted("pinned memory is read before the copy into it is done", "race between host and device: the host reads .* copy_to_host")
def early_read_of_pinned_memory(bug):
    def program():
        stream, found = cuda.stream(), cuda.pinned_array(64, np.float32)
        x = cuda.to_device(numbers(64), stream=stream)
        double[2, 32, stream](x)
        x.copy_to_host(found, stream=stream)
        if not bug:
            stream.synchronize()
        return found.sum()

    return program


@planted("pinned memory is filled again under a copy out of it", "race between host and device: the host writes .* cuda.to_device")
def refilled_pinned_memory(bug):
    def program():
        stream, memory = cuda.stream(), cuda.pinned_array(64, np.float32)
        for step in range(2):
            memory[:] = step
            cuda.to_device(memory, stream=stream)
            if not bug:
                stream.synchronize()

    return program


@planted("an array is changed under `cuda.pinned`", "race between host and device: the host has written an array that cuda.to_device")
def changed_under_pinned(bug):
    def program():
        stream, memory = cuda.stream(), numbers(64)
        with cuda.pinned(memory):
            cuda.to_device(memory, stream=stream)
            if not bug:
                stream.synchronize()
            memory[0] = 5
            stream.synchronize()

    return program


@planted("managed memory is read while a kernel writes it", r"the host reads element \[3\] of x, which kernel double")
def early_read_of_managed_memory(bug):
    def program():
        memory = cuda.managed_array(64, np.float32)
        memory[:] = 1
        double[2, 32](memory)
        if not bug:
            cuda.synchronize()
        return memory[3]

    return program


# Barriers and warps


@planted("a barrier stands in both branches of an if", "meet at a block barrier from different places")
def divergent_barrier(bug):
    def kernel(out):
        i = cuda.threadIdx.x
        out[i] = 1 if i < 32 else 2
        if bug:
            if i < 32:
                cuda.syncthreads()
            else:
                cuda.syncthreads()
        else:
            cuda.syncthreads()
        out[i] += 1

    return kernel, 1, 64, (numbers(64),)


@planted("threads return before a barrier", "threads have ended without reaching a barrier")
def early_return(bug):
    def kernel(x, out):
        tile, i = cuda.shared.array(64, float32), cuda.threadIdx.x
        if bug and i >= x.size:
            return
        tile[i] = x[i] if i < x.size else float32(0)
        cuda.syncthreads()
        if i < x.size:
            out[i] = tile[x.size - 1 - i]

    return kernel, 1, 64, (numbers(50), numbers(50))


@planted("threads return before the barrier of the grid", "have returned without reaching the grid's barrier")
def early_return_from_grid(bug):
    def kernel(x, out):
        grid, i = cuda.cg.this_grid(), cuda.grid(1)
        if bug and i >= x.size:
            return
        if i < x.size:
            x[i] += float32(1)
        grid.sync()
        if i < x.size:
            out[i] = x[x.size - 1 - i]

    return kernel, 2, 32, (numbers(50), numbers(50))


@planted("a shuffle names lanes that are in another branch", "wait at shfl_down with mask 0xffffffff")
def divergent_shuffle(bug):
    mask = FULL if bug else 0xFFFF

    def kernel(x, out):
        lane = cuda.threadIdx.x
        if lane < 16:
            total = x[lane]
            for distance in (8, 4, 2, 1):
                total += cuda.shfl_down_sync(mask, total, distance)
            if lane == 0:
                out[0] = total

    return kernel, 1, 32, (numbers(32), numbers(1))


@planted("a shuffle reads from a lane outside its mask", "lane 0 reads from lane 16, which is not in the mask")
def shuffle_outside_mask(bug):
    def kernel(x, out):
        lane = cuda.threadIdx.x
        if lane < 16:
            out[lane] = cuda.shfl_sync(0xFFFF, x[lane], 16 if bug else 15)

    return kernel, 1, 32, (numbers(32), numbers(32))


@planted("sums of a shuffle over the end of its mask are stored", "an undefined value is stored")
def partial_mask(bug):
    def kernel(x, out):
        lane = cuda.threadIdx.x
        if lane < 20:
            total = x[lane]
            for distance in (16, 8, 4, 2, 1):
                other = cuda.shfl_down_sync(0xFFFFF, total, distance)
                if bug or lane + distance < 20:
                    total += other
            out[lane] = total

    return kernel, 1, 32, (numbers(32), numbers(32))


@planted("lanes that have exited are read by a shuffle", "an undefined value is stored")
def exited_lanes(bug):
    def kernel(x, out):
        lane = cuda.threadIdx.x
        if lane >= 20:
            return
        right = cuda.shfl_down_sync(FULL, x[lane], 1)
        out[lane] = right if bug or lane < 19 else float32(0)

    return kernel, 1, 32, (numbers(32), numbers(32))


@planted("a thread polls a flag that nobody raises", "the kernel hangs")
def hang(bug):
    def kernel(raised, out):
        if cuda.threadIdx.x == 0:
            while cuda.atomic.add(raised, 0, 0) == 0:
                cuda.nanosleep(10)
            out[0] = 1
        elif cuda.threadIdx.x == 1 and not bug:
            cuda.atomic.exch(raised, 0, 1)

    return kernel, 1, 2, (np.zeros(1, np.int32), np.zeros(1, np.int32))


# Indices


@planted("the last threads of the grid have no element", r"index \[50\] is out of bounds for the global array x of shape \(50,\)")
def missing_guard(bug):
    def kernel(x, out):
        i = cuda.grid(1)
        if bug or i < x.size:
            out[i] = x[i]

    return kernel, 2, 32, (numbers(50), numbers(50))


@planted("an index is negative", r"index \[-1\] into the global array x of shape \(32,\) is negative: .* it accesses element 31 ")
def negative_index(bug):
    def kernel(x, out):
        i = cuda.grid(1)
        out[i] = x[i - 1] if bug or i > 0 else float32(0)

    return kernel, 1, 32, (numbers(32), numbers(32))


@planted("a 16-byte access begins at 4 bytes", "is not aligned to 16 bytes")
def misaligned(bug):
    def kernel(x, out):
        i = cuda.threadIdx.x
        ptx.store_128(out, 4 * i, *ptx.load_128(x, 4 * i + bug))

    return kernel, 1, 32, (numbers(132), numbers(128))


@planted("an offset wraps in a cast to 32 bits", "has overflowed: it is 4294967296 without the 32-bit cast")
def wrapped_cast(bug):
    def kernel(x, out, row, stride):
        i = cuda.threadIdx.x
        out[i] = x[(int32(row * stride) if bug else row * stride % x.size) + i]

    return kernel, 1, 32, (numbers(64), numbers(32), 4, 1 << 30)


@planted("an offset wraps when it is stored as int32", "has overflowed: it is 4294967296 without the 32-bit store")
def wrapped_store(bug):
    def kernel(x, offsets, out, stride):
        i = cuda.threadIdx.x
        offsets[i] = 4 * stride if bug else 4 * stride % x.size
        out[i] = x[offsets[i] + i]

    return kernel, 1, 32, (numbers(64), np.zeros(32, np.int32), numbers(32), 1 << 30)


@planted("the shape of a shared array is an argument", "known only at run time")
def shape_of_argument(bug):
    def kernel(x, count, out):
        tile, i = cuda.shared.array(count if bug else 32, float32), cuda.threadIdx.x
        tile[i] = x[i]
        cuda.syncthreads()
        out[i] = tile[31 - i]

    def constant(x, count, out):
        tile, i = cuda.shared.array(32, float32), cuda.threadIdx.x
        tile[i] = x[i]
        cuda.syncthreads()
        out[i] = tile[31 - i]

    return (kernel if bug else constant), 1, 32, (numbers(32), 32, numbers(32))
