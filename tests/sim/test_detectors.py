"""Each detector finds the bug that a kernel ships, naming file, line, block and thread, and lets its mended twin pass."""

import numpy as np
import pytest
from numba import cuda, float32, int32, uint8, uint16, uint32

from minllm import ptx
from minllm.errors import SimulationError
from minllm.sim import detecting, simulate, unwritten

PLACE = r"\S*test_detectors\.py:\d+ in kernel, block \(0, 0, 0\), thread \(\d+, 0, 0\)"


def assert_found(kernel, grid, block, *arguments, match, **options):
    """The detectors stop the kernel with a message of this form, and so it would pass without them."""
    simulate(kernel, grid, block, *arguments, detect=False, **options)
    with pytest.raises(SimulationError, match=match):
        simulate(kernel, grid, block, *arguments, detect=True, **options)


# Views with gaps: a layer of a cache


def copies_rows(apart):
    def kernel(cache, out):
        row = cuda.threadIdx.x
        words = ptx.load_128(cache, row * apart)
        ptx.store_128(out, row * 4, words[0], words[1], words[2], words[3])
        out[row, 0] = cache[row, 0] + float32(1)

    return kernel


def test_an_access_between_the_rows_of_a_view_is_found():
    whole = np.arange(60, dtype=np.float32).reshape(5, 3, 4)
    expected = whole[:, 1] + np.float32([1, 0, 0, 0])
    out = np.zeros((5, 4), np.float32)
    simulate(copies_rows(12), 1, 5, whole[:, 1], out, detect=True)
    np.testing.assert_array_equal(out, expected)
    with pytest.raises(SimulationError, match=r"16 bytes at element 4, counted from the first, are in a gap of the global array cache"):
        simulate(copies_rows(4), 1, 5, whole[:, 1], out)
    with pytest.raises(SimulationError, match=r"16 bytes at element 0, counted from the first, are in a gap of the global array cache"):
        simulate(copies_rows(4), 1, 5, whole[:, :, 0], out)


def test_the_element_of_a_view_that_nobody_wrote_is_named():
    whole = np.arange(60, dtype=np.float32).reshape(5, 3, 4)
    whole[3, 1, 2] = np.frombuffer(b"\xff" * 4, np.float32)[0]
    with pytest.raises(SimulationError, match=r"the global array cache, element \[3, 2\]"):
        simulate(copies_rows(12), 1, 5, whole[:, 1], np.zeros((5, 4), np.float32), detect=True)


# Reads of memory nobody wrote


def reads_local(initialise):
    def kernel(out):
        total = cuda.local.array(2, float32)
        total[0] = 0.0
        if initialise:
            total[1] = 0.0
        out[cuda.threadIdx.x] = total[0] + total[1]

    return kernel


def reads_shared(columns):
    """A tile of 8 half-words of which the last may stay unwritten."""

    def kernel(out):
        tile = cuda.shared.array((1, 8), uint16)
        if cuda.threadIdx.x < columns:
            tile[0, cuda.threadIdx.x] = 1
        cuda.syncthreads()
        if cuda.threadIdx.x == 3:
            out[0] = ptx.load_128(tile, 0)[3]

    return kernel


def test_a_read_of_an_unwritten_local_element():
    assert_found(reads_local(False), 1, 1, np.zeros(1, np.float32), match=rf"nobody wrote: the local array total, element \[1\] \({PLACE}")
    simulate(reads_local(True), 1, 1, np.zeros(1, np.float32), detect=True)


def test_a_read_of_unwritten_shared_bytes_by_a_wide_load():
    assert_found(reads_shared(7), 1, 8, np.zeros(1, np.uint32), match=rf"shared memory that nobody wrote: tile\[0, 7\] .*{PLACE}")
    simulate(reads_shared(8), 1, 8, np.zeros(1, np.uint32), detect=True)


def test_a_read_before_an_asynchronous_copy_arrives():
    def make(wait):
        def kernel(x, out):
            tile = cuda.shared.array(4, uint32, 128)
            ptx.cp_async_16(ptx.shared_address(tile, 0), x, 0, 16)
            ptx.cp_async_commit_group()
            if wait:
                ptx.cp_async_wait_group_0()
            out[0] = tile[1]

        return kernel

    x, out = np.arange(4, dtype=np.uint32), np.zeros(1, np.uint32)
    assert_found(make(False), 1, 1, x, out, match=rf"race .* tile\[1\] .* cp.async that thread .* nobody has waited for that yet .*{PLACE}")
    simulate(make(True), 1, 1, x, out, detect=True)
    assert out[0] == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
