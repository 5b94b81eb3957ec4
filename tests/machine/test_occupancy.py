"""Occupancy against NVIDIA's published examples, and against the toolkit's own header over random kernels of every generation."""

import ctypes
import itertools
import math
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minllm.errors import InvalidOptionError
from minllm.machine.occupancy import MULTIPROCESSORS, REGISTERS_PER_THREAD, multiprocessor_of, occupancy, registers_for

KIB = 1024

# A C function with plain numbers around NVIDIA's calculator.
WRAPPER = """
#include <string.h>
#include <limits.h>
#include "cuda_occupancy.h"
int resident_blocks(int major, int minor, int warps, int shared_kib, int reserved_kib, int threads, int registers, int shared_bytes) {
    cudaOccDeviceProp device; cudaOccFuncAttributes function; cudaOccDeviceState state; cudaOccResult result;
    memset(&device, 0, sizeof device); memset(&function, 0, sizeof function); memset(&state, 0, sizeof state);
    device.computeMajor = major; device.computeMinor = minor; device.maxThreadsPerBlock = 1024; device.warpSize = 32;
    device.maxThreadsPerMultiprocessor = 32 * warps; device.regsPerBlock = device.regsPerMultiprocessor = 65536; device.numSms = 1;
    device.sharedMemPerBlock = 48 * 1024; device.sharedMemPerMultiprocessor = shared_kib * 1024;
    device.sharedMemPerBlockOptin = (shared_kib - reserved_kib) * 1024; device.reservedSharedMemPerBlock = reserved_kib * 1024;
    function.maxThreadsPerBlock = INT_MAX; function.numRegs = registers; function.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    function.maxDynamicSharedSizeBytes = INT_MAX; function.numBlockBarriers = 1; state.carveoutConfig = 100;
    if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &function, &state, threads, shared_bytes)) return -1;
    return result.activeBlocksPerMultiprocessor;
}
"""


@pytest.mark.parametrize(
    "threads, blocks, percent",
    [(128, 12, 75), (320, 4, 63)],  # CUDA C++ Best Practices Guide, "Calculating Occupancy": 37 registers a thread
)
def test_the_examples_of_the_best_practices_guide(threads, blocks, percent):
    found = occupancy((9, 0), threads, registers=37, shared_bytes=0)
    assert (found.blocks, math.floor(100 * found.share + 0.5)) == (blocks, percent)
    assert found.limited_by == ["registers"]


@pytest.mark.parametrize(
    "capability, threads, registers, shared_bytes, blocks, limited_by",
    [
        ((8, 0), 1024, 32, 0, 2, ["warps", "registers"]),  # a full multiprocessor
        ((8, 9), 1024, 32, 0, 1, ["warps"]),  # one of 1,536 threads holds a single such block
        ((9, 0), 64, 16, 0, 32, ["blocks", "warps"]),
        ((9, 0), 32, 16, 0, 32, ["blocks"]),  # half of the warps: too many small blocks
        ((9, 0), 256, 255, 0, 1, ["registers"]),
        ((9, 0), 288, 255, 0, 0, ["registers"]),  # does not fit at all: nine warps, rounded up to twelve
        ((9, 0), 128, 32, 227 * KIB, 1, ["shared memory"]),
        ((9, 0), 128, 32, 227 * KIB + 1, 0, ["shared memory"]),
        ((9, 0), 128, 32, 56 * KIB, 4, ["shared memory"]),  # 57 KiB with the system's share: 228 = 4 x 57
        ((8, 0), 128, 32, 56 * KIB, 2, ["shared memory"]),
        ((7, 5), 128, 32, 32 * KIB, 2, ["shared memory"]),  # Turing reserves nothing
        ((9, 0), 1025, 32, 0, 0, ["blocks"]),
    ],
)
def test_each_limit(capability, threads, registers, shared_bytes, blocks, limited_by):
    found = occupancy(capability, threads, registers, shared_bytes)
    assert (found.blocks, found.limited_by) == (blocks, limited_by)


def test_turing_allocates_shared_memory_in_units_of_256_bytes():
    assert occupancy((7, 5), 32, 32, 6401).blocks == 64 * KIB // 6656
    assert occupancy((8, 0), 32, 32, 6401).blocks == 164 * KIB // (6528 + KIB)


def test_an_unknown_compute_capability_names_the_known_ones():
    with pytest.raises(InvalidOptionError, match=r"6\.1 are not known.*7\.5, 8\.0.*10\.0"):
        multiprocessor_of((6, 1))


@given(warps=st.integers(1, 64))
def test_the_budget_is_the_most_registers_that_fit(warps):
    budget = registers_for(warps)
    assert occupancy((9, 0), 32, budget, 0).limits["registers"] >= warps
    assert budget == REGISTERS_PER_THREAD or occupancy((9, 0), 32, budget + 1, 0).limits["registers"] < warps


@pytest.fixture(scope="module")
def calculator(tmp_path_factory):
    """NVIDIA's calculator, compiled from the header of the toolkit's wheels."""
    nvidia = pytest.importorskip("nvidia", reason="the toolkit's wheels are not installed: there is no header to compare with")
    headers = [header for root in nvidia.__path__ for header in Path(root).rglob("cuda_occupancy.h")]
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not headers or not compiler:
        pytest.skip("comparing with cuda_occupancy.h takes a C compiler and the toolkit's runtime headers")
    folder = tmp_path_factory.mktemp("calculator")
    (folder / "calculator.c").write_text(WRAPPER)
    library = folder / "calculator.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-I", headers[0].parent, "-o", library, folder / "calculator.c"], check=True)
    return ctypes.CDLL(str(library)).resident_blocks


@pytest.mark.parametrize("capability", MULTIPROCESSORS, ids=str)
def test_against_nvidias_calculator(calculator, capability):
    """Of the smallest and largest kernels, and of 1,000 random ones, half of them without shared memory."""
    has, largest = MULTIPROCESSORS[capability], np.array([1024, 255, 240 * KIB])
    drawn = np.random.default_rng(0).integers([1, 1, 0], largest, (1000, 3), endpoint=True)
    drawn[::2, 2] = 0
    for threads, registers, shared_bytes in [*itertools.product(*zip((1, 1, 0), largest.tolist())), *drawn.tolist()]:
        wanted = calculator(*capability, has.warps, has.shared_kib, has.reserved_kib, threads, registers, shared_bytes)
        found = occupancy(capability, threads, registers, shared_bytes).blocks
        assert found == wanted, (threads, registers, shared_bytes)
