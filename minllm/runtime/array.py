"""An array in device memory: a pointer, a shape, a dtype, and a reference that keeps the memory alive."""

import math
from typing import Any

import numpy as np

from minllm.errors import KernelArgumentError


class DeviceArray:
    """A C-contiguous array on the GPU, with as much of NumPy's interface as a forward pass needs.

    `pointer` is the address of the first element. `block` owns the memory and is shared by all views; when the last of them is
    dropped, the memory goes back to its pool. `kernel_parameter` is where the launcher keeps what it derives from the others.
    """

    __slots__ = ("pointer", "shape", "dtype", "block", "memory", "kernel_parameter")

    def __init__(self, pointer: int, shape: tuple[int, ...], dtype: Any, block: Any, memory: Any):
        self.pointer = pointer
        self.shape = tuple(map(int, shape))
        self.dtype = np.dtype(dtype)
        self.block = block
        self.memory = memory  # copies and fills: see memory.CudaMemory
        self.kernel_parameter = None

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, pointer={self.pointer:#x})"

    def reshape(self, *shape: Any) -> "DeviceArray":
        """A view with another shape of the same size; one extent may be -1."""
        extents = list(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else list(shape)
        if extents.count(-1) == 1:
            known = -math.prod(extents)
            extents[extents.index(-1)] = self.size // known if known else 0
        if math.prod(extents) != self.size or min(extents, default=1) < 0:
            raise KernelArgumentError(f"an array of shape {self.shape} cannot be reshaped to {shape}")
        return DeviceArray(self.pointer, tuple(extents), self.dtype, self.block, self.memory)

    def __getitem__(self, index: Any) -> "DeviceArray":
        """A view of a row (an int) or of neighbouring rows (a slice with step 1) along the first axis."""
        row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        if isinstance(index, slice):
            start, stop, step = index.indices(self.shape[0])
            if step != 1:
                raise KernelArgumentError(f"a device array is sliced with step 1 along its first axis, not with {index}")
            shape = (max(0, stop - start), *self.shape[1:])
        else:
            start = int(index) + (self.shape[0] if index < 0 else 0)
            if not 0 <= start < self.shape[0]:
                raise IndexError(f"index {index} of an axis of {self.shape[0]}")
            shape = self.shape[1:]
        return DeviceArray(self.pointer + start * row_bytes, shape, self.dtype, self.block, self.memory)

    def view(self, dtype: Any) -> "DeviceArray":
        """The same bytes as elements of another dtype; the last axis grows or shrinks accordingly."""
        dtype = np.dtype(dtype)
        last = self.shape[-1] * self.dtype.itemsize
        if last % dtype.itemsize:
            raise KernelArgumentError(f"rows of {last} bytes cannot be seen as {dtype}")
        return DeviceArray(self.pointer, (*self.shape[:-1], last // dtype.itemsize), dtype, self.block, self.memory)

    def copy_to_host(self) -> np.ndarray:
        """A NumPy array of the same contents; waits for the kernels that were launched before."""
        host = np.empty(self.shape, self.dtype)
        if self.nbytes:
            self.memory.copy_to_host(address_of(host), self.pointer, self.nbytes)
        return host

    def copy_from_host(self, host: np.ndarray) -> None:
        """Overwrite with a NumPy array of the same shape and dtype, in order with the kernels launched before and after."""
        if tuple(host.shape) != self.shape or host.dtype != self.dtype:
            raise KernelArgumentError(f"cannot copy a {host.dtype} {host.shape} host array to a {self.dtype} {self.shape} device array")
        host = np.ascontiguousarray(host)
        if self.nbytes:
            self.memory.copy_to_device(self.pointer, address_of(host), self.nbytes)

    def fill_bytes(self, value: int) -> None:
        """Set every byte to `value` (0 to 255): 0 makes zeros of any dtype."""
        if self.nbytes:
            self.memory.fill(self.pointer, value, self.nbytes)


def address_of(host: np.ndarray) -> int:
    """The address of a NumPy array's first element."""
    return host.__array_interface__["data"][0]