def test_a_read_of_an_unwritten_global_element(dtype):
    def make(first):
        def kernel(out):
            out[0] = 1
            out[2] = out[first] + 1

        return kernel

    out = unwritten(3, dtype)
    with pytest.raises(SimulationError, match=rf"nobody wrote: the global array out, element \[1\] \({PLACE}"):
        simulate(make(1), 1, 1, out, detect=True)
    out = unwritten(3, dtype)
    simulate(make(0), 1, 1, out, detect=True)
    assert out[0] == 1 and out[2] == 2
    simulate(make(2), 1, 1, out, detect=True)  # what an earlier launch wrote is written


def test_minus_one_of_the_host_counts_as_written():
    def kernel(slots, out):
        out[0] = slots[0]

    out = np.zeros(1, np.int32)
    simulate(kernel, 1, 1, np.full(1, -1, np.int32), out, detect=True)
    assert out[0] == -1


# Races in shared memory


def neighbour(barrier):
    """Each thread writes an element and reads that of the thread `distance` further."""

    def kernel(out, distance):
        tile = cuda.shared.array(64, float32)
        i = cuda.threadIdx.x
        tile[i] = 0.0
        cuda.syncthreads()
        tile[i] = float32(i)
        barrier()
        out[i] = tile[(i + distance) % 64]

    return kernel


def test_a_read_of_another_threads_write_without_a_barrier():
    out = np.zeros(64, np.float32)
    found = r"race on shared memory: this thread \w+ tile\[\d+\].*which thread \(\d+, 0, 0\) \w+ at .*test_detectors"
    with pytest.raises(SimulationError, match=found):
        simulate(neighbour(make_barrier("none")), 1, 64, out, 60, detect=True)
    simulate(neighbour(make_barrier("block")), 1, 64, out, 60, detect=True)
    assert out[10] == 6


def make_barrier(kind):
    """A device function: a block barrier, a warp barrier or none."""

    @cuda.jit(device=True)
    def barrier():
        if kind == "block":
            cuda.syncthreads()
        if kind == "warp":
            cuda.syncwarp()

    return barrier


@pytest.mark.parametrize("distance, races", [(1, True), (32, True), (0, False)])
def test_a_warp_barrier_orders_the_lanes_of_a_warp_only(distance, races):
    kernel, out = neighbour(make_barrier("warp")), np.zeros(64, np.float32)
    if races:
        with pytest.raises(SimulationError, match="race on shared memory"):
            simulate(kernel, 1, 64, out, distance, detect=True)
    else:
        simulate(kernel, 1, 64, out, distance, detect=True)


