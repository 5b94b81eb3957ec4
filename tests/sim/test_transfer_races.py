"""Races with what runs beside the threads: each kernel ships the bug, and its mended twin passes all detectors."""

import numpy as np
import pytest
from numba import cuda, float32, uint16, uint32, uint64

from minllm import ptx
from minllm.errors import SimulationError
from minllm.sim import simulate

PLACE = r"\S*test_transfer_races\.py:\d+ in \w+"
RACE = rf"race on shared memory: {{who}} tile\[\d+\] \(address \d+\), which {{unit}} that thread .* has started at {PLACE}"
A, B = 64 * 16, 8 * 16  # elements of the operands of a product [64, 16] [8, 16]^T
TILE = A + B
wgmma = ptx.make_wgmma(8, "bf16")


def assert_race(kernel, block, *arguments, who, unit, match=""):
    """The detectors stop the kernel with a race between these two, naming both places."""
    with pytest.raises(SimulationError, match=RACE.format(who=who, unit=unit) + match):
        simulate(kernel, 1, block, *arguments, detect=True)


@cuda.jit(device=True)
def start_product(accumulator, tile):
    """Start the product of the operands that lie in `tile`, A and behind it B, without swizzle."""
    a = ptx.matrix_descriptor(ptx.shared_address(tile, 0), 1024, 128, 0)
    b = ptx.matrix_descriptor(ptx.shared_address(tile, A), 128, 128, 0)
    ptx.wgmma_fence()
    wgmma(accumulator, a, b, 0)
    ptx.wgmma_commit_group()


@cuda.jit(device=True)
def fill(tile, thread, threads, value):
    """Write all of `tile`, and let the asynchronous units see it."""
    i = thread
    while i < A + B:
        tile[i] = value
        i += threads
    ptx.fence_proxy_async()


# What wgmma reads, overwritten


def operand_overwritten(waits):
    """A warpgroup writes its operands anew while the product may still read them."""

    def kernel(out):
        tile = cuda.shared.array(TILE, uint16, 128)
        accumulator = cuda.local.array(4, float32)
        thread = cuda.threadIdx.x
        fill(tile, thread, 128, 1)
        cuda.syncthreads()
        start_product(accumulator, tile)
        if waits:
            ptx.wgmma_wait_group_0()
            cuda.syncthreads()
        fill(tile, thread, 128, 2)
        ptx.wgmma_wait_group_0()
        out[thread] = accumulator[0]

    return kernel


def test_an_operand_of_wgmma_overwritten_before_the_wait():
    out = np.zeros(128, np.float32)
    assert_race(operand_overwritten(False), 128, out, who="this thread writes", unit="wgmma", match=" reads, and nobody")
    simulate(operand_overwritten(True), 1, 128, out, detect=True)


def operand_overwritten_by_another_warpgroup(told):
    """One warpgroup multiplies and waits; the other one writes the operands anew, told by a named barrier that it may."""

    def kernel(out):
        tile = cuda.shared.array(TILE, uint16, 128)
        accumulator = cuda.local.array(4, float32)
        thread = cuda.threadIdx.x
        fill(tile, thread, 256, 1)
        cuda.syncthreads()
        if thread < 128:
            start_product(accumulator, tile)
            ptx.wgmma_wait_group_0()
            ptx.bar_arrive(1, 256)
            out[thread] = accumulator[0]
        else:
            if told:
                ptx.bar_sync(1, 256)
            else:
                ptx.bar_arrive(1, 256)
            fill(tile, thread - 128, 128, 2)

    return kernel


def test_an_operand_of_wgmma_overwritten_by_threads_that_do_not_know_of_the_wait():
    out = np.zeros(128, np.float32)
    untold = operand_overwritten_by_another_warpgroup(False)
    assert_race(untold, 256, out, who="this thread writes", unit="wgmma", match=" reads, and nothing tells")
    simulate(operand_overwritten_by_another_warpgroup(True), 1, 256, out, detect=True)


