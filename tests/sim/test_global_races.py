"""Races in global memory, between threads of a block and between blocks: each planted bug is found, and its mended twin passes."""

import numpy as np
import pytest
from numba import cuda, float32, int32

from minllm.errors import SimulationError
from minllm.sim import simulate

PLACE = r"\S*test_global_races\.py:\d+ in kernel, block \(\d+, 0, 0\), thread \(\d+, 0, 0\)"
FOUND = rf"race on global memory: this thread (reads|writes|changes) the global array \w+, element \[\d+\], which thread .*{PLACE}"


def assert_found(kernel, grid, block, *arguments, match=FOUND, **options):
    """The detectors stop the kernel with a message of this form; without them it runs."""
    simulate(kernel, grid, block, *(np.copy(a) if isinstance(a, np.ndarray) else a for a in arguments), detect=False, **options)
    with pytest.raises(SimulationError, match=match):
        simulate(kernel, grid, block, *arguments, detect=True, **options)


def histogram(atomic):
    def kernel(keys, counts):
        i = cuda.grid(1)
        if atomic:
            cuda.atomic.add(counts, keys[i], 1)
        else:
            counts[keys[i]] += 1

    return kernel


@pytest.mark.parametrize("grid, block", [(1, 64), (64, 1), (2, 32)])
def test_lost_updates_without_atomics(grid, block):
    keys = np.arange(64, dtype=np.int32) % 5
    assert_found(histogram(False), grid, block, keys, np.zeros(5, np.int32))
    counts = np.zeros(5, np.int32)
    simulate(histogram(True), grid, block, keys, counts, detect=True)
    assert counts.sum() == 64


def scan_of_blocks(synchronised):
    def kernel(x, sums):
        i = cuda.grid(1)
        sums[i] = x[i] + x[i]
        if synchronised:
            cuda.cg.this_grid().sync()
        if cuda.blockIdx.x > 0 and cuda.threadIdx.x == 0:
            x[i] = sums[i - 1]

    return kernel


def test_another_blocks_result_without_a_grid_barrier():
    x = np.ones(64, np.float32)
    found = r"reads the global array sums, element \[31\], which thread \(31, 0, 0\) of block \(0, 0, 0\) writes at .*:\d+ in kernel"
    assert_found(scan_of_blocks(False), 2, 32, x, np.zeros(64, np.float32), match=found)
    simulate(scan_of_blocks(True), 2, 32, x, np.zeros(64, np.float32), detect=True)


def two_barriers(second):
    """Rotates by one element in place; between the read and the write of a step, and between two steps, all have to meet."""

    def kernel(x, steps):
        grid, i = cuda.cg.this_grid(), cuda.grid(1)
        for _ in range(steps):
            value = x[(i + 1) % x.size]
            grid.sync()
            x[i] = value
            if second:
                grid.sync()

    return kernel


def test_a_missing_grid_barrier_of_two():
    assert_found(two_barriers(False), 2, 4, np.arange(8.0), 2)
    x = np.arange(8.0)
    simulate(two_barriers(True), 2, 4, x, 2, detect=True)
    assert x.tolist() == [2, 3, 4, 5, 6, 7, 0, 1]


def test_in_and_out_that_overlap():
    def kernel(x, out):
        i = cuda.grid(1)
        out[i] = x[i] + float32(1)

    memory = np.arange(65, dtype=np.float32)
    assert_found(kernel, 2, 32, memory[1:], memory[:-1])
    assert_found(kernel, 2, 32, memory[:-1], memory[1:])
    simulate(kernel, 2, 32, memory[1:], memory[1:], detect=True)  # each thread its own element
    simulate(kernel, 1, 32, memory[:32], memory[32:64], detect=True)


def in_place(barrier):
    def kernel(x):
        i = cuda.threadIdx.x
        value = x[(i + 1) % 64]
        if barrier:
            cuda.syncthreads()
        x[i] = value

    return kernel


def test_threads_of_a_block_are_ordered_by_its_barrier():
    assert_found(in_place(False), 1, 64, np.arange(64.0))
    simulate(in_place(True), 1, 64, np.arange(64.0), detect=True)
    assert_found(in_place(True), 2, 64, np.arange(64.0))  # but not threads of two blocks


