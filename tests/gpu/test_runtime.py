"""Device, memory, stream and graph on a real GPU."""

import gc

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

from minllm import ptx
from minllm.errors import CaptureError, OutOfMemoryError
from minllm.runtime.device import HOPPER, current_device
from minllm.runtime.kernel import kernel
from minllm.runtime.memory import ALLOCATIONS, device_memory, empty, pinned_empty, to_device


@pytest.fixture(autouse=True, params=ALLOCATIONS)
def allocation(request, monkeypatch):
    """Every test of this file runs in every mode of allocation."""
    monkeypatch.setenv("MINLLM_ALLOCATION", request.param)


@kernel
def add_kernel(x, addend):
    """x float32 [n]."""
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < x.shape[0]:
        x[i] += addend


@kernel
def clustered_kernel(x):
    """x float32 [n]: each block adds its rank in the cluster to its numbers."""
    x[cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x] += ptx.cluster_ctarank()


@pytest.mark.parametrize("cluster", [1, 2, 4, 8])
def test_clusters_at_a_time_are_as_many_as_the_sms_hold(cluster):
    device, shared_bytes = current_device(), 100 * 1024  # of which an SM has two
    if device.compute_capability != HOPPER:
        pytest.skip("clusters, and 200 KB of shared memory per SM: Hopper")
    x = to_device(np.zeros(cluster * 64, np.float32))
    launch = clustered_kernel[cluster, 64, None, shared_bytes, (cluster, 1, 1)]
    found = launch.clusters_at_a_time(x)
    assert 1 <= found <= device.sm_count * 2 // cluster
    assert clustered_kernel[cluster, 64, None, 2 * shared_bytes, (cluster, 1, 1)].clusters_at_a_time(x) <= device.sm_count // cluster
    assert launch.clusters_at_a_time(x) == found
    launch(x)
    np.testing.assert_array_equal(x.copy_to_host(), np.repeat(np.arange(cluster), 64))


def test_the_device_describes_itself():
    device = current_device()
    free, total = device.memory_info()
    assert device.name and device.compute_capability >= (7, 5) and device.sm_count > 0 and device.l2_bytes > 0
    assert 0 < free <= total == device.total_memory


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.uint8], ids=lambda d: np.dtype(d).name)
def test_contents_survive_the_way_there_and_back(dtype):
    host = (np.arange(3 * 5 * 7) % 200).reshape(3, 5, 7).astype(dtype)
    array = to_device(host)
    np.testing.assert_array_equal(array.copy_to_host(), host)
    np.testing.assert_array_equal(array[1:].reshape(-1).copy_to_host(), host[1:].reshape(-1))
    array.fill_bytes(0)
    assert not array.copy_to_host().astype(bool).any()


def test_copies_wait_for_kernels_on_the_stream_and_kernels_for_copies():
    from minllm.runtime.stream import compute_stream

    stream, n = compute_stream(), 1 << 22
    x = to_device(np.zeros(n, np.float32))
    for turn in range(20):
        for _ in range(10):
            add_kernel[n // 256, 256, stream](x, 1.0)
        assert (x.copy_to_host() == 10).all(), turn
        x.copy_from_host(np.zeros(n, np.float32))


def test_more_memory_than_there_is():
    _, total = current_device().memory_info()
    with pytest.raises(OutOfMemoryError, match="gpu_memory_utilization"):
        empty((2 * total,), np.uint8)


def test_graph_replays_and_reads_back_through_pinned_memory():
    from minllm.runtime.graph import CapturedGraph
    from minllm.runtime.stream import compute_stream, copy_later, fill_words_later, read_later

    stream, memory = compute_stream(), device_memory()
    x = to_device(np.zeros(1000, np.float32))

    def step():
        add_kernel[4, 256, stream](x, 1.0)
        temporary = empty((1000,), np.float32)
        add_kernel[4, 256, stream](temporary, 1.0)
        return x

    step()
    graph = CapturedGraph(step, stream, memory)
    assert (x.copy_to_host() == 1).all(), "capturing must not run the kernels"
    hosts, events = [pinned_empty((1000,), np.float32) for _ in range(5)], []
    for host in hosts:
        graph.launch()
        events.append(read_later(graph.result, host, stream))
    for turn, (host, event) in enumerate(zip(hosts, events, strict=True)):
        event.sync()
        assert (host == turn + 2).all()
    fill_words_later(x[3:5], 0, stream)
    out = empty((6,), np.float32)
    copy_later(x[:6], out, stream)
    fill_words_later(x, 0, stream)
    np.testing.assert_array_equal(out.copy_to_host(), [6, 6, 6, 0, 0, 6])
    del graph
    gc.collect()


def test_a_failed_capture_leaves_the_stream_usable():
    from minllm.runtime.graph import CapturedGraph
    from minllm.runtime.stream import compute_stream

    stream = compute_stream()
    x = to_device(np.zeros(256, np.float32))
    add_kernel[1, 256, stream](x, 1.0)

    def fails():
        add_kernel[1, 256, stream](x, 1.0)
        raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        CapturedGraph(fails, stream, device_memory())
    add_kernel[1, 256, stream](x, 1.0)
    assert (x.copy_to_host() == 2).all()


def test_a_kernel_is_loaded_before_it_is_captured():
    from minllm.runtime.graph import CapturedGraph
    from minllm.runtime.stream import compute_stream

    @kernel
    def fresh_kernel(x):
        x[cuda.grid(1)] += 1

    stream, x = compute_stream(), to_device(np.zeros(256, np.float32))

    def adds():
        fresh_kernel[1, 256, stream](x)

    with pytest.raises(CaptureError, match="fresh_kernel is not loaded"):
        CapturedGraph(adds, stream, device_memory())
    adds()
    CapturedGraph(adds, stream, device_memory()).launch()
    assert (x.copy_to_host() == 2).all()


def test_memory_is_used_again_in_the_stream_s_order():
    """Many short-lived arrays, each filled and read by kernels that are launched after its predecessor was dropped."""
    from minllm.runtime.stream import compute_stream

    stream, total = compute_stream(), to_device(np.zeros(1 << 20, np.float32))
    for turn in range(50):
        temporary = empty((1 << 20,), np.float32)
        temporary.fill_bytes(0)
        for _ in range(3):
            add_kernel[(1 << 20) // 256, 256, stream](temporary, 1.0)
        if turn % 10 == 9:
            assert (temporary.copy_to_host() == 3).all()
        add_kernel[(1 << 20) // 256, 256, stream](total, 1.0)
    assert (total.copy_to_host() == 50).all()
    device_memory().trim()
