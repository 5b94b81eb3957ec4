"""Bulk copies in the simulator against NumPy; what becomes of kernels that forget to wait or to fence; and the machine code."""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32, uint64

from minllm import ptx
from minllm.errors import KernelArgumentError, SimulationError
from minllm.runtime.kernel import kernel
from minllm.runtime.machine_code import sass_of_all
from minllm.runtime.tensor_map import tensor_map
from tests.ptx.cases_bulk_copy import RUNS, TILES, check_run, check_tile, make_run_kernel, make_tile_kernel, tile_arguments


@pytest.mark.parametrize("case", TILES, ids=str)
def test_tiles_come_and_go(case, device):
    check_tile(case, device)


@pytest.mark.parametrize("byte_count", RUNS)
def test_runs_of_bytes_come_and_go(byte_count, device):
    check_run(byte_count, device)


def test_machine_code_of_copies(device):
    x, expected, compiled = np.zeros(64, np.uint16), [("UBLKCP.S.G", "UBLKCP.G.S", "FENCE.VIEW.ASYNC", "SYNCS.CCTL.IV")], []
    compiled.append(make_run_kernel(48).compile(x, x, 8))
    for case in TILES[1::2]:
        arguments, _, _ = tile_arguments(case, device)
        axes = len(case[0])
        compiled.append(make_tile_kernel(axes, arguments[2].size)[0].compile(*arguments))
        expected.append((f"UTMALDG.{axes}D", f"UTMASTG.{axes}D", "UTMACMDFLUSH", "UTMACCTL.IV", "SYNCS.ARRIVE.TRANS64"))
    for one, words, sass in zip(compiled, expected, sass_of_all(compiled), strict=True):
        for word in words:
            assert word in "\n".join(sass)
        assert (one.spill_bytes, one.stack_bytes) == (0, 0)


def make_mistaken(mistake):
    """Fetches 32 numbers, adds 1 in shared memory, and writes them out; with one step missing or too early."""
    wait, fence = int(mistake != "no wait"), int(mistake != "no fence")
    read, overwrite = int(mistake not in ("no read", "too early")), int(mistake in ("too early", "overwritten after the wait"))

    @kernel
    def mistaken_kernel(source, target):
        numbers = cuda.shared.array(32, float32, 128)
        barriers = cuda.shared.array(1, uint64, 8)
        thread, address, barrier = cuda.threadIdx.x, ptx.shared_address(numbers, 0), ptx.shared_address(barriers, 0)
        if thread == 0:
            ptx.mbarrier_init(barrier, 1)
            ptx.fence_mbarrier_init()
            ptx.mbarrier_arrive_expect_tx(barrier, 128)
            ptx.cp_async_bulk_tensor_1d_shared_global(address, source, 0, barrier)
        cuda.syncthreads()
        if wait:
            ptx.mbarrier_wait_parity(barrier, 0)
        numbers[thread] += float32(1)
        if fence:
            ptx.fence_proxy_async()
        cuda.syncthreads()
        if thread == 0:
            ptx.cp_async_bulk_tensor_1d_global_shared(target, 0, address)
            ptx.cp_async_bulk_commit_group()
            if read:
                ptx.cp_async_bulk_wait_group_read_0()
            if overwrite:
                numbers[5] = float32(-7)
                ptx.fence_proxy_async()
                ptx.cp_async_bulk_wait_group_0()

    return mistaken_kernel


def run(mistake, detect=None):
    source, target = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    make_mistaken(mistake).simulate[1, 32](tensor_map(source, (32,), 0), tensor_map(target, (32,), 0), detect=detect)
    return target


@pytest.mark.parametrize("fine", ["none", "overwritten after the wait"])
def test_the_kernel_without_a_mistake(fine):
    np.testing.assert_array_equal(run(fine), np.arange(1, 33))


@pytest.mark.parametrize("mistake", ["no wait", "no fence", "too early"])
def test_what_a_gpu_may_hide_gives_the_wrong_answer(mistake):
    assert (run(mistake, detect=False) != np.arange(1, 33)).any()


