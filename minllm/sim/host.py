"""The host's side of a simulated `numba.cuda`: devices, streams and events.

Numba's own simulator has stand-ins for most of it; these are the rest. A launch ends before the next line runs, so a stream never waits, a
callback is called at once, and events measure the time that the simulation takes. A detector follows which works are ordered.
"""

import asyncio
import contextlib
import time

import numba.cuda
from numba.cuda.cudadrv.driver import driver
from numba.cuda.simulator import api
from numba.cuda.simulator.cudadrv import devicearray, devices

from minllm.errors import SimulationError
from minllm.sim.detectors import is_detecting
from minllm.sim.detectors.streams import order

# What an NVIDIA H100 SXM answers to Device.<attribute>. Source: deviceQuery of the CUDA samples.
ATTRIBUTES = {
    **dict(COMPUTE_CAPABILITY_MAJOR=9, COMPUTE_CAPABILITY_MINOR=0, MULTIPROCESSOR_COUNT=132, WARP_SIZE=32, MAX_THREADS_PER_BLOCK=1024),
    **dict(MAX_BLOCK_DIM_X=1024, MAX_BLOCK_DIM_Y=1024, MAX_BLOCK_DIM_Z=64),
    **dict(MAX_GRID_DIM_X=2**31 - 1, MAX_GRID_DIM_Y=65_535, MAX_GRID_DIM_Z=65_535),
    **dict(MAX_THREADS_PER_MULTI_PROCESSOR=2048, MAX_BLOCKS_PER_MULTIPROCESSOR=32),
    **dict(MAX_REGISTERS_PER_BLOCK=65_536, MAX_REGISTERS_PER_MULTIPROCESSOR=65_536),
    **dict(MAX_SHARED_MEMORY_PER_BLOCK=49_152, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=232_448),
    **dict(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR=233_472, RESERVED_SHARED_MEMORY_PER_BLOCK=1024),
    **dict(TOTAL_CONSTANT_MEMORY=65_536, L2_CACHE_SIZE=50 * 2**20, GLOBAL_MEMORY_BUS_WIDTH=5120),
    **dict(CLOCK_RATE=1_980_000, MEMORY_CLOCK_RATE=2_619_000, SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO=2),
    **dict(COMPUTE_MODE=0, CONCURRENT_KERNELS=1, COOPERATIVE_LAUNCH=1, ASYNC_ENGINE_COUNT=3, ECC_ENABLED=1, INTEGRATED=0, TCC_DRIVER=0),
    **dict(CAN_MAP_HOST_MEMORY=1, UNIFIED_ADDRESSING=1, MANAGED_MEMORY=1, CONCURRENT_MANAGED_ACCESS=1, MEMORY_POOLS_SUPPORTED=1),
    **dict(PCI_DOMAIN_ID=0, PCI_BUS_ID=0, PCI_DEVICE_ID=0, KERNEL_EXEC_TIMEOUT=0, STREAM_PRIORITIES_SUPPORTED=1, MULTI_GPU_BOARD=0),
}


def attribute(device, name):
    """An attribute of the simulated device. Raises AttributeError for those of ATTRIBUTES that are unknown."""
    if name in ATTRIBUTES:
        return ATTRIBUTES[name]
    raise AttributeError(f"the simulated device has no attribute {name}; it has {', '.join(ATTRIBUTES)}")


class Stream(api.stream):
    """A stream, on which everything is done already; a detector knows what the program may rely on (detectors/streams.py)."""

    handle = 0

    def __init__(self):
        if is_detecting():
            order().keep()

    def synchronize(self):
        """Note that the host has waited for the stream."""
        order().synchronize(self)

    @contextlib.contextmanager
    def auto_synchronize(self):
        """`with stream.auto_synchronize()`."""
        yield self
        self.synchronize()

    def __int__(self):
        return self.handle

    def add_callback(self, callback, arg=None):
        """Call callback(stream, status, arg)."""
        with order().callback(self):
            callback(self, 0, arg)

    def async_done(self):
        """A future that is done."""
        self.synchronize()
        future = asyncio.get_running_loop().create_future()
        future.set_result(self)
        return future