def test_a_wait_for_a_product_is_no_barrier():
    def make(barrier):
        def kernel(out):
            tile = cuda.shared.array(TILE, uint16, 128)
            turn = cuda.shared.array(128, float32)
            accumulator = cuda.local.array(4, float32)
            thread = cuda.threadIdx.x
            fill(tile, thread, 128, 1)
            cuda.syncthreads()
            start_product(accumulator, tile)
            turn[thread] = thread
            ptx.wgmma_wait_group_0()
            if barrier:
                cuda.syncthreads()
            out[thread] = accumulator[0] + turn[127 - thread]

        return kernel

    out = np.zeros(128, np.float32)
    with pytest.raises(SimulationError, match=r"race on shared memory: this thread reads turn\[\d+\]"):
        simulate(make(False), 1, 128, out, detect=True)
    simulate(make(True), 1, 128, out, detect=True)


def test_operands_of_wgmma_that_nobody_wrote():
    def make(count):
        def kernel(out):
            tile = cuda.shared.array(TILE, uint16, 128)
            accumulator = cuda.local.array(4, float32)
            i = cuda.threadIdx.x
            while i < count:
                tile[i] = 1
                i += 128
            ptx.fence_proxy_async()
            cuda.syncthreads()
            start_product(accumulator, tile)
            ptx.wgmma_wait_group_0()
            out[cuda.threadIdx.x] = accumulator[0]

        return kernel

    out = np.zeros(128, np.float32)
    with pytest.raises(SimulationError, match=rf"wgmma that this thread starts reads shared memory that nobody wrote: tile\[{A}\]"):
        simulate(make(A), 1, 128, out, detect=True)
    simulate(make(A + B), 1, 128, out, detect=True)


# A stage of a pipeline: a producer copies into it, a warpgroup multiplies out of it


def pipeline(mistake):
    """Two rounds of one stage. Mistakes: the consumers give it back before their product is done, do not wait until it is full, or the
    producer does not wait until it is given back."""
    releases_early, starts_early, never_waits = (mistake == name for name in ("releases early", "starts early", "never waits"))

    def kernel(x, out):
        tile = cuda.shared.array(TILE, uint16, 128)
        barriers = cuda.shared.array(2, uint64)
        accumulator = cuda.local.array(4, float32)
        thread = cuda.threadIdx.x
        full, empty = ptx.shared_address(barriers, 0), ptx.shared_address(barriers, 1)
        if thread == 0:
            ptx.mbarrier_init(full, 1)
            ptx.mbarrier_init(empty, 1)
            ptx.fence_mbarrier_init()
        cuda.syncthreads()
        for step in range(2):
            if thread == 128:
                if not never_waits:
                    ptx.mbarrier_wait_parity(empty, step ^ 1)
                ptx.mbarrier_arrive_expect_tx(full, 2 * (A + B))
                ptx.cp_async_bulk_shared_global(ptx.shared_address(tile, 0), x, step * (A + B), 2 * (A + B), full)
            if thread < 128:
                if not starts_early:
                    ptx.mbarrier_wait_parity(full, step)
                start_product(accumulator, tile)
                if releases_early and thread == 0:
                    ptx.mbarrier_arrive(empty)
                if starts_early:
                    ptx.mbarrier_wait_parity(full, step)
                ptx.wgmma_wait_group_0()
                if not releases_early and thread == 0:
                    ptx.mbarrier_arrive(empty)
        if thread < 128:
            out[thread] = accumulator[0]

    return kernel


@pytest.mark.parametrize("mistake", ["releases early", "starts early", "never waits"])
def test_a_stage_that_is_filled_and_multiplied_at_the_same_time(mistake):
    x, out = np.ones(2 * (A + B), np.uint16), np.zeros(128, np.float32)
    with pytest.raises(SimulationError, match=rf"race on shared memory: .* that thread .* has started at {PLACE}|nobody wrote: tile"):
        simulate(pipeline(mistake), 1, 160, x, out, detect=True)
    simulate(pipeline(""), 1, 160, x, out, detect=True)


