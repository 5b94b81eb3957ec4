"""Copies between host and device that overlap with kernels, on separate streams.

A GPU's copy engines (DMA) move bytes over PCIe while its SMs compute. This needs separate streams, events that order copies and kernels,
and page-locked (pinned) host memory, which the copy engines access directly; the driver copies pageable memory piece by piece through a
small pinned buffer while the caller waits.

There are two streams: `copying` for copies over PCIe, `gathering` for the kernels that gather and scatter blocks, so that the next chunk is
gathered while this one is copied. These kernels are short and few, and copies wait for them, so their stream has the highest priority:
their blocks start as soon as any block of the forward pass has ended.

Device arrays must be kept alive until a transfer that uses them is complete: the pool reuses a block without references in the order of the
compute stream, which does not wait for these streams.
"""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from minllm.errors import KernelArgumentError
from minllm.kernels.kv.copy_blocks import copy_blocks_of_layers
from minllm.runtime.array import DeviceArray, address_of
from minllm.runtime.array_protocol import Array
from minllm.runtime.device import check_driver, core_device, current_device
from minllm.runtime.memory import DeviceMemory, pinned_empty


class CudaTransfers:
    """Transfers on streams beside `compute_stream`. pinned: page-locked host memory; False for pageable memory."""

    def __init__(self, memory: DeviceMemory, compute_stream: Any, pinned: bool = True):
        from cuda.bindings import driver
        from cuda.core import StreamOptions

        self.memory, self.compute_stream, self.pinned = memory, compute_stream, pinned
        device = core_device(current_device().index)
        _, highest = check_driver(driver.cuCtxGetStreamPriorityRange(), "find the priorities of streams")
        self.gathering = device.create_stream(options=StreamOptions(nonblocking=True, priority=highest))
        self.copying = device.create_stream(options=StreamOptions(nonblocking=True))

    def host(self, nbytes: int) -> np.ndarray:
        """Host memory for transfers, uint8."""
        return pinned_empty((nbytes,), np.uint8) if self.pinned else np.empty(nbytes, np.uint8)

    def device(self, shape: tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        """A device array."""
        return self.memory.empty(shape, dtype)

    def after_compute(self) -> None:
        """Work on `gathering` from now on waits for the kernels launched so far."""
        self.gathering.wait(self.compute_stream)

    def before_compute(self, event: Any) -> None:
        """Kernels launched from now on wait for an event of one of these streams."""
        self.compute_stream.wait(event)

    def upload(self, host: np.ndarray, array: DeviceArray, stream: Any) -> None:
        """Start to copy host memory to a device array of the same size, on one of the streams."""
        from cuda.bindings import driver

        nbytes = same_size(host, array)
        result = driver.cuMemcpyHtoDAsync(array.pointer, address_of(host), nbytes, int(stream.handle))
        check_driver(result, f"start to copy {nbytes} bytes to the GPU")

    def download(self, array: DeviceArray, host: np.ndarray) -> None:
        """Start to copy a device array to host memory of the same size."""
        from cuda.bindings import driver

        nbytes = same_size(host, array)
        result = driver.cuMemcpyDtoHAsync(address_of(host), array.pointer, nbytes, int(self.copying.handle))
        check_driver(result, f"start to copy {nbytes} bytes from the GPU")

    def copy_blocks(self, source: DeviceArray, to: DeviceArray, pairs: DeviceArray) -> None:
        """Start to copy blocks of all layers, [layers, num_blocks, ...]; pairs: (source, destination), int32 [P, 2]."""
        copy_blocks_of_layers(source, pairs, int(self.gathering.handle), to)


class HostStream:
    """A stream, and its event, on a CPU: all work is complete when a call returns."""

    is_done = True

    def record(self) -> "HostStream":
        """A completed event."""
        return self

    def wait(self, event: Any) -> None:
        """Nothing to wait for."""

    def sync(self) -> None:
        """Nothing to wait for."""


class HostTransfers:
    """The same interface for arrays in host memory: nothing is asynchronous."""

    gathering = copying = HostStream()

    def host(self, nbytes: int) -> np.ndarray:
        """Host memory."""
        return np.empty(nbytes, np.uint8)

    def device(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """An array."""
        return np.empty(shape, dtype)

    def after_compute(self) -> None:
        """Nothing to wait for."""

    def before_compute(self, event: Any) -> None:
        """Nothing to wait for."""

    def upload(self, host: np.ndarray, array: np.ndarray, stream: Any) -> None:
        """Copy."""
        same_size(host, array)
        array.reshape(-1).view(np.uint8)[:] = host.reshape(-1).view(np.uint8)

    def download(self, array: np.ndarray, host: np.ndarray) -> None:
        """Copy."""
        self.upload(array, host, self.copying)

    def copy_blocks(self, source: np.ndarray, to: np.ndarray, pairs: np.ndarray) -> None:
        """Copy blocks of all layers; pairs: (source, destination)."""
        to[:, pairs[:, 1]] = source[:, pairs[:, 0]]


def same_size(host: Array, array: Array) -> int:
    """The size of both, in bytes. Raises KernelArgumentError if the sizes differ."""
    if host.nbytes != array.nbytes:
        raise KernelArgumentError(f"{host.nbytes} bytes of host memory and {array.nbytes} of a device array cannot be copied")
    return array.nbytes
