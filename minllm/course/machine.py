"""Where a lesson runs, and how long something took there."""

import os
import platform
import time
from collections.abc import Callable
from statistics import median

from minllm.runtime.device import is_available


def has_gpu() -> bool:
    """Whether kernels can run on a GPU here: a lesson then times them on it, and else simulates small shapes and shows the record."""
    return is_available()


def machine_line() -> str:
    """What this machine is, for the caption of a figure that was measured on it."""
    if has_gpu():
        from minllm import driver

        return f"measured on this machine: {driver.device_name()}"
    return f"measured on this machine, without a GPU: {platform.machine()}, {os.cpu_count()} cores, NumPy"


def timed(function: Callable[[], object], repeats: int = 5) -> float:
    """The median seconds of `repeats` calls after one to warm up. On a GPU each call is waited for, in whichever thread this runs."""
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
