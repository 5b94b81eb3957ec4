"""The GPU: whether there is one, its properties, and its primary context.

All CUDA libraries of a process share this context. A dry run (dry_run.py) assumes a GPU, and then no function here calls the driver.
"""

import contextlib
import ctypes
import functools
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass

from minllm.errors import DeviceError, OutOfMemoryError
from minllm.machine.driver import LIBRARY
from minllm.machine.occupancy import MULTIPROCESSORS

AMPERE, ADA, HOPPER, CONSUMER_BLACKWELL = (8, 0), (8, 9), (9, 0), (12, 0)  # compute capabilities
SHARED_BYTES_PER_BLOCK = 227 * 1024  # the most shared memory of a block on Hopper
SIMULATED_CAPABILITY, SIMULATED_SMS = HOPPER, 132  # an H200's, assumed without a GPU


@functools.cache
def is_available() -> bool:
    """Whether this machine has a driver, a GPU, and the packages cuda.bindings and cuda.core. Never raises."""
    try:
        if importlib.util.find_spec("cuda.bindings") is None or importlib.util.find_spec("cuda.core") is None:
            return False
        driver = ctypes.CDLL(LIBRARY)
        count = ctypes.c_int(0)
        return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    except (OSError, ImportError, AttributeError):
        return False


@dataclass(frozen=True)
class Device:
    """One GPU; memory sizes in bytes."""

    index: int
    name: str
    compute_capability: tuple[int, int]
    sm_count: int
    total_memory: int
    l2_bytes: int

    def make_current(self) -> None:
        """Make the device's primary context current in this thread; required once per thread, before other CUDA calls."""
        make_context(core_device(self.index), self.index)

    def memory_info(self) -> tuple[int, int]:
        """(free, total) memory of the device in bytes."""
        from cuda.bindings import driver

        self.make_current()
        return check_driver(driver.cuMemGetInfo(), "tell the free memory")


assumed: Device | None = None  # the GPU of a dry run
own_index = 0  # index of the GPU that this process uses


@contextlib.contextmanager
def assume(device: Device) -> Iterator[None]:
    """Within this context `device` is the current device, whether this machine has it or not."""
    global assumed
    before, assumed = assumed, device
    try:
        yield
    finally:
        assumed = before


def is_assumed() -> bool:
    """Whether this is a dry run, on a GPU that this machine may not have."""
    return assumed is not None


def use_device(index: int) -> None:
    """Make this process use GPU `index`; must be called before any other use of a GPU."""
    global own_index
    own_index = index


def device_names() -> list[str]:
    """The names of this machine's GPUs; creates no context."""
    if not is_available():
        return []
    from cuda.bindings import driver

    count = check_driver(driver.cuDeviceGetCount(), "count the GPUs")
    devices = [check_driver(driver.cuDeviceGet(index), "find a GPU") for index in range(count)]
    return [check_driver(driver.cuDeviceGetName(128, one), "name a GPU").split(b"\0")[0].decode() for one in devices]


def current_device(index: int | None = None) -> Device:
    """The Device for GPU `index`, by default this process's own, with its context current in this thread. Raises DeviceError."""
    if assumed is not None:
        return assumed
    device = describe_device(index)
    device.make_current()
    return device


def describe_device(index: int | None = None) -> Device:
    """The Device for GPU `index`, by default this process's own."""
    return assumed or described_by_driver(own_index if index is None else index)


@functools.cache
def described_by_driver(index: int) -> Device:
    """The Device for GPU `index` of this machine."""
    from cuda.bindings import driver

    core = core_device(index)
    make_context(core, index)
    properties = core.properties
    capability = core.compute_capability
    _, total = check_driver(driver.cuMemGetInfo(), "tell the free memory")
    return Device(
        index=index,
        name=core.name,
        compute_capability=(int(capability[0]), int(capability[1])),
        sm_count=int(properties.multiprocessor_count),
        total_memory=int(total),
        l2_bytes=int(properties.l2_cache_size),
    )


def capability_here() -> tuple[int, int]:
    """The compute capability of this machine's GPU, or of an H200 if there is none."""
    return describe_device().compute_capability if assumed or is_available() else SIMULATED_CAPABILITY


def sms_here() -> int:
    """The number of SMs (streaming multiprocessors) of this machine's GPU, or of an H200 if there is none."""
    return describe_device().sm_count if assumed or is_available() else SIMULATED_SMS


def block_shared_bytes_here() -> int:
    """The largest shared memory of a block, in bytes, on this machine's GPU: 99 KB if its kind is unknown, an H200's without a GPU."""
    return MULTIPROCESSORS.get(capability_here(), MULTIPROCESSORS[8, 9]).block_shared_bytes


@functools.cache
def core_device(index: int):
    """cuda.core's Device for GPU `index`. Raises DeviceError with what is missing."""
    if not is_available():
        raise DeviceError("no usable NVIDIA GPU was found; use device='cpu', or run `minllm doctor` to see what is missing")
    from cuda.core import Device as CoreDevice

    try:
        return CoreDevice(index)
    except Exception as error:
        raise DeviceError(f"GPU {index} cannot be used: {error}; `minllm doctor` shows the GPUs of this machine") from error


def make_context(core, index: int) -> None:
    """Make the context of GPU `index` (cuda.core's Device) current in this thread; the first call allocates it.

    Raises OutOfMemoryError if other processes have left no memory for it, else DeviceError.
    """
    try:
        core.set_current()
    except Exception as error:
        if "OUT_OF_MEMORY" in str(error):
            raise OutOfMemoryError(
                f"GPU {index} has no memory left for a context, which takes some 500 MB: `nvidia-smi` lists the processes that hold it. "
                "End one, or choose another GPU with CUDA_VISIBLE_DEVICES"
            ) from error
        raise DeviceError(f"no context can be made on GPU {index}: {error}; `minllm doctor` shows the GPUs of this machine") from error


def check_driver(result, what: str):
    """The value in the result of a cuda.bindings call. Raises DeviceError "the driver could not {what}" if it failed."""
    status, *values = result
    if status:
        raise DeviceError(f"the driver could not {what}: {status.name}")
    return values[0] if len(values) == 1 else tuple(values)
