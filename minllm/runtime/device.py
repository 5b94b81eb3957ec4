"""The GPU: whether there is one, its properties, and its primary context.

All CUDA libraries of a process share this context.
"""

import ctypes
import functools
import importlib.util
from dataclasses import dataclass

from minllm.errors import DeviceError

HOPPER = (9, 0)  # compute capability
SIMULATED_CAPABILITY, SIMULATED_SMS = HOPPER, 132  # without a GPU: an H200


@functools.cache
def is_available() -> bool:
    """Whether there are a driver, a device and NVIDIA's bindings. Never raises."""
    try:
        if importlib.util.find_spec("cuda.bindings") is None or importlib.util.find_spec("cuda.core") is None:
            return False
        driver = ctypes.CDLL("libcuda.so.1")
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
        core_device(self.index).set_current()

    def memory_info(self) -> tuple[int, int]:
        """(free, total) memory of the device in bytes."""
        from cuda.bindings import driver

        self.make_current()
        return check_driver(driver.cuMemGetInfo(), "tell the free memory")


def current_device(index: int = 0) -> Device:
    """The GPU, with its context current in this thread. Raises DeviceError."""
    device = describe_device(index)
    device.make_current()
    return device


@functools.cache
def describe_device(index: int) -> Device:
    """The Device for GPU `index`."""
    from cuda.bindings import driver

    core = core_device(index)
    core.set_current()
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


@functools.cache
def capability_here() -> tuple[int, int]:
    """The compute capability of this machine's GPU; without one, an H200's."""
    return current_device().compute_capability if is_available() else SIMULATED_CAPABILITY


@functools.cache
def sms_here() -> int:
    """The number of SMs (streaming multiprocessors) of this machine's GPU; without one, an H200's."""
    return current_device().sm_count if is_available() else SIMULATED_SMS


@functools.cache
def core_device(index: int):
    """cuda.core's object for GPU `index`; DeviceError, which says what is missing, if there is none."""
    if not is_available():
        raise DeviceError("no usable NVIDIA GPU was found; use device='cpu', or run `minllm doctor` to see what is missing")
    from cuda.core import Device as CoreDevice

    try:
        return CoreDevice(index)
    except Exception as error:
        raise DeviceError(f"GPU {index} cannot be used: {error}; `minllm doctor` shows the GPUs of this machine") from error


def check_driver(result, what: str):
    """The value of a cuda.bindings call; DeviceError if it could not do `what`."""
    status, *values = result
    if status:
        raise DeviceError(f"the driver could not {what}: {status.name}")
    return values[0] if len(values) == 1 else tuple(values)
