"""The host's side of programs for numba.cuda: devices, streams, events, pinned memory, eager signatures."""

import asyncio
import subprocess
import sys

import numpy as np
import pytest
from numba import cuda

from minllm.errors import SimulationError
from minllm.sim.numba_launches import simulated_launches


@pytest.fixture(autouse=True)
def launches_are_simulated():
    with simulated_launches():
        yield


def test_events_measure_the_time_between_two_records():
    start, end = cuda.event(timing=True), cuda.event()
    start.record()
    end.record(stream=cuda.stream())
    end.synchronize()
    assert cuda.event_elapsed_time(start, end) == start.elapsed_time(end) >= 0
    assert end.query()


def test_a_stream_is_done_and_calls_back_at_once():
    called = []
    for stream in (cuda.stream(), cuda.external_stream(7), cuda.default_stream(), cuda.current_context().create_stream()):
        stream.add_callback(lambda *given: called.append(given), "done")
        assert called.pop() == (stream, 0, "done")

    async def wait():
        return await cuda.stream().async_done()

    assert isinstance(asyncio.run(wait()), type(cuda.stream()))


def test_bytes_in_the_place_of_the_stream_are_refused():
    @cuda.jit
    def fill(x):
        x[cuda.threadIdx.x] = 1

    x = np.zeros(4)
    for stream in (0, None, cuda.stream()):
        fill[1, 4, stream, 64](x)
    with pytest.raises(TypeError, match="64 is not a stream: .* the bytes of dynamic shared memory come after the stream"):
        fill[1, 4, 64]


def test_pinned_and_mapped_arrays():
    @cuda.jit
    def double(x):
        x[cuda.threadIdx.x] *= 2

    x, y = np.arange(4.0), np.arange(4.0)
    with cuda.pinned(x, y), cuda.mapped(x, y) as (there, _):
        double[1, 4](there)
    with cuda.mapped(y) as alone:
        double[1, 4](alone)
    assert x.tolist() == y.tolist() == [0, 2, 4, 6]
    assert cuda.mapped_array_like(x).shape == (4,)


def test_a_device_has_the_attributes_of_a_gpu():
    device = cuda.get_current_device()
    assert "H100" in device.name and device.MULTIPROCESSOR_COUNT == 132 and device.MAX_THREADS_PER_BLOCK == 1024
    assert device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN == 227 * 1024 and device.id == 0 and device.COMPUTE_CAPABILITY_MAJOR == 9
    with pytest.raises(AttributeError, match="the simulated device has no attribute WARP; it has .* WARP_SIZE"):
        print(device.WARP)


def test_a_cooperative_grid_is_as_large_as_the_device():
    @cuda.jit("void(float32[:])")
    def fill(x):
        x[cuda.grid(1)] = 1

    fill[1, 32](np.zeros(32, np.float32))
    (code,) = fill.overloads.values()
    assert code.max_cooperative_grid_blocks(33) == code.max_cooperative_grid_blocks((3, 11, 1)) == 132 * 32
    assert code.max_cooperative_grid_blocks(1024) == 132 * 2
    assert code.max_cooperative_grid_blocks(32, 200_000) == 132


def test_the_profiler_does_nothing_and_functions_of_the_driver_say_so():
    cuda.profile_start()
    cuda.profile_stop()
    with cuda.profiling():
        cuda.current_context().synchronize()
    with pytest.raises(SimulationError, match="cuda.open_ipc_array needs a CUDA driver"):
        cuda.open_ipc_array(None, 1, np.float32)


PROGRAM = """
import numpy as np
from numba import cuda
from minllm.sim import simulate

@cuda.jit("float64(float64)", device=True)
def half(x):
    return x / 2

@cuda.jit("void(float64[:], float64)")
def scale(x, factor):
    x[0] = half(x[0]) * factor

x = np.ones(1)
simulate(scale, 1, 1, x, 3)
print(x[0])
for launch in (lambda: simulate(scale, 1, 1, np.ones(1, np.float32), 3), lambda: scale[1, 1](x, 3)):
    try:
        launch()
    except Exception as error:
        print(type(error).__name__)
"""


def test_eager_signatures_need_no_context(tmp_path, forked_python):
    """In a process of its own, in which no launch was simulated when the kernel was defined."""
    file = tmp_path / "eager.py"
    file.write_text(PROGRAM)
    done = subprocess.run([sys.executable, file], capture_output=True, text=True)
    assert done.stdout.split() == ["1.5", "TypeError", "CudaSupportError"], done.stderr