def test_a_copy_into_a_stage_that_wgmma_still_reads_is_named():
    x, out = np.ones(2 * (A + B), np.uint16), np.zeros(128, np.float32)
    who = "a bulk copy that this thread starts writes"
    assert_race(pipeline("releases early"), 160, x, out, who=who, unit="wgmma", match=" reads, and nothing tells this thread")


def test_a_copy_into_a_stage_that_threads_still_read():
    def make(waits):
        def kernel(x, out):
            tile = cuda.shared.array(64, uint16, 128)
            barriers = cuda.shared.array(2, uint64)
            thread = cuda.threadIdx.x
            full, empty = ptx.shared_address(barriers, 0), ptx.shared_address(barriers, 1)
            if thread == 0:
                ptx.mbarrier_init(full, 1)
                ptx.mbarrier_init(empty, 32)
                ptx.fence_mbarrier_init()
            cuda.syncthreads()
            for step in range(2):
                if thread == 32:
                    if waits:
                        ptx.mbarrier_wait_parity(empty, step ^ 1)
                    ptx.mbarrier_arrive_expect_tx(full, 128)
                    ptx.cp_async_bulk_shared_global(ptx.shared_address(tile, 0), x, 64 * step, 128, full)
                    ptx.mbarrier_wait_parity(full, step)
                if thread < 32:
                    ptx.mbarrier_wait_parity(full, step)
                    out[thread] += tile[63 - thread]
                    ptx.mbarrier_arrive(empty)

        return kernel

    x, out = np.ones(128, np.uint16), np.zeros(32, np.float32)
    assert_race(make(False), 64, x, out, who="this thread reads", unit="a bulk copy", match=" writes, and nothing tells")
    out[:] = 0
    simulate(make(True), 1, 64, x, out, detect=True)
    assert (out == 2).all()


# What bulk stores read, overwritten


def store_source_overwritten(waits):
    """One thread sends a tile to global memory, and all of them write the next one into the same place."""

    def kernel(out):
        tile = cuda.shared.array(64, uint16, 128)
        thread = cuda.threadIdx.x
        for step in range(2):
            tile[thread] = step
            ptx.fence_proxy_async()
            cuda.syncthreads()
            if thread == 0:
                ptx.cp_async_bulk_global_shared(out, 64 * step, ptx.shared_address(tile, 0), 128)
                ptx.cp_async_bulk_commit_group()
                if waits:
                    ptx.cp_async_bulk_wait_group_read_0()
            cuda.syncthreads()
        if thread == 0:
            ptx.cp_async_bulk_wait_group_0()

    return kernel


def test_the_source_of_a_bulk_store_overwritten_before_the_wait():
    out = np.zeros(128, np.uint16)
    assert_race(store_source_overwritten(False), 64, out, who="this thread writes", unit="a bulk store", match=" reads")
    simulate(store_source_overwritten(True), 1, 64, out, detect=True)
    assert out.tolist() == [0] * 64 + [1] * 64


def test_the_source_of_a_bulk_store_overwritten_by_threads_that_do_not_know_of_the_wait():
    def make(barrier):
        def kernel(out):
            tile = cuda.shared.array(64, uint16, 128)
            thread = cuda.threadIdx.x
            tile[thread] = thread
            ptx.fence_proxy_async()
            cuda.syncthreads()
            if thread == 0:
                ptx.cp_async_bulk_global_shared(out, 0, ptx.shared_address(tile, 0), 128)
                ptx.cp_async_bulk_commit_group()
                ptx.cp_async_bulk_wait_group_0()
            if barrier:
                cuda.syncthreads()
            tile[thread] = 0

        return kernel

    out = np.zeros(64, np.uint16)
    assert_race(make(False), 64, out, who="this thread writes", unit="a bulk store", match=" reads, and nothing")
    simulate(make(True), 1, 64, out, detect=True)


