"""Compiling without a GPU, and what the disk keeps of it."""

import gc
import json
import re
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32
from numba.cuda import types

from minllm.errors import KernelArgumentError, KernelCompilationError
from minllm.runtime import compiler, disk_cache
from minllm.runtime.argument_type import argument_type
from minllm.runtime.array import DeviceArray
from minllm.runtime.kernel import kernel, three_dimensions
from minllm.runtime.parameters import parameter


def make_scale(factor):
    def scale(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = float32(x[i]) * float32(factor)

    scale.__module__ = "minllm.kernels.made_for_this_test"
    return scale


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MINLLM_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("capability, target", [((8, 0), "sm_80"), ((9, 0), "sm_90a")])
def test_compiles_for_a_target_without_a_gpu(dtype, capability, target):
    x = np.zeros(4, dtype)
    compiled = kernel(make_scale(2)).compile(x, x, compute_capability=capability)
    assert compiled.target == target and compiled.cubin[:4] == b"\x7fELF"
    assert 0 < compiled.registers < 64 and compiled.spill_bytes == compiled.stack_bytes == 0


def test_the_second_compilation_comes_from_the_disk(monkeypatch):
    x = np.zeros(4, np.float32)
    first = kernel(make_scale(2)).compile(x, x)
    monkeypatch.setattr(compiler, "compile_fresh", lambda *_: pytest.fail("compiled again"))
    assert kernel(make_scale(2)).compile(x, x) == first


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"", lambda b: b"{}" + b, lambda b: b"[1]\n"])
def test_a_damaged_entry_is_compiled_again(own_cache, damage):
    x = np.zeros(4, np.float32)
    first = kernel(make_scale(2)).compile(x, x)
    (entry,) = own_cache.rglob("*.cubin")
    entry.write_bytes(damage(entry.read_bytes()))
    assert kernel(make_scale(2)).compile(x, x).registers == first.registers
    assert json.loads(entry.read_bytes().partition(b"\n")[0])["target"] == "sm_90a"


def test_an_unwritable_cache_costs_nothing_but_time(monkeypatch):
    monkeypatch.setenv("MINLLM_CACHE_DIR", "/proc/nowhere")
    x = np.zeros(4, np.float32)
    assert kernel(make_scale(2)).compile(x, x).registers


def test_a_kernel_that_another_process_is_compiling_is_waited_for(own_cache, monkeypatch):
    """flock() treats two descriptors of one process as it treats two processes."""
    x, compiled = np.zeros(4, np.float32), []
    fresh = compiler.CompiledKernel("scale", b"code", "sm_90a", 8, 0, 0, 0)
    monkeypatch.setattr(compiler, "compile_fresh", lambda *_: (compiled.append(1), time.sleep(0.3), fresh)[-1])
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: kernel(make_scale(2)).compile(x, x), range(4)))
    assert found == [fresh] * 4 and len(compiled) == 1
    assert [path.suffix for path in own_cache.rglob("*") if path.is_file()] == [".cubin"], "the lock leaves no file"


def test_a_kernel_that_does_not_compile_names_itself():
    def broken(x):
        x[0] = no_such_name  # noqa: F821

    with pytest.raises(KernelCompilationError, match="broken.*does not compile"):
        kernel(broken).compile(np.zeros(1, np.float32))


@pytest.mark.parametrize("value, message", [(True, "boolean"), (2**31, "does not fit int32"), ("x", "takes arrays"), ([1], "takes arrays")])
def test_arguments_that_no_kernel_takes(value, message):
    with pytest.raises(KernelArgumentError, match=message):
        argument_type(value)


def test_as_many_parameters_are_passed_as_numba_expects():
    def function(matrix, nothing, count, factor, vector):
        if nothing is None:
            matrix[0, 0] = vector[count] * factor

    matrix = DeviceArray(4096, (2, 3), np.float32, None, None)
    vector = DeviceArray(4096, (6,), np.float16, None, None)
    arguments = (matrix, None, 3, 2.0, vector)
    numba_types = [argument_type(argument) for argument in arguments]
    ptx, _ = cuda.compile_ptx(function, types.void(*numba_types), device=False, abi="numba", cc=(9, 0))
    expected = re.findall(r"\.param \.(\w+)", ptx)
    packed = [parameter(argument)[1] for argument in arguments]
    assert [len(values) // 8 for values in packed] == [9, 1, 1, 1, 7]
    assert expected == ["u64"] * 10 + ["u32", "f32"] + ["u64"] * 7


def test_sizes_of_grids():
    assert three_dimensions(5, "grid") == (5, 1, 1) and three_dimensions((2, 3), "grid") == (2, 3, 1)
    with pytest.raises(KernelArgumentError, match="the block is"):
        three_dimensions((-1,), "block")


def test_without_locks_every_process_makes_the_entry(monkeypatch):
    """As on Windows."""
    monkeypatch.setattr(disk_cache, "CAN_LOCK", False)
    with disk_cache.making("ab" * 32) as first, disk_cache.making("ab" * 32, wait=False) as second:
        assert first and second


@pytest.fixture
def frequent_collections():
    """Python's own threshold of the garbage collector, which is a seventieth of the tests'."""
    threshold = gc.get_threshold()
    gc.set_threshold(700)
    yield
    gc.set_threshold(*threshold)


def test_the_garbage_collector_waits_until_a_kernel_is_made(only_new_objects, frequent_collections, monkeypatch):
    """A finalizer may wait for a GPU, whose kernel waits for a rank that waits for the lock of this kernel."""
    finalized, seen = [], []

    class Cycle:
        def __init__(self):
            self.itself = self
            weakref.finalize(self, finalized.append, True)

    def allocate(*_):
        for _ in range(10 * gc.get_threshold()[0]):
            Cycle()
        seen.extend(finalized)
        raise KernelCompilationError("enough was allocated")

    monkeypatch.setattr(compiler, "compile_fresh", allocate)
    x = np.zeros(4, np.float32)
    with pytest.raises(KernelCompilationError, match="enough"):
        kernel(make_scale(2)).compile(x, x, compute_capability=(9, 0))
    assert not seen and gc.isenabled()
    gc.collect()
    assert finalized
