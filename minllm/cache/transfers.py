"""Copies between host and device that run beside the kernels, on a stream of their own.

The copy engines of a GPU move bytes over PCIe while its multiprocessors compute. For that three things are needed: other streams, events
that say which of their copies wait for which kernels and the other way round, and page-locked ("pinned") host memory: the engine reads and
writes it by itself, while pageable memory is copied through a small pinned buffer of the driver's, piece by piece, and the caller waits.

There are two such streams, `copying` for what crosses and `gathering` for the kernels that collect and distribute it, so that the next
piece is collected while this one crosses. These kernels are short and few, and a copy engine waits for them: their stream has the highest
priority, so that their blocks are the next to start wherever a block of the forward pass has ended.

Device arrays that a transfer uses must live until it is over: a block of the pool may be handed out again as soon as nobody refers to it,
in the order of the compute stream, which these streams do not follow.
"""

from typing import Any

import numpy as np

from minllm.errors import KernelArgumentError
from minllm.kernels.kv.copy_blocks import copy_blocks_of_layers
from minllm.runtime.array import DeviceArray, address_of
from minllm.runtime.device import check_driver, core_device, current_device
from minllm.runtime.memory import DeviceMemory, pinned_empty


class CudaTransfers:
    """Transfers on streams beside `compute_stream` (all cuda.core Streams). pinned False uses pageable host memory, to compare."""

    def __init__(self, memory: DeviceMemory, compute_stream: Any, pinned: bool = True):
        from cuda.bindings import driver
        from cuda.core import StreamOptions

        self.memory, self.compute_stream, self.pinned = memory, compute_stream, pinned
        device = core_device(current_device().index)
        _, highest = check_driver(driver.cuCtxGetStreamPriorityRange(), "find the priorities of streams")
        self.gathering = device.create_stream(options=StreamOptions(nonblocking=True, priority=highest))
        self.copying = device.create_stream(options=StreamOptions(nonblocking=True))

    def host(self, nbytes: int) -> np.ndarray:
        """Host memory that transfers use, uint8."""
        return pinned_empty((nbytes,), np.uint8) if self.pinned else np.empty(nbytes, np.uint8)

    def device(self, shape: tuple[int, ...], dtype: Any) -> DeviceArray:
        """A device array."""
        return self.memory.empty(shape, dtype)

    def after_compute(self) -> None:
        """What is gathered from now on waits for the kernels launched so far."""
        self.gathering.wait(self.compute_stream)

    def before_compute(self, event: Any) -> None:
        """Kernels launched from now on wait for an event of one of these streams."""
        self.compute_stream.wait(event)

    def upload(self, host: np.ndarray, array: DeviceArray, stream: Any) -> None:
        """Start to copy host memory to a device array of as many bytes, on one of the streams."""
        from cuda.bindings import driver

        nbytes = same_size(host, array)
        result = driver.cuMemcpyHtoDAsync(array.pointer, address_of(host), nbytes, int(stream.handle))
        check_driver(result, f"start to copy {nbytes} bytes to the GPU")

    def download(self, array: DeviceArray, host: np.ndarray) -> None:
        """Start to copy a device array to host memory of as many bytes."""
        from cuda.bindings import driver

        nbytes = same_size(host, array)
        result = driver.cuMemcpyDtoHAsync(address_of(host), array.pointer, nbytes, int(self.copying.handle))
        check_driver(result, f"start to copy {nbytes} bytes from the GPU")

    def copy_blocks(self, source: DeviceArray, to: DeviceArray, pairs: DeviceArray) -> None:
        """Start to copy blocks of all layers, [layers, num_blocks, ...], to other ones: pairs (source, destination), int32 [P, 2]."""
        copy_blocks_of_layers(source, pairs, int(self.gathering.handle), to)


class HostStream:
    """A stream, and an event of it, where everything has happened when a call returns."""

    is_done = True

    def record(self) -> "HostStream":
        """An event that has happened."""
        return self

    def wait(self, event: Any) -> None:
        """Nothing is under way."""

    def sync(self) -> None:
        """It has happened."""


class HostTransfers:
    """The same where everything is in the host's memory: nothing runs beside anything."""

    gathering = copying = HostStream()

    def host(self, nbytes: int) -> np.ndarray:
        """Host memory."""
        return np.empty(nbytes, np.uint8)

    def device(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array."""
        return np.empty(shape, dtype)

    def after_compute(self) -> None:
        """Nothing is under way."""

    def before_compute(self, event: Any) -> None:
        """Nothing is under way."""

    def upload(self, host: np.ndarray, array: np.ndarray, stream: Any) -> None:
        """Copy."""
        same_size(host, array)
        array.reshape(-1).view(np.uint8)[:] = host.reshape(-1).view(np.uint8)

    def download(self, array: np.ndarray, host: np.ndarray) -> None:
        """Copy."""
        self.upload(array, host, self.copying)

    def copy_blocks(self, source: np.ndarray, to: np.ndarray, pairs: np.ndarray) -> None:
        """Copy blocks of all layers to other ones."""
        to[:, pairs[:, 1]] = source[:, pairs[:, 0]]


def same_size(host: Any, array: Any) -> int:
    """The bytes of both. Raises KernelArgumentError where they differ."""
    if host.nbytes != array.nbytes:
        raise KernelArgumentError(f"{host.nbytes} bytes of host memory and {array.nbytes} of a device array cannot be copied")
    return array.nbytes
