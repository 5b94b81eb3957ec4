"""Where a lesson runs, and how long something took there."""

import os
import platform
import time
from collections.abc import Callable
from functools import partial
from statistics import median

from minllm.runtime.device import is_available


def has_gpu() -> bool:
    """Whether kernels can run on a GPU here: a lesson then times them on it, and else simulates small shapes and shows the record."""
    return is_available()


def machine_line() -> str:
    """What this machine is, for the caption of a figure that was measured on it."""
    if has_gpu():
        from minllm.machine import driver

        return f"measured on this machine: {driver.device_name()}"
    return f"measured on this machine, without a GPU: {platform.machine()}, {os.cpu_count()} cores, NumPy"


def kernel_seconds(*launches: Callable[[object], object]) -> float:
    """The median seconds that a launch takes on the GPU, by the GPU's own clock: what the host needs to start it is left out.

    Each of `launches` is called with a stream and starts kernels on it. Where there are several they take turns: with arrays of their own,
    `sets_of_arrays` of them, no cache still holds what a kernel reads. Raises DeviceError without a GPU.
    """
    from minllm.bench.timing import CudaClock, median_seconds
    from minllm.runtime.device import current_device
    from minllm.runtime.stream import stream_handle

    current_device()
    clock = CudaClock()
    stream = stream_handle(clock.stream)
    return median_seconds([partial(launch, stream) for launch in launches], clock)


def sets_of_arrays(nbytes: int) -> int:
    """How many sets of arrays, of so many bytes together, the GPU's last-level cache cannot hold. Raises DeviceError without a GPU."""
    from minllm.bench.timing import input_sets
    from minllm.runtime.device import current_device

    return input_sets(nbytes, current_device().l2_bytes)


def timed(function: Callable[[], object], repeats: int = 5) -> float:
    """The median seconds of `repeats` calls after one to warm up, the host's time included. On a GPU each call is waited for."""
    wait = _wait_for_gpu if has_gpu() else lambda: None
    function()
    wait()
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        wait()
        seconds.append(time.perf_counter() - begin)
    return median(seconds)


def _wait_for_gpu() -> None:
    from cuda.bindings import driver

    from minllm.runtime.device import check_driver, current_device

    current_device()  # `function` may have left this thread without a context
    check_driver(driver.cuCtxSynchronize(), "wait for the GPU")