def test_lanes_of_a_warp_are_ordered_by_its_barrier():
    def make(warps):
        def kernel(x):
            i = cuda.threadIdx.x
            value = x[(i + 1) % 32 + i // 32 * 32 * (2 - warps)]
            cuda.syncwarp()
            x[i % 32 + i // 32 * 32 * (2 - warps)] = value

        return kernel

    simulate(make(1), 1, 64, np.arange(64.0), detect=True)
    assert_found(make(2), 1, 64, np.arange(64.0))


def last_block(fence):
    """The sum of all blocks' sums, by the block that arrives last."""

    def kernel(x, sums, arrived, out):
        if cuda.threadIdx.x == 0:
            sums[cuda.blockIdx.x] = x[cuda.blockIdx.x]
            if fence:
                cuda.threadfence()
            if cuda.atomic.add(arrived, 0, 1) == cuda.gridDim.x - 1:
                total = float32(0)
                for j in range(cuda.gridDim.x):
                    total += sums[j]
                out[0] = total
                arrived[0] = 0

    return kernel


def test_the_last_block_sees_what_was_fenced_before_an_atomic():
    x, out = np.arange(5, dtype=np.float32), np.zeros(1, np.float32)
    simulate(last_block(True), 5, 32, x, np.zeros(5, np.float32), np.zeros(1, np.int32), out, detect=True)
    assert out[0] == 10
    found = r"reads the global array sums, element \[0\], which thread \(0, 0, 0\) of block \(0, 0, 0\) writes"
    assert_found(last_block(False), 5, 32, x, np.zeros(5, np.float32), np.zeros(1, np.int32), out, match=found)


def test_a_chain_of_blocks_orders_the_first_before_the_last():
    def kernel(x, turn):
        i = cuda.blockIdx.x
        if cuda.threadIdx.x == 0:
            while cuda.atomic.add(turn, 0, 0) != i:
                cuda.nanosleep(100)
            x[i] = x[0] + 1
            cuda.threadfence()
            cuda.atomic.add(turn, 0, 1)

    x = np.zeros(4, np.float32)
    simulate(kernel, 4, 32, x, np.zeros(1, np.int32), detect=True)
    assert x.tolist() == [1, 2, 2, 2]


def test_a_flag_that_all_raise_is_no_race():
    def kernel(x, found):
        if x[cuda.grid(1)] > 3:
            found[0] = 1

    found = np.zeros(1, np.int32)
    simulate(kernel, 2, 32, np.arange(64.0), found, detect=True)
    assert found[0] == 1

    def different(x, found):
        if x[cuda.grid(1)] > 3:
            found[0] = cuda.grid(1)

    with pytest.raises(SimulationError, match="race on global memory: this thread writes the global array found"):
        simulate(different, 2, 32, np.arange(64.0), found, detect=True)


def test_wide_and_narrow_accesses_are_compared_by_bytes():
    from minllm.ptx import load_128, store_128

    def kernel(x, out, first):
        i = cuda.threadIdx.x
        if i < 4:
            store_128(out, 8 * i, *load_128(x, 8 * i))
        elif i == 32:
            out[first] = 1

    x = np.zeros(64, np.uint16)
    simulate(kernel, 1, 64, x, np.zeros(64, np.uint16), 32, detect=True)
    with pytest.raises(SimulationError, match=r"array out, element \[31\], which thread \(3, 0, 0\) writes"):
        simulate(kernel, 1, 64, x, np.zeros(64, np.uint16), 31, detect=True)


def test_a_waived_line_is_not_reported_and_a_reason_is_needed():
    def waived(parent, edges):
        i = cuda.grid(1)
        parent[edges[i, 0]] = edges[i, 1]  # allow-race: any of the parents will do

    def unreasoned(parent, edges):
        i = cuda.grid(1)
        parent[edges[i, 0]] = edges[i, 1]  # allow-race:

    edges = np.array([[0, 1], [0, 2], [1, 2], [2, 2]], np.int32)
    simulate(waived, 1, 4, np.zeros(3, np.int32), edges, detect=True)
    with pytest.raises(SimulationError, match="race on global memory"):
        simulate(unreasoned, 1, 4, np.zeros(3, np.int32), edges, detect=True)


def test_a_long_launch_is_compared_in_parts(monkeypatch):
    from minllm.sim.detectors import global_races

    monkeypatch.setattr(global_races, "LOGGED", 100)

    def kernel(x, out):
        i = cuda.grid(1)
        out[i] = x[i]
        if i == 639:
            out[i - 1] = int32(3)

    with pytest.raises(SimulationError, match=r"element \[638\]"):
        simulate(kernel, 20, 32, np.zeros(640), np.zeros(640), detect=True)
