"""The pool and the device array, on memory of the host."""

import gc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.errors import CaptureError, InvalidOptionError, KernelArgumentError, OutOfMemoryError
from minllm.runtime import memory
from minllm.runtime.array import DeviceArray, address_of
from minllm.runtime.memory import LARGE_STEP, SMALLEST_BLOCK, DeviceMemory, block_size_for, device_memory
from tests.runtime.host_memory import HostMemory


@pytest.fixture
def pool():
    return DeviceMemory(HostMemory())


@pytest.fixture(params=[True, False], ids=["caching", "not caching"])
def any_pool(request):
    return DeviceMemory(HostMemory(), caching=request.param)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.uint8], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 0, 4), (7, 1, 3, 2)])
def test_contents_survive_the_way_there_and_back(any_pool, shape, dtype):
    host = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    array = any_pool.array(host)
    assert (array.shape, array.dtype, array.ndim, array.nbytes, array.size) == (shape, host.dtype, host.ndim, host.nbytes, host.size)
    np.testing.assert_array_equal(array.copy_to_host(), host)
    assert not any_pool.zeros(shape, dtype).copy_to_host().astype(bool).any()


def test_a_transposed_array_is_copied_in_its_own_order(any_pool):
    host = np.arange(12, dtype=np.float32).reshape(3, 4).T
    np.testing.assert_array_equal(any_pool.array(host).copy_to_host(), host)


def test_views_share_memory_and_keep_it_alive(only_new_objects, any_pool):
    host = np.arange(24, dtype=np.int32).reshape(4, 3, 2)
    array = any_pool.array(host)
    np.testing.assert_array_equal(array[1].copy_to_host(), host[1])
    np.testing.assert_array_equal(array[-1].copy_to_host(), host[-1])
    np.testing.assert_array_equal(array[1:3].copy_to_host(), host[1:3])
    np.testing.assert_array_equal(array[3:1].copy_to_host(), host[3:1])
    np.testing.assert_array_equal(array.reshape(2, -1).copy_to_host(), host.reshape(2, -1))
    np.testing.assert_array_equal(array.reshape((24,)).copy_to_host(), host.reshape(24))
    np.testing.assert_array_equal(array.view(np.uint8).copy_to_host(), host.view(np.uint8))
    row = array[2]
    row.copy_from_host(np.full((3, 2), -1, np.int32))
    assert (array.copy_to_host()[2] == -1).all()
    del array
    gc.collect()
    other = any_pool.zeros((4, 3, 2), np.int32)
    assert other.block.pointer != row.block.pointer and (row.copy_to_host() == -1).all()


def strided(array, layer):
    """Layer `layer` of an array [blocks, tokens, layers, row] with strides."""
    strides = (*array.strides[:2], *array.strides[3:])
    shape = (*array.shape[:2], *array.shape[3:])
    return DeviceArray(array.pointer + layer * array.strides[2], shape, array.dtype, array.block, array.memory, strides)


def test_a_view_with_gaps(pool):
    host = np.arange(2 * 5 * 3 * 8, dtype=np.int32).reshape(2, 5, 3, 8)
    array, layer = strided(pool.array(host), 1), host[:, :, 1]
    assert not array.is_contiguous and array.strides == layer.strides and array.nbytes == layer.nbytes
    np.testing.assert_array_equal(array[1][4].copy_to_host(), layer[1, 4])
    np.testing.assert_array_equal(array[-1][2:4].reshape(2, 2, 4)[1].copy_to_host(), layer[-1, 3].reshape(2, 4))
    assert array[1].strides == layer[1].strides and array[:1].strides == layer[:1].strides
    for shape in ((10, 8), (10, 2, 4), (2, 5, 4, 2), (1, 2, 5, 8, 1), (5, 2, 8)):
        assert array.reshape(shape).strides == layer.reshape(shape).strides, shape
        assert array.reshape(shape)[-1].pointer - array.pointer == address_of(layer.reshape(shape)[-1]) - address_of(layer)
    assert strided(pool.array(host[:, :, :1]), 0).is_contiguous
    for use in (lambda: array.reshape(80), lambda: array.reshape(2, 40), array.copy_to_host, lambda: array.fill_bytes(0),
                lambda: array.view(np.uint8), lambda: array.copy_from_host(layer)):  # fmt: skip
        with pytest.raises(KernelArgumentError, match="gaps"):
            use()


def test_mistakes_are_explained(any_pool):
    array = any_pool.zeros((4, 6), np.float32)
    odd = any_pool.zeros((3, 1), np.uint8)
    for wrong in (lambda: array.reshape(5, 5), lambda: array[::2], lambda: array.reshape(-1, 7), lambda: odd.view(np.int32)):
        with pytest.raises(KernelArgumentError):
            wrong()
    with pytest.raises(IndexError):
        array[4]
    for host in (np.zeros((4, 5), np.float32), np.zeros((4, 6), np.float64)):
        with pytest.raises(KernelArgumentError, match="cannot copy"):
            array.copy_from_host(host)


def test_a_dropped_block_is_handed_out_again(pool):
    first = pool.empty((100, 100), np.float32)
    pointer = first.pointer
    view = first[3:]
    del first
    assert pool.empty((100, 100), np.float32).pointer != pointer
    del view
    again = pool.empty((90, 101), np.float32)  # another shape of the same size class
    assert again.pointer == pointer
    assert len(pool.memory.buffers) == 2


