"""The compute stream, and asynchronous copies and fills in stream order.

A stream is a queue of work for the GPU. minllm uses one, so work executes in the order of its launches. It is a blocking stream: it and the
legacy default stream wait for each other, so the synchronous copies of `memory.py` need no extra synchronisation. It is not the default
stream itself, because that cannot be captured into a graph.
"""

import functools

import numpy as np

from minllm.errors import KernelArgumentError
from minllm.runtime.array import DeviceArray, address_of
from minllm.runtime.device import check_driver, core_device, current_device


@functools.cache
def compute_stream():
    """The stream of all kernels (a cuda.core Stream), created on the first call."""
    from cuda.core import StreamOptions

    device = current_device()
    return core_device(device.index).create_stream(options=StreamOptions(nonblocking=False))


def stream_handle(stream) -> int:
    """The driver's handle of a cuda.core Stream, for launches."""
    return int(stream.handle)


def read_later(array: DeviceArray, pinned: np.ndarray, stream):
    """Start to copy a device array to a page-locked host array of the same shape and dtype; returns an event.

    The host array is valid once `event.sync()` has returned; until then it must not be used.
    """
    from cuda.bindings import driver

    if tuple(pinned.shape) != array.shape or pinned.dtype != array.dtype:
        raise KernelArgumentError(f"cannot read a {array.dtype} {array.shape} array into a {pinned.dtype} {pinned.shape} host array")
    if array.nbytes:
        result = driver.cuMemcpyDtoHAsync(address_of(pinned), array.pointer, array.nbytes, stream_handle(stream))
        check_driver(result, f"start to copy {array.nbytes} bytes from the GPU")
    return stream.record()


def write_later(array: DeviceArray, pinned: np.ndarray, stream):
    """Start to overwrite a device array with a page-locked host array of the same shape and dtype; returns an event.

    Work launched earlier sees the old contents, work launched later the new. The host array must not change until `event.sync()` has
    returned.
    """
    from cuda.bindings import driver

    if tuple(pinned.shape) != array.shape or pinned.dtype != array.dtype:
        raise KernelArgumentError(f"cannot write a {pinned.dtype} {pinned.shape} host array to a {array.dtype} {array.shape} array")
    if array.nbytes:
        result = driver.cuMemcpyHtoDAsync(array.pointer, address_of(pinned), array.nbytes, stream_handle(stream))
        check_driver(result, f"start to copy {array.nbytes} bytes to the GPU")
    return stream.record()


def copy_later(array: DeviceArray, out: DeviceArray, stream) -> None:
    """Start to copy a device array to another of the same size, in stream order."""
    from cuda.bindings import driver

    result = driver.cuMemcpyDtoDAsync(out.pointer, array.pointer, array.nbytes, stream_handle(stream))
    check_driver(result, f"start to copy {array.nbytes} bytes within the GPU")


def fill_words_later(array: DeviceArray, word: int, stream) -> None:
    """Set every 32-bit word of a device array, asynchronously in stream order."""
    from cuda.bindings import driver

    result = driver.cuMemsetD32Async(array.pointer, word & 0xFFFFFFFF, array.nbytes // 4, stream_handle(stream))
    check_driver(result, f"start to fill {array.nbytes} bytes")