def test_detectors_name_the_read_that_came_too_early():
    with pytest.raises(SimulationError, match=r"race .* reads numbers\[0\] .* a bulk copy that thread \(0, 0, 0\) .* nobody has waited"):
        run("no wait", detect=True)


def test_a_block_may_not_end_before_its_stores_have_read():
    with pytest.raises(SimulationError, match="ends before its bulk stores have read shared memory"):
        run("no read")


@kernel
def misplaced_kernel(source, column, offset, bytes_expected):
    numbers = cuda.shared.array(256, float32, 1024)
    barriers = cuda.shared.array(1, uint64, 8)
    ptx.mbarrier_init(ptx.shared_address(barriers, 0), 1)
    ptx.fence_mbarrier_init()
    ptx.mbarrier_arrive_expect_tx(ptx.shared_address(barriers, 0), bytes_expected)
    ptx.cp_async_bulk_tensor_2d_shared_global(ptx.shared_address(numbers, offset), source, column, 0, ptx.shared_address(barriers, 0))
    ptx.mbarrier_wait_parity(ptx.shared_address(barriers, 0), 0)


@pytest.mark.parametrize(
    "column, offset, bytes_expected, complaint",
    [
        (0, 4, 512, "not aligned to 128 bytes"),
        (0, 256, 512, "outside the block's"),
        (2, 0, 512, "from element 2, 4 bytes each, of a row: a GPU traps"),
        (0, 0, 528, "16 bytes that nobody sends"),
        (-4, 0, 256, "gets 256 bytes more than it expects"),
    ],
)
def test_tiles_that_do_not_fit(column, offset, bytes_expected, complaint):
    with pytest.raises(SimulationError, match=complaint):
        misplaced_kernel.simulate[1, 1](tensor_map(np.zeros((4, 32), np.float32), (4, 32)), column, offset, bytes_expected)


def test_coordinates_and_axes_must_agree():
    with pytest.raises(SimulationError, match="2 coordinates from an array with 1 axes"):
        misplaced_kernel.simulate[1, 1](tensor_map(np.zeros(32, np.float32), (32,)), 0, 0, 128)


F32 = np.float32


@pytest.mark.parametrize(
    "array, options, complaint",
    [
        (np.zeros((4, 8), np.complex64), {"box": (4, 8)}, "TMA copies"),
        (np.zeros((4, 8), F32), {"box": (4,)}, "same number of axes"),
        (np.zeros((512, 8), F32), {"box": (257, 8), "swizzle": 32}, "1 to 256 elements"),
        (np.zeros((4, 8), F32), {"box": (4, 8), "swizzle": 48}, "swizzle 48 is none of"),
        (np.zeros((4, 8), F32), {"box": (4, 8), "swizzle": 128}, "must be 128 bytes long, not 32"),
        (np.zeros((4, 8), F32), {"box": (4, 6), "swizzle": 0}, "must be a multiple of 16"),
        (np.zeros((4, 6), F32), {"box": (4, 4), "swizzle": 0}, "rows are 24 bytes long"),
        (np.zeros((4, 8), np.int32), {"box": (4, 8), "swizzle": 32, "fill": "nan"}, "only floating-point"),
        (np.zeros((4, 32), ml_dtypes.float8_e5m2), {"box": (4, 32), "swizzle": 32, "fill": "nan"}, "of 16 bits or more"),
        (np.zeros((4, 8), F32), {"box": (4, 8), "swizzle": 32, "fill": "ones"}, "fill 'ones' is none of"),
        (np.zeros(65, F32)[1:].reshape(8, 8), {"box": (4, 8), "swizzle": 32}, "does not start at a multiple of 16"),
    ],
)
def test_maps_that_the_copy_engine_cannot_use(array, options, complaint):
    with pytest.raises(KernelArgumentError, match=complaint):
        tensor_map(array, **options)


def test_a_gpu_refuses_the_map_of_a_host_array():
    with pytest.raises(KernelArgumentError, match="copy the array there"):
        _ = tensor_map(np.zeros((4, 32), F32), (4, 32)).kernel_parameter
