"""Arrays as a simulated kernel sees them: every access is checked, and nothing wraps around silently.

A GPU computes an address and reads whatever is there; NumPy counts negative indices from the end. Both hide mistakes, so global,
shared and local arrays are handed to the kernel as `CheckedArray`s, which raise SimulationError instead.
"""

import math
import sys

import numpy as np

from minllm.errors import SimulationError


def fail(what):
    """Raise SimulationError with the place in the kernel: file, line, block and thread."""
    from minllm.sim.machine import current_thread

    frame = sys._getframe(1)
    while frame and ("/minllm/sim/" in frame.f_code.co_filename or "/minllm/ptx/" in frame.f_code.co_filename):
        frame = frame.f_back
    place = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}" if frame else "unknown place"
    thread = current_thread()
    where = f", block {thread.block.index}, thread {thread.index}" if thread else ""
    raise SimulationError(f"{what} ({place}{where})")


class CheckedArray:
    """A C-contiguous array in global, shared or local memory, indexed as Numba's arrays are, with both bounds checked.

    base: offset of the first element in the block's shared memory (shared arrays only).
    """

    __slots__ = ("data", "shape", "ndim", "size", "dtype", "space", "base", "flat_bytes", "integer", "signed")

    def __init__(self, data, space="global", base=0):
        if not data.flags.c_contiguous:
            raise SimulationError(f"a kernel takes C-contiguous arrays; given one of shape {data.shape} and strides {data.strides}")
        self.data, self.shape, self.ndim, self.size, self.dtype = data, data.shape, data.ndim, data.size, data.dtype
        self.space, self.base = space, base
        self.integer, self.signed = data.dtype.kind in "iu", data.dtype.kind == "i"
        self.flat_bytes = data.reshape(-1).view(np.uint8) if data.size else np.empty(0, np.uint8)

    def __len__(self):
        return self.shape[0]

    @property
    def itemsize(self):
        """Bytes of an element."""
        return self.dtype.itemsize

    def check(self, index):
        """`index` as a tuple of ints, or SimulationError if it is out of bounds or of a wrong kind."""
        indices = index if isinstance(index, tuple) else (index,)
        if len(indices) > self.ndim:
            fail(f"{len(indices)} indices into a {self.ndim}-dimensional {self.space} array")
        for position, extent in zip(indices, self.shape):
            if isinstance(position, slice):
                continue
            if isinstance(position, (float, np.floating)):
                fail(f"index {position!r} into a {self.space} array is not an integer")
            if not 0 <= position < extent:
                fail(f"index {tuple(map(str, indices))} is out of bounds for a {self.space} array of shape {self.shape}")
        return indices

    def __getitem__(self, index):
        # NumPy itself refuses what is too large; only negative indices, which it would count from the end, are looked at here.
        try:
            if (min(index) if type(index) is tuple else index) < 0:
                self.check(index)
            found = self.data[index]
        except (IndexError, TypeError):
            found = self.data[self.check(index)]
        if isinstance(found, np.ndarray):
            offset = found.__array_interface__["data"][0] - self.data.__array_interface__["data"][0]
            return CheckedArray(found, self.space, self.base + offset)
        return int(found) if self.integer else found

    def __setitem__(self, index, value):
        if self.integer:
            # Integers wrap on the GPU, where NumPy would refuse them.
            bits = 8 * self.dtype.itemsize
            value = int(value) & (1 << bits) - 1
            value -= (1 << bits) if self.signed and value >> bits - 1 else 0
        try:
            if (min(index) if type(index) is tuple else index) < 0:
                self.check(index)
            if (len(index) if type(index) is tuple else 1) != self.ndim:
                fail("a kernel stores one element at a time")
            self.data[index] = value
        except (IndexError, TypeError):
            self.data[self.check(index)] = value

    def window(self, index, count, alignment=None):
        """`count` bytes (a uint8 view) from the element at flat `index` on, in bounds, and aligned to `alignment` or `count` bytes."""
        start = int(index) * self.dtype.itemsize
        if start < 0 or start + count > self.flat_bytes.size:
            fail(f"{count} bytes at element {int(index)} are out of bounds for a {self.space} array of {self.size} elements")
        address = self.base if self.space == "shared" else self.data.__array_interface__["data"][0]
        if (address + start) % (alignment or count):
            fail(f"a {count}-byte access at element {int(index)} of a {self.space} array is not aligned to {alignment or count} bytes")
        return self.flat_bytes[start : start + count]

    def view(self, dtype):
        """The same memory under another dtype (one-dimensional)."""
        return CheckedArray(self.data.reshape(-1).view(np.dtype(getattr(dtype, "dtype", dtype))), self.space, self.base)


def poisoned(shape, dtype):
    """A new array of bytes 0xFF: NaN in every floating-point format, so that a read of memory nobody wrote shows."""
    shape = shape if isinstance(shape, tuple) else (shape,)
    count = math.prod(int(extent) for extent in shape)
    return np.full(count * dtype.itemsize, 0xFF, np.uint8).view(dtype).reshape([int(extent) for extent in shape])
