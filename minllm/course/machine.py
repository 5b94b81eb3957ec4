"""The machine on which a lesson runs, and timing on it."""

import os
import platform
import time
from collections.abc import Callable
from functools import partial
from statistics import median

from minllm.runtime.device import is_available


def has_gpu() -> bool:
    """Whether this machine can run kernels on a GPU; if not, lessons simulate small shapes and show recorded measurements."""
    return is_available()


def machine_line() -> str:
    """A description of this machine, for captions of figures measured on it."""
    if has_gpu():
        from minllm.machine import driver

        return f"measured on this machine: {driver.device_name()}"
    return f"measured on this machine, without a GPU: {platform.machine()}, {os.cpu_count()} cores, NumPy"


def kernel_seconds(*launches: Callable[[object], object]) -> float:
    """The median GPU time of a launch in seconds, from events, without the host's launch time.

    Each of `launches` is called with a stream and starts kernels on it. Several launches alternate: with `sets_of_arrays` launches on
    different arrays, kernels read from HBM instead of a cache. Raises DeviceError without a GPU.
    """
    from minllm.bench.timing import CudaClock, median_seconds
    from minllm.runtime.device import current_device
    from minllm.runtime.stream import stream_handle

    current_device()
    clock = CudaClock()
    stream = stream_handle(clock.stream)
    return median_seconds([partial(launch, stream) for launch in launches], clock)


def sets_of_arrays(nbytes: int) -> int:
    """The number of sets of arrays, `nbytes` each, that exceed the GPU's L2 cache.

    Raises DeviceError without a GPU.
    """
    from minllm.bench.timing import input_sets
    from minllm.runtime.device import current_device

    return input_sets(nbytes, current_device().l2_bytes)


def timed(function: Callable[[], object], repeats: int = 5) -> float:
    """The median seconds of `repeats` calls after a warm-up, including host time and, with a GPU, until it has finished."""
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
