"""The arrays of a simulated kernel: every access is checked.

A GPU computes an address and reads whatever is there; NumPy counts negative indices from the end. Both hide mistakes, so a simulated
kernel gets its global, shared and local arrays as `CheckedArray`s, which raise SimulationError instead.
"""

import functools
import math
import sys

import numpy as np

from minllm.errors import SimulationError
from minllm.sim.array_bytes import bytes_between, lies_in_a_row
from minllm.sim.place import describe, kernel_frame
from minllm.sim.scalars import dtype_of
from minllm.sim.thread import current_thread


def fail(what):
    """Raise SimulationError with the place in the kernel: file, line, block and thread."""
    thread = current_thread()
    where = f", block {tuple(thread.block.index)}, thread {tuple(thread.index)}" if thread else ""
    raise SimulationError(f"{what} ({describe(kernel_frame(sys._getframe(1)))}{where})")


class CheckedArray:
    """An array in global, shared or local memory, indexed as Numba's arrays are, with both bounds checked.

    It is C-contiguous, or a view with gaps (one layer of a cache that interleaves layers): no access may touch a gap.
    space: "global", "shared", "local" or "constant". base: offset in bytes within the argument or declaration that this array is part of;
    in shared memory, the address. name: the argument or variable, "" if unknown.
    """

    __slots__ = (
        *("data", "shape", "ndim", "size", "dtype", "itemsize", "integer", "signed"),
        *("space", "base", "name", "address", "flat", "quick"),
    )

    def __init__(self, data, space="global", base=0, name=""):
        self.data, self.shape, self.ndim, self.size, self.dtype = data, data.shape, data.ndim, data.size, data.dtype
        self.space, self.base, self.name = space, base, name
        self.integer, self.signed = data.dtype.kind in "iu", data.dtype.kind == "i"
        self.itemsize = data.dtype.itemsize
        self.quick = data.size if data.ndim == 1 else 0  # an int below this is a valid index by itself: the common case
        self.address = base if space == "shared" else None  # address of the first byte; None until it is first needed
        self.flat = None if data.flags.c_contiguous else bytes_between(data)  # None until it is first needed

    def part(self, data, offset):
        """A slice or view of this array, `offset` bytes in."""
        return CheckedArray(data, self.space, self.base + offset, self.name)

    def __str__(self):
        return f"{self.space} array{' ' if self.name else ''}{self.name}"

    def __len__(self):
        return self.shape[0]

    def __iter__(self):
        return (self[index] for index in range(self.shape[0]))

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        fail(f"{name} of the {self} is not known to the simulator")

    def __array_function__(self, function, types, arguments, options):
        fail(f"numpy.{function.__name__} of the {self} is not known to the simulator")

    def __array_ufunc__(self, function, method, *operands, **options):
        fail(f"numpy.{function.__name__} of a whole array is not known to the simulator: take its elements")

    @property
    def strides(self):
        """Bytes from one element to the next along each axis."""
        return self.data.strides

    @property
    def flat_bytes(self):
        """A uint8 view from the first element to the last, gaps included."""
        if self.flat is None:
            self.flat = bytes_between(self.data)
        return self.flat

    @property
    def span(self):
        """Bytes from the first element to the last, gaps included."""
        return self.data.nbytes if self.data.flags.c_contiguous else self.flat_bytes.size

    @property
    def nbytes(self):
        """Bytes of all elements."""
        return self.data.nbytes

    def reshape(self, *shape):
        """The same memory in another shape."""
        self.check_contiguous("reshaped")
        return self.part(self.data.reshape(*shape), 0)

    def check(self, index):
        """`index` as a tuple of ints; SimulationError if it is out of bounds or has a wrong type."""
        indices = index if isinstance(index, tuple) else (index,)
        if len(indices) > self.ndim:
            fail(f"{len(indices)} indices into the {self.ndim}-dimensional {self}")
        for position, extent in zip(indices, self.shape):
            if isinstance(position, slice):
                continue
            if isinstance(position, (float, np.floating)):
                fail(f"index {position!r} into the {self} is not an integer")
            if not 0 <= position < extent:
                fail(f"index [{', '.join(map(str, indices))}] is out of bounds for the {self} of shape {self.shape}")
        return indices

    def __getitem__(self, index):
        if type(index) is int and 0 <= index < self.quick:
            return self.data.item(index) if self.integer else self.data[index]
        # NumPy refuses indices that are too large; negative ones, which it would count from the end, are checked here.
        try:
            if (min(index) if type(index) is tuple else index) < 0:
                self.check(index)
            found = self.data[index]
        except (IndexError, TypeError):
            found = self.data[self.check(index)]
        if isinstance(found, np.ndarray):
            offset = found.__array_interface__["data"][0] - self.data.__array_interface__["data"][0]
            return self.part(found, offset)
        return int(found) if self.integer else found

    def __setitem__(self, index, value):
        if self.integer and type(value) is not int:
            value = int(value)
        try:
            if type(index) is int and 0 <= index < self.quick:
                self.data[index] = value
                return
            if (min(index) if type(index) is tuple else index) < 0:
                self.check(index)
            if (indices := len(index) if type(index) is tuple else 1) != self.ndim:
                fail(f"a kernel stores one element at a time: {indices} indices into the {self.ndim}-dimensional {self}")
            self.data[index] = value
        except (IndexError, TypeError):
            indices = self.check(index)
            if any(isinstance(position, slice) for position in indices):
                fail("a kernel stores one element at a time")
            self.data[indices] = value
        except OverflowError:  # integers wrap on a GPU; NumPy refuses them
            bits = 8 * self.itemsize
            value &= (1 << bits) - 1
            self.data[index] = value - (1 << bits) if self.signed and value >> bits - 1 else value
        except ValueError:
            if self.data.flags.writeable:
                raise
            fail(f"a write to the {self}, which is read-only")

    def atomic(self, index, change):
        """Replace the element by `change(element)`; returns the old one."""
        old = self[index]
        self[index] = change(old)
        return old

    def window(self, index, count, alignment=None, kind="read", thread=None):
        """`count` bytes from flat element `index` on, as a uint8 view; checks bounds, and alignment to `alignment` or `count` bytes.

        kind: "read" or "write", what the caller does at once. thread: the accessing thread, by default the running one.
        """
        start, flat = int(index) * self.itemsize, self.flat_bytes
        if start < 0 or start + count > flat.size:
            fail(f"{count} bytes at element {int(index)} are out of bounds for the {self} of {self.size} elements")
        if self.address is None:
            self.address = self.data.__array_interface__["data"][0]
        if (self.address + start) % (alignment or count):
            fail(f"a {count}-byte access at element {int(index)} of the {self} is not aligned to {alignment or count} bytes")
        if flat.size != self.data.nbytes and not lies_in_a_row(self.data, start, count):
            fail(f"{count} bytes at element {int(index)}, counted from the first, are in a gap of the {self} with strides {self.strides}")
        return flat[start : start + count]

    def check_contiguous(self, use):
        """Fail for an array with gaps."""
        if not self.data.flags.c_contiguous:
            fail(f"the {self} with strides {self.strides} has gaps: it cannot be {use}")

    def view(self, dtype):
        """The same memory under another dtype (one-dimensional)."""
        self.check_contiguous("viewed")
        return self.part(self.data.reshape(-1).view(dtype_of(dtype)), 0)


def poisoned(shape, dtype):
    """A new array of bytes 0xFF, NaN in every floating-point format: a read of unwritten memory then shows."""
    shape = shape if isinstance(shape, tuple) else (shape,)
    count = math.prod(int(extent) for extent in shape)
    return np.full(count * dtype.itemsize, 0xFF, np.uint8).view(dtype).reshape([int(extent) for extent in shape])


poison = functools.lru_cache(256)(poisoned)  # to be copied: the local arrays of all threads have few shapes
