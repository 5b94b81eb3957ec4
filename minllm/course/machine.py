"""The machine on which a lesson runs, and timing on it."""

import os
import platform
import time
from collections.abc import Callable, Iterable
from functools import partial
from statistics import median

import numpy as np

from minllm.errors import MinLLMError
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


def product_rates(variants: Iterable[str], m: int, n: int, k: int) -> dict[str, str]:
    """{variant: its rate in TFLOP/s on this GPU, or why it does not run there}, for products of bfloat16, x [m, k] and weight [n, k].

    Raises DeviceError without a GPU.
    """
    from minllm.kernels.matmul import VARIANTS
    from minllm.ops.cuda_ops import CudaOps

    count, place, rng = sets_of_arrays(2 * (m * k + n * k + m * n)), CudaOps("bfloat16"), np.random.default_rng(0)
    sets = [[place.array(rng.standard_normal((rows, k)).astype(place.dtype)) for rows in (m, n)] for _ in range(count)]
    out = place.empty((m, n), place.dtype)

    def rate(variant: str) -> str:
        multiply = VARIANTS[variant]
        try:
            seconds = kernel_seconds(*(partial(lambda x, weight, stream: multiply(x, weight, out, stream=stream), *one) for one in sets))
        except MinLLMError as error:
            return f"not on this GPU: {error}"
        return f"{2 * m * n * k / seconds / 1e12:8.2f} TFLOP/s"

    return {variant: rate(variant) for variant in variants}


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