def test_memory_that_runs_out_is_trimmed_then_named():
    pool = DeviceMemory(HostMemory(limit=8 << 20))
    blocks = [pool.empty(2 << 20, np.uint8) for _ in range(4)]
    del blocks[1:]
    big = pool.empty(6 << 20, np.uint8)  # the three cached ones have to go
    assert pool.bytes_cached == 0 and pool.bytes_in_use == 8 << 20
    with pytest.raises(OutOfMemoryError, match=r"2.0 MiB .* holds 8.0 MiB, and 0.0 of 8.0 MiB are free"):
        pool.empty(2 << 20, np.uint8)
    del big
    pool.empty(2 << 20, np.uint8)


@given(st.integers(0, 1 << 40))
@settings(deadline=None)
def test_a_block_holds_its_array_and_little_more(nbytes):
    size = block_size_for(nbytes)
    assert size >= max(nbytes, 1)
    assert size <= max(2 * nbytes, SMALLEST_BLOCK, LARGE_STEP) and size < nbytes + max(LARGE_STEP, nbytes + SMALLEST_BLOCK)
    assert block_size_for(size) == size


def test_without_a_cache_every_block_goes_straight_back():
    pool = DeviceMemory(HostMemory(), caching=False)
    array = pool.empty(1000, np.float32)
    view = array[3:]
    del array
    assert len(pool.memory.buffers) == 1
    del view
    assert not pool.memory.buffers and (pool.bytes_in_use, pool.bytes_cached) == (0, 0)


class Graph:
    """Stands for a captured graph."""


def test_without_a_cache_a_graph_keeps_its_blocks_too(only_new_objects):
    pool, graph = DeviceMemory(HostMemory(), caching=False), Graph()
    before = pool.empty(1000, np.float32)
    with pool.capture(graph):
        first = pool.empty(1000, np.float32).pointer  # dropped, and used again
        assert pool.empty(1000, np.float32).pointer == first
        del before  # while kernels that read it may be in the graph
        assert len(pool.memory.buffers) == 2
    assert pool.empty(1000, np.float32).pointer != first
    del graph
    gc.collect()
    pool.trim()
    assert not pool.memory.buffers and pool.bytes_in_use == 0


def test_an_allocation_has_a_name(monkeypatch):
    with pytest.raises(InvalidOptionError, match="allocation='slab' is not allowed: it is one of pool, synchronous, stream_ordered"):
        device_memory("slab")
    monkeypatch.setenv("MINLLM_ALLOCATION", "buddy")
    with pytest.raises(InvalidOptionError, match="buddy"):
        device_memory()


def test_blocks_of_a_graph_are_its_own_while_it_lives(only_new_objects, pool):
    cached = pool.empty(1000, np.float32).pointer  # dropped at once
    graph = Graph()
    with pool.capture(graph):
        temporary = pool.empty(1000, np.float32)
        assert temporary.pointer == cached
        del temporary
        result = pool.empty(1000, np.float32)  # within a capture a dropped block is used again
        assert result.pointer == cached
        other = pool.empty(1000, np.float32).pointer
    outside = [pool.empty(1000, np.float32) for _ in range(3)]
    assert not {cached, other} & {array.pointer for array in outside}
    del result
    assert pool.empty(1000, np.float32).pointer not in (cached, other)
    assert pool.trim() and {cached, other} <= set(pool.memory.buffers)
    kept = outside.pop()
    del graph, outside
    gc.collect()
    assert {pool.allocate(4096).pointer, cached} <= {cached, other, *pool.memory.buffers}
    again = [pool.empty(1000, np.float32) for _ in range(4)]
    assert {cached, other} <= {array.pointer for array in again}
    assert kept.pointer not in {array.pointer for array in again}


def test_a_capture_makes_no_zeros(pool):
    with pytest.raises(CaptureError, match="zeros of shape 7"), pool.capture(Graph()):
        pool.zeros(7, np.float32)
    assert pool.bytes_in_use == 0


def test_a_failed_capture_gives_its_blocks_back(pool):
    graph = Graph()
    with pytest.raises(RuntimeError), pool.capture(graph):
        pool.empty(1000, np.float32)
        raise RuntimeError
    assert pool.bytes_in_use == 0 and pool.trim() == 4096 and not pool.memory.buffers


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5000)), max_size=40))
@settings(max_examples=50, deadline=None)
def test_no_two_live_arrays_overlap_and_nothing_is_lost(requests):
    pool = DeviceMemory(HostMemory())
    live = []
    for drop, nbytes in requests:
        if drop and live:
            live.pop(len(live) // 2)
        live.append(pool.empty(nbytes, np.uint8))
        spans = sorted((array.pointer, array.pointer + array.nbytes) for array in live)
        assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
    assert pool.bytes_in_use + pool.bytes_cached == pool.memory.bytes_given
    live.clear()
    assert pool.bytes_in_use == 0
    pool.trim()
    assert not pool.memory.buffers


def test_more_page_locked_memory_than_the_host_has(monkeypatch):
    driver = pytest.importorskip("cuda.bindings.driver")
    monkeypatch.setattr(memory, "current_device", lambda: None)
    monkeypatch.setattr(driver, "cuMemHostAlloc", lambda nbytes, flags: (driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY, 0))
    with pytest.raises(OutOfMemoryError, match=r"3\.0 MiB of host memory were .*pinned=False"):
        memory.pinned_empty((3, 2**18), np.float32)
