"""DeviceArray, an array in device memory."""

import functools
import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from minllm.errors import KernelArgumentError


class DeviceArray:
    """An array on the GPU, with as much of NumPy's interface as a forward pass needs.

    `pointer` is the address of the first element. `block` owns the memory and is shared by all views; when the last of them is dropped, the
    memory returns to its pool. `kernel_parameter` is the launcher's cache of the array's packed form (parameters.py). Arrays are
    C-contiguous unless `strides` (bytes from one element to the next along each axis) say otherwise: one layer of a cache that interleaves
    the layers of each token is a view with gaps. Such a view cannot be copied or filled as a whole.
    """

    __slots__ = ("pointer", "shape", "dtype", "block", "memory", "kernel_parameter", "_strides")

    def __init__(
        self, pointer: int, shape: tuple[int, ...], dtype: DTypeLike, block: Any, memory: Any, strides: tuple[int, ...] | None = None
    ):
        self.pointer = pointer
        self.shape = tuple(map(int, shape))
        self.dtype = np.dtype(dtype)
        self.block = block
        self.memory = memory  # copies and fills: see cuda_memory.CudaMemory
        self.kernel_parameter = None
        is_contiguous = strides is None or tuple(strides) == contiguous_strides(self.shape, self.dtype.itemsize)
        self._strides = None if is_contiguous else tuple(map(int, strides))

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next along each axis."""
        return contiguous_strides(self.shape, self.dtype.itemsize) if self._strides is None else self._strides

    @property
    def is_contiguous(self) -> bool:
        """Whether the array is C-contiguous."""
        return self._strides is None

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
        strides = None if self._strides is None else reshaped_strides(self.shape, self._strides, tuple(extents))
        return DeviceArray(self.pointer, tuple(extents), self.dtype, self.block, self.memory, strides)

    def __getitem__(self, index: Any) -> "DeviceArray":
        """A view of a row (an int) or of consecutive rows (a slice with step 1) along the first axis."""
        row_bytes, strides = self.strides[0], self._strides
        if isinstance(index, slice):
            start, stop, step = index.indices(self.shape[0])
            if step != 1:
                raise KernelArgumentError(f"a device array is sliced with step 1 along its first axis, not with {index}")
            shape = (max(0, stop - start), *self.shape[1:])
        else:
            start = int(index) + (self.shape[0] if index < 0 else 0)
            if not 0 <= start < self.shape[0]:
                raise IndexError(f"index {index} of an axis of {self.shape[0]}")
            shape, strides = self.shape[1:], strides and strides[1:]
        return DeviceArray(self.pointer + start * row_bytes, shape, self.dtype, self.block, self.memory, strides)

    def view(self, dtype: DTypeLike) -> "DeviceArray":
        """A view of the same bytes as another dtype; the last axis grows or shrinks accordingly."""
        dtype = np.dtype(dtype)
        self.check_contiguous("seen as another dtype")
        last = self.shape[-1] * self.dtype.itemsize
        if last % dtype.itemsize:
            raise KernelArgumentError(f"rows of {last} bytes cannot be seen as {dtype}")
        return DeviceArray(self.pointer, (*self.shape[:-1], last // dtype.itemsize), dtype, self.block, self.memory)

    def without_owner(self) -> "DeviceArray":
        """A view without a reference to the block: the pool may reuse the memory while the view exists."""
        return DeviceArray(self.pointer, self.shape, self.dtype, None, self.memory, self._strides)

    def copy_to_host(self) -> np.ndarray:
        """The contents as a NumPy array; waits for all kernels launched earlier."""
        self.check_contiguous("copied to the host")
        host = np.empty(self.shape, self.dtype)
        if self.nbytes:
            self.memory.copy_to_host(address_of(host), self.pointer, self.nbytes)
        return host

    def copy_from_host(self, host: np.ndarray) -> None:
        """Overwrite with a NumPy array of the same shape and dtype, in stream order."""
        if tuple(host.shape) != self.shape or host.dtype != self.dtype:
            raise KernelArgumentError(f"cannot copy a {host.dtype} {host.shape} host array to a {self.dtype} {self.shape} device array")
        self.check_contiguous("copied to")
        host = np.ascontiguousarray(host)
        if self.nbytes:
            self.memory.copy_to_device(self.pointer, address_of(host), self.nbytes)

    def fill_bytes(self, value: int) -> None:
        """Set every byte to `value` (0 to 255): 0 makes zeros of any dtype."""
        self.check_contiguous("filled")
        if self.nbytes:
            self.memory.fill(self.pointer, value, self.nbytes)

    def check_contiguous(self, use: str) -> None:
        """Raise KernelArgumentError if this is a view with gaps. use: what was attempted, for the message."""
        if self._strides is not None:
            raise KernelArgumentError(f"an array of shape {self.shape} and strides {self._strides} has gaps and cannot be {use} as a whole")


@functools.lru_cache(4096)
def contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """The strides of a C-contiguous array, in bytes."""
    strides = [itemsize] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * shape[axis]
    return tuple(strides)


def reshaped_strides(shape: tuple[int, ...], strides: tuple[int, ...], new_shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides in bytes of a reshaped view. Raises KernelArgumentError if an axis of the new shape spans a gap."""
    runs: list[list[int]] = []  # [elements, stride] of each run of adjacent axes without a gap, last axes first
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if runs and stride == runs[-1][0] * runs[-1][1]:
            runs[-1][0] *= extent
        elif extent != 1:
            runs.append([extent, stride])
    found: list[int] = []
    left, stride = 1, strides[-1]  # elements of the current run that no axis covers yet, and their stride
    for extent in reversed(new_shape):
        if left == 1 and extent != 1:
            left, stride = runs.pop(0)
        if extent == 0 or left % extent:
            raise KernelArgumentError(f"an array of shape {shape} and strides {strides} cannot be reshaped to {new_shape}: it has gaps")
        found.insert(0, stride)
        left, stride = left // extent, stride * extent
    return tuple(found)


def address_of(host: np.ndarray) -> int:
    """The address of a NumPy array's first element."""
    return host.__array_interface__["data"][0]