def test_a_tile_read_before_its_second_asynchronous_copy_is_there():
    def make(waits):
        def kernel(x, out):
            tile = cuda.shared.array(8, uint16, 128)
            for step in range(2):
                ptx.cp_async_16(ptx.shared_address(tile, 0), x, 8 * step, 16)
                ptx.cp_async_commit_group()
                if waits or step == 0:
                    ptx.cp_async_wait_group_0()
                out[step] = tile[1]
            ptx.cp_async_wait_group_0()

        return kernel

    x, out = np.arange(16, dtype=np.uint16), np.zeros(2, np.uint16)
    assert_race(make(False), 1, x, out, who="this thread reads", unit="cp.async", match=" writes")
    simulate(make(True), 1, 1, x, out, detect=True)
    assert out.tolist() == [1, 9]


# The registers of wgmma, and what bulk stores write


def product_read(mistake):
    """A warpgroup multiplies and reads the sums. Mistakes: "" (none), "no commit", "no wait", "an operand changes"."""
    commits, waits = int(mistake != "no commit"), int(mistake != "no wait")
    changes = int(mistake == "an operand changes")
    product = ptx.make_wgmma(8, "bf16", a="registers")

    def kernel(out):
        tile = cuda.shared.array(TILE, uint16, 128)
        accumulator = cuda.local.array(4, float32)
        a = cuda.local.array(8, uint32)
        thread = cuda.threadIdx.x
        fill(tile, thread, 128, 1)
        for i in range(8):
            a[i] = 1
        cuda.syncthreads()
        ptx.wgmma_fence()
        product(accumulator, a, 4, ptx.matrix_descriptor(ptx.shared_address(tile, A), 128, 128, 0), 0)
        if commits:
            ptx.wgmma_commit_group()
        a[3 + changes] = 2
        if waits:
            ptx.wgmma_wait_group_0()
        out[thread] = accumulator[0] + a[4]

    return kernel


@pytest.mark.parametrize(
    "mistake, match",
    [
        ("no commit", r"reads the local array accumulator, element \[0\], which a wgmma .* writes, and no wgmma.commit_group has"),
        ("no wait", r"reads the local array accumulator, element \[0\], which a wgmma .* writes, and nobody has waited for that yet"),
        ("an operand changes", r"writes the local array a, element \[4\], which a wgmma .* reads, and nobody has waited for that yet"),
    ],
)
def test_registers_of_a_product_in_flight(mistake, match):
    out = np.zeros(128, np.float32)
    with pytest.raises(SimulationError, match=f"race on registers: this thread {match}"):
        simulate(product_read(mistake), 1, 128, out, detect=True)
    simulate(product_read(""), 1, 128, out, detect=True)


def store_and_read(wait, tells):
    """A thread sends a tile to global memory, and the others read it there. tells: whether a barrier stands after the wait."""

    def kernel(out, found):
        tile = cuda.shared.array(64, uint16, 128)
        thread = cuda.threadIdx.x
        tile[thread] = thread
        ptx.fence_proxy_async()
        cuda.syncthreads()
        if thread == 0:
            ptx.cp_async_bulk_global_shared(out, 0, ptx.shared_address(tile, 0), 128)
            ptx.cp_async_bulk_commit_group()
            if wait == "read":
                ptx.cp_async_bulk_wait_group_read_0()
            else:
                ptx.cp_async_bulk_wait_group_0()
        if tells:
            cuda.syncthreads()
        found[thread] = out[63 - thread]

    return kernel


def test_what_a_bulk_store_writes_is_read_after_a_wait_for_its_reads_alone():
    out, found = np.zeros(64, np.uint16), np.zeros(64, np.uint16)
    match = r"race on global memory: this thread reads the global array out, element \[63\], which a bulk store that thread \(0, 0, 0\) "
    with pytest.raises(SimulationError, match=match + ".* writes, and wait_group.read has waited for its reads alone"):
        simulate(store_and_read("read", True), 1, 64, out, found, detect=True)
    simulate(store_and_read("all", True), 1, 64, out, found, detect=True)
    assert found.tolist() == list(range(64))[::-1]


def test_a_wait_for_a_bulk_store_is_no_barrier():
    out, found = np.zeros(64, np.uint16), np.zeros(64, np.uint16)
    with pytest.raises(SimulationError, match=r"race on global memory: .* \(0, 0, 0\) writes at .* and nothing orders the two"):
        simulate(store_and_read("all", False), 1, 64, out, found, detect=True)