class DefaultStream(Stream):
    """The default stream."""

    def __init__(self):
        pass

    def __bool__(self):
        return False


def check_stream(stream):
    """Raise TypeError, as numba-cuda does, for a launch on something that is not a stream, such as a number of bytes in its place."""
    if stream and not isinstance(stream, api.stream):
        place = "kernel[grid, block, stream, sharedmem]"
        raise TypeError(f"{stream!r} is not a stream: in {place}, the bytes of dynamic shared memory come after the stream")


class Event:
    """An event, which notes the host's time when it is made and when it is recorded. known: the works that come before it."""

    def __init__(self, timing=True):
        self.seconds, self.known = time.perf_counter(), {}

    def record(self, stream=0):
        """Note the time, and what is on the stream."""
        self.seconds, self.known = time.perf_counter(), dict(order().arrive(stream).known)

    def wait(self, stream=0):
        """Let the works that follow on a stream come after those before the event."""
        order().line(stream).join(self.known)

    def synchronize(self):
        """Note that the host has waited for the works before the event."""
        order().learn(self.known)

    def query(self):
        """Whether the work before the event has ended."""
        self.synchronize()
        return True

    def elapsed_time(self, end):
        """The milliseconds until another event."""
        end.synchronize()
        return (end.seconds - self.seconds) * 1e3


@contextlib.contextmanager
def pinned(*arrays):
    """`with cuda.pinned(a, b)`."""
    with order().pin(*arrays):
        yield


@contextlib.contextmanager
def mapped(*arrays, stream=0):
    """`with cuda.mapped(a, b) as (a, b)`: device arrays over the same memory."""
    made = [devicearray.FakeCUDAArray(array, stream) for array in arrays]
    yield made[0] if len(made) == 1 else made


def do_nothing(*arguments):
    """A function of the driver without effect here."""


def without_driver(name):
    """A stand-in for a function of numba.cuda that needs a driver: raises SimulationError when it is called."""

    def refuse(*arguments, **named):
        raise SimulationError(f"cuda.{name} needs a CUDA driver, which a simulated program does not have: leave it out there")

    return refuse


REPLACED = [
    (driver, "get_device", lambda number=0: api.get_current_device()),
    (numba.cuda, "stream", Stream),
    (numba.cuda, "default_stream", DefaultStream),
    (numba.cuda, "legacy_default_stream", DefaultStream),
    (numba.cuda, "synchronize", lambda: order().synchronize()),
    (numba.cuda, "per_thread_default_stream", Stream),
    (numba.cuda, "external_stream", lambda pointer: Stream()),
    (numba.cuda, "event", Event),
    (numba.cuda, "event_elapsed_time", Event.elapsed_time),
    (numba.cuda, "pinned", pinned),
    (numba.cuda, "mapped", mapped),
    (numba.cuda, "mapped_array_like", lambda array, stream=0, **named: devicearray.device_array_like(array, stream)),
    (numba.cuda, "profile_start", do_nothing),
    (numba.cuda, "profile_stop", do_nothing),
    (numba.cuda, "profiling", contextlib.nullcontext),
    (numba.cuda, "is_fp8_supported", lambda: False),  # numba.cuda.fp8 has no emulation
    *((numba.cuda, name, without_driver(name)) for name in ("open_ipc_array", "set_memory_manager")),
    (devices.FakeCUDADevice, "id", 0),
    (devices.FakeCUDADevice, "name", "NVIDIA H100 80GB HBM3 (simulated)"),
    (devices.FakeCUDADevice, "__getattr__", attribute),
    (devices.FakeCUDADevice, "supports_bfloat16", True),
    (devices.FakeCUDADevice, "supports_float16", True),
    (devices.FakeCUDADevice, "supports_fp8", False),
    (devices.FakeCUDAContext, "synchronize", lambda context: order().synchronize()),
    (devices.FakeCUDAContext, "create_stream", lambda context: Stream()),
    (devices.FakeCUDAContext, "create_event", lambda context, timing=True: Event(timing)),
]