def test_lanes_of_a_warp_are_ordered_by_the_collectives_they_share():
    def make(mask):
        def kernel(out):
            tile = cuda.shared.array(32, float32)
            lane = cuda.threadIdx.x
            tile[lane] = float32(lane)
            if lane < 16:
                cuda.syncwarp(mask)
            else:
                cuda.syncwarp(0xFFFF0000)
            out[lane] = tile[lane // 16 * 16 + (lane + 1) % 16]

        return kernel

    def crossing(out):
        tile = cuda.shared.array(32, float32)
        lane = cuda.threadIdx.x
        tile[lane] = 0.0
        cuda.syncwarp()
        tile[lane] = float32(lane)
        cuda.syncwarp(0xFFFF if lane < 16 else 0xFFFF0000)
        out[lane] = tile[lane ^ 16]

    out = np.zeros(32, np.float32)
    simulate(make(0xFFFF), 1, 32, out, detect=True)
    assert out.tolist() == [lane // 16 * 16 + (lane + 1) % 16 for lane in range(32)]
    with pytest.raises(SimulationError, match="race on shared memory"):
        simulate(crossing, 1, 32, out, detect=True)


def reused_tile(second_barrier):
    """A loop that fills a tile again: the barrier behind the reads is the one that is often forgotten."""

    def kernel(x, out):
        tile = cuda.shared.array(64, float32)
        i, total = cuda.threadIdx.x, float32(0)
        for step in range(2):
            tile[i] = x[step, i]
            cuda.syncthreads()
            for j in range(64):
                total += tile[j]
            if second_barrier:
                cuda.syncthreads()
        out[i] = total

    return kernel


def test_a_tile_filled_again_while_others_still_read_it():
    x, out = np.ones((2, 64), np.float32), np.zeros(64, np.float32)
    with pytest.raises(SimulationError, match=rf"race on shared memory: this thread \w+ tile\[0\] .*which thread .* at .*{PLACE}"):
        simulate(reused_tile(False), 1, 64, x, out, detect=True)
    simulate(reused_tile(True), 1, 64, x, out, detect=True)
    assert (out == 128).all()


def test_an_asynchronous_copy_into_a_tile_that_others_still_read():
    def make(barrier):
        def kernel(x, out):
            tile = cuda.shared.array(4, uint32, 128)
            i = cuda.threadIdx.x
            tile[i] = i
            cuda.syncthreads()
            out[i] = tile[3 - i]
            if barrier:
                cuda.syncthreads()
            if i == 0:
                ptx.cp_async_16(ptx.shared_address(tile, 0), x, 0, 16)
            ptx.cp_async_commit_group()
            cuda.syncthreads()
            ptx.cp_async_wait_group_0()

        return kernel

    x, out = np.arange(4, dtype=np.uint32), np.zeros(4, np.uint32)
    with pytest.raises(SimulationError, match=r"race on shared memory: this thread (reads|writes) tile"):
        simulate(make(False), 1, 4, x, out, detect=True)
    simulate(make(True), 1, 4, x, out, detect=True)


def test_neighbouring_bytes_do_not_race_and_atomics_do_not_race_with_each_other():
    def kernel(out):
        flags = cuda.shared.array(64, uint8)
        count = cuda.shared.array(1, int32)
        if cuda.threadIdx.x == 0:
            count[0] = 0
        cuda.syncthreads()
        flags[cuda.threadIdx.x] = 1
        cuda.atomic.add(count, 0, 1)
        cuda.syncthreads()
        out[cuda.threadIdx.x] = flags[63 - cuda.threadIdx.x] + count[0]

    def mixed(out):
        count = cuda.shared.array(1, int32)
        if cuda.threadIdx.x == 0:
            count[0] = 0
        cuda.atomic.add(count, 0, 1)  # no barrier since it was set

    out = np.zeros(64, np.int32)
    simulate(kernel, 1, 64, out, detect=True)
    assert (out == 65).all()
    with pytest.raises(SimulationError, match=r"race on shared memory: this thread changes count\[0\]"):
        simulate(mixed, 1, 64, out, detect=True)


# Bounds and alignment: always on, in every space


@pytest.mark.parametrize("space", ["global", "shared", "local"])
@pytest.mark.parametrize("index", [-5, 4])
def test_both_ends_of_every_memory(space, index):
    def kernel(x, index):
        shared = cuda.shared.array(4, float32)
        local = cuda.local.array(4, float32)
        array = x if space == "global" else shared if space == "shared" else local
        array[index] = 1

    x = np.zeros(4, np.float32)
    for detect in (False, True):
        with pytest.raises(SimulationError, match=rf"out of bounds for the {space} array \w+ of shape \(4,\) \({PLACE}"):
            simulate(kernel, 1, 1, x, index, detect=detect)
    simulate(kernel, 1, 1, x, 3, detect=True)


def test_misaligned_vector_accesses():
    def kernel(x, out, index):
        out[0] = ptx.load_128(x, index)[0]

    x, out = np.arange(12, dtype=np.uint32), np.zeros(1, np.uint32)
    with pytest.raises(SimulationError, match=rf"the global array x is not aligned to 16 bytes \({PLACE}"):
        simulate(kernel, 1, 1, x, out, 2)
    simulate(kernel, 1, 1, x, out, 4)
    assert out[0] == 4


# Barriers and warp-wide instructions


def test_a_barrier_that_ended_threads_leave_out():
    def make(early):
        def kernel(out):
            if early and cuda.threadIdx.x >= 40:
                return
            cuda.syncthreads()
            if cuda.threadIdx.x < 40:
                out[cuda.threadIdx.x] = 1

        return kernel

    out = np.zeros(40, np.int32)
    match = r"24 threads have ended without reaching a barrier where 40 wait \(.*:\d+ in kernel, block \(0, 0, 0\).*thread \(40, 0, 0\)"
    assert_found(make(True), 1, 64, out, match=match)
    simulate(make(False), 1, 64, out, detect=True)


def test_barriers_at_different_lines():
    def make(together):
        def kernel(out):
            if together:
                cuda.syncthreads()
            elif cuda.threadIdx.x < 32:
                cuda.syncthreads()
            else:
                cuda.syncthreads()
            out[cuda.threadIdx.x] = 1

        return kernel

    out = np.zeros(64, np.int32)
    match = r"meet at a block barrier from different places: thread \(\d+, 0, 0\) at .*test_detectors.py:\d+ in kernel, thread"
    assert_found(make(False), 1, 64, out, match=match)
    simulate(make(True), 1, 64, out, detect=True)


def test_a_barrier_that_some_threads_wait_for_elsewhere():
    def make(uniform):
        def kernel(out):
            if uniform or cuda.threadIdx.x < 32:
                cuda.syncthreads()
            cuda.syncwarp(0xFFFFFFFF if cuda.threadIdx.x != 40 else 0x100)
            out[cuda.threadIdx.x] = 1

        return kernel

    out = np.zeros(64, np.int32)
    with pytest.raises(SimulationError, match=r"block \(0, 0, 0\) cannot go on: 32 threads .* wait at a block barrier, line \d+ of kernel"):
        simulate(make(False), 1, 64, out)

    def whole(out):
        cuda.syncthreads()
        out[cuda.threadIdx.x] = 1

    simulate(whole, 1, 64, out)


def test_divergence_at_a_warp_collective():
    def make(diverge):
        def kernel(out):
            value = cuda.threadIdx.x
            if not diverge or cuda.threadIdx.x < 16:
                value = cuda.shfl_xor_sync(0xFFFFFFFF, value, 1)
            out[cuda.threadIdx.x] = value

        return kernel

    out = np.zeros(32, np.int32)
    with pytest.raises(SimulationError, match=r"block \(0, 0, 0\) cannot go on: 16 threads .* wait at shfl_xor .*line \d+ of kernel"):
        simulate(make(True), 1, 32, out)
    simulate(make(False), 1, 32, out)
    assert out.tolist() == [lane ^ 1 for lane in range(32)]


def test_aligned_instructions_are_met_at_one_place():
    def make(together):
        def kernel(out):
            tile = cuda.shared.array(128, uint32, 128)
            fragment = cuda.local.array(4, uint32)
            lane = cuda.threadIdx.x
            for i in range(4):
                tile[lane * 4 + i] = lane
            cuda.syncthreads()
            if together or lane < 16:
                ptx.ldmatrix_x4(fragment, 0, ptx.shared_address(tile, lane * 4))
            else:
                ptx.ldmatrix_x4(fragment, 0, ptx.shared_address(tile, lane * 4))
            out[lane] = fragment[0]

        return kernel

    out = np.zeros(32, np.uint32)
    assert_found(make(False), 1, 32, out, match="meet at ldmatrix_x4 from different places")
    simulate(make(True), 1, 32, out, detect=True)


# Overflow of index arithmetic


def test_an_index_that_a_cast_has_wrapped():
    def make(narrow):
        def kernel(x, out, row, stride, start):
            offset = int32(row * stride) if narrow else row * stride
            out[0] = x[offset - start + 1]

        return kernel

    x, out = np.arange(4, dtype=np.float32), np.zeros(1, np.float32)
    row, stride = 70000, 70000
    match = rf"index \S+ into the global array x has overflowed: it is 3 without the 32-bit cast at \S+:\d+ in kernel \({PLACE}"
    with pytest.raises(SimulationError, match=match):
        simulate(make(True), 1, 1, x, out, row, stride, row * stride - 2, detect=True)
    simulate(make(False), 1, 1, x, out, row, stride, row * stride - 2, detect=True)
    assert out[0] == 3


def test_an_overflow_that_lands_inside_the_array():
    def kernel(x, out, row, stride):
        out[0] = x[uint32(row * stride)]

    x, out = np.arange(4, dtype=np.float32), np.zeros(1, np.float32)
    assert_found(kernel, 1, 1, x, out, 2**16, 2**16, match="index 0 into the global array x has overflowed: it is 4294967296 without")
    simulate(kernel, 1, 1, x, out, 1, 2, detect=True)


def test_hashes_and_differences_that_come_back_may_wrap():
    def kernel(x, out, seed):
        hashed = uint32(uint32(seed) * uint32(2654435761))
        out[0] = x[hashed % uint32(4)]
        back = uint32(uint32(-3) + 5)
        out[1] = x[back]

    x, out = np.arange(4, dtype=np.float32), np.zeros(2, np.float32)
    simulate(kernel, 1, 1, x, out, 12345, detect=True)
    assert out[0] == (12345 * 2654435761 & 0xFFFFFFFF) % 4 and out[1] == 2


def test_detecting_reaches_simulations_inside():
    out = np.zeros(1, np.float32)
    with detecting(False):
        simulate(reads_local(False), 1, 1, out)
        with detecting():
            with pytest.raises(SimulationError, match="nobody wrote"):
                simulate(reads_local(False), 1, 1, out)
