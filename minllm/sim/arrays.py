"""The arrays of a simulated kernel, which check every access.

A GPU computes an address and reads whatever is there, which hides mistakes. So a simulated kernel gets its global, shared and local arrays
as `CheckedArray`s, which raise SimulationError for every access beyond an end. A negative index counts from the end once, as Numba compiles
it; a detector reports those that the kernel computes (detectors/negative_indices.py).
"""

import functools
import math
import sys

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from minllm.errors import SimulationError
from minllm.sim.array_bytes import bytes_between, lies_in_a_row
from minllm.sim.bfloat16 import bfloat16
from minllm.sim.place import describe, kernel_frame
from minllm.sim.polling import count_poll
from minllm.sim.records import Record
from minllm.sim.scalars import WHOLE, dtype_of, integer_type
from minllm.sim.thread import current_thread


def fail(what):
    """Raise SimulationError with the message `what` and the file, line, block and thread at which it occurred."""
    raise failure(what)


def failure(what, waiting=None):
    """The SimulationError that `fail` raises. waiting: the thread at fault, if it is not the one that runs."""
    thread = waiting or current_thread()
    frame = (waiting and waiting.frame) or sys._getframe(1)
    where = f", {thread.block}, thread {tuple(thread.index)}" if thread else ""
    return SimulationError(f"{what} ({describe(kernel_frame(frame))}{where})")


REDUCTIONS = {"sum", "prod", "min", "max", "mean", "var", "std", "any", "all", "argmin", "argmax"}
NUMPY_REDUCTIONS = {*REDUCTIONS, "amin", "amax", "count_nonzero", "nanmax", "nanmin", "nanmean", "nanprod", "nanstd", "nansum", "nanvar"}


class CheckedArray(NDArrayOperatorsMixin):
    """An array in global, shared or local memory, indexed like Numba's arrays, with both bounds checked.

    It is C-contiguous or a view with any strides, such as one layer of a cache that interleaves layers; no access may touch a gap.
    space: "global", "shared", "local" or "constant". base: offset in bytes within the argument or declaration that this array is part of;
    in shared memory, the address. name: the argument or variable, "" if unknown.
    """

    __slots__ = (
        *("data", "shape", "ndim", "size", "dtype", "itemsize", "integer", "signed"),
        *("space", "base", "name", "address", "between", "gaps", "quick", "fields"),
    )

    __hash__ = object.__hash__

    def __init__(self, data, space="global", base=0, name=""):
        dtype = data.dtype
        self.data, self.shape, self.ndim, self.size, self.dtype = data, data.shape, data.ndim, data.size, dtype
        self.space, self.base, self.name = space, base, name
        self.integer, self.signed, self.itemsize = dtype.kind in "iu", dtype.kind == "i", dtype.itemsize
        # A non-negative int below this is a valid index without further checks; this is the common case.
        self.quick = self.size if self.ndim == 1 and dtype.names is None else 0
        self.fields = {}  # the arrays that `field` has made
        self.address = base if space == "shared" else None  # address of the first byte; None until it is first needed
        self.between = None if data.flags.c_contiguous else bytes_between(data)  # None until it is first needed
        self.gaps = self.between is not None and self.between.size != data.nbytes

    def part(self, data, offset):
        """A slice or view of this array as a CheckedArray; data: its elements, offset: bytes from the start of this array."""
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
        if name in (self.dtype.names or ()):
            return self.field(name)
        if name in REDUCTIONS:
            return self.numpy_method(name)
        if name in ("real", "imag") and self.dtype.kind == "c":
            found = getattr(self.data, name)
            return self.part(found, self.offset(found))
        fail(f"{name} of the {self} is not known to the simulator")

    def __array_function__(self, function, types, arguments, options):
        if function.__name__ in NUMPY_REDUCTIONS and len(arguments) == 1 and not options:
            return function(self.values())
        fail(f"numpy.{function.__name__} of the {self} is not known to the simulator")

    def values(self):
        """A copy of all elements as a NumPy array, each read by the running thread."""
        made = np.empty(self.shape, self.dtype)
        for index in np.ndindex(self.shape):
            made[index] = self[index if self.ndim != 1 else index[0]]
        return made

    def __array_ufunc__(self, function, method, *operands, **options):
        outs = options.pop("out", ())
        if method != "__call__" or options:
            fail(f"numpy.{function.__name__}.{method} is not known to the simulator")
        with np.errstate(all="ignore"):
            result = function(*(one.values() if isinstance(one, CheckedArray) else one for one in operands))
        for out in outs:
            out.fill(result)
        return outs[0] if outs else CheckedArray(result, "local") if isinstance(result, np.ndarray) else result

    @property
    def T(self):
        """The transposed array."""
        return self.transpose()

    def transpose(self, *axes):
        """The same memory with its axes in another order, reversed by default."""
        return self.part(self.data.transpose(*axes), 0)

    def copy(self):
        """A local copy, which the running thread reads element by element."""
        return CheckedArray(self.values(), "local", name=self.name)

    def ravel(self, order="C"):
        """The same memory with one axis."""
        return self.reshape(self.size)

    @property
    def flat(self):
        """All elements along one axis."""
        self.check_contiguous("indexed by .flat")
        return self.ravel()

    @property
    def strides(self):
        """Bytes from one element to the next along each axis."""
        return self.data.strides

    @property
    def flat_bytes(self):
        """A uint8 view from the first element to the last, gaps included."""
        if self.between is None:
            self.between = bytes_between(self.data)
        return self.between

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

    def bytes_of_elements(self):
        """A uint8 view [..., itemsize]."""
        return self.data[..., None].view(np.uint8)

    def numpy_method(self, name):
        """A reduction, such as sum or max: over all elements, each read by the running thread."""

        def reduce():
            found = getattr(self.values(), name)()
            return int(found) if isinstance(found, np.integer) else found

        return reduce

    def check(self, index):
        """`index` as a tuple without negative integers. Raises SimulationError if it is out of bounds or has a wrong type."""
        indices = index if isinstance(index, tuple) else (index,)
        if Ellipsis in indices:
            place = indices.index(Ellipsis)
            indices = (*indices[:place], *[slice(None)] * (self.ndim - len(indices) + 1), *indices[place + 1 :])
        if len(indices) > self.ndim:
            fail(f"{len(indices)} indices into the {self.ndim}-dimensional {self}")
        positions = []
        for position, extent in zip(indices, self.shape):
            if not isinstance(position, slice):
                if not hasattr(position, "__index__"):
                    fail(f"index {position!r} into the {self} is not an integer")
                if not -extent <= position < extent:
                    fail(f"index [{', '.join(map(str, indices))}] is out of bounds for the {self} of shape {self.shape}")
                position = position + extent if position < 0 else position
            positions.append(position)
        return tuple(positions)

    def from_start(self, index):
        """An index with its negative integers counted from the start. Raises SimulationError if it is out of bounds."""
        positions = self.check(index)
        return positions if type(index) is tuple or index is Ellipsis else positions[0]

    def __getitem__(self, index):
        if type(index) is int and 0 <= index < self.quick:
            return self.data.item(index) if self.integer else self.data[index]
        if self.dtype.names is not None:
            return self.record(index)
        # NumPy refuses indices that are out of bounds; those of other types are checked below.
        try:
            found = self.data[index]
        except (IndexError, TypeError, ValueError, OverflowError):
            found = self.data[self.check(index)]
        if isinstance(found, np.ndarray):
            return self.part(found, self.offset(found))
        return int(found) if self.integer else found

    def record(self, index):
        """Indexing of a structured array: a Record, a field of all records, or a slice."""
        if isinstance(index, str):
            return self.field(index)
        if type(index) is int and self.ndim == 1 and 0 <= index < self.size:
            return Record(self, index)
        indices = self.check(index)
        if self.selects_part(index):
            found = self.data[indices]
            return self.part(found, self.offset(found))
        return Record(self, index)

    def field(self, name):
        """A field of all records, as an array."""
        if name not in self.fields:
            if name not in self.dtype.names:
                fail(f"the {self} has no field {name!r}: {', '.join(self.dtype.names)}")
            found = self.data[name]
            self.fields[name] = self.part(found, self.offset(found))
        return self.fields[name]

    def offset(self, part):
        """Bytes from this array's first element to that of a part of it."""
        return part.__array_interface__["data"][0] - self.data.__array_interface__["data"][0]

    def selects_part(self, index):
        """Whether an index selects more than one element."""
        if type(index) is not tuple:
            return self.ndim != 1 or type(index) is slice or index is Ellipsis or type(index) is str
        if len(index) != self.ndim:
            return True
        for position in index:
            if type(position) is slice or position is Ellipsis:
                return True
        return False

    def fill(self, value):
        """Store to every element: a number, or the elements of an array or tuple, broadcast to this shape."""
        shape = getattr(value, "shape", (len(value),) if isinstance(value, (tuple, list)) else ())
        try:
            np.broadcast_to(np.empty(shape, bool), self.shape)
        except ValueError:
            fail(f"values of shape {shape} cannot be stored to a part of the {self} of shape {self.shape}")
        for index in np.ndindex(self.shape):
            source = tuple(0 if extent == 1 else i for extent, i in zip(shape, index[self.ndim - len(shape) :]))
            self[index] = value[source if len(source) != 1 else source[0]] if shape else value

    def __setitem__(self, index, value):
        if self.integer and type(value) is not int:
            value = self.as_integer(index, value)
        try:
            if type(index) is int and 0 <= index < self.quick:
                self.data[index] = value
                return
            if self.selects_part(index):
                self[index].fill(value)
                return
            self.data[index] = value
        except (IndexError, TypeError, ValueError):
            indices = self.check(index)
            if self.selects_part(index):
                self[index].fill(value)
                return
            if isinstance(value, Record) and value.simulated_array.dtype == self.dtype:  # all bytes, those between the fields too
                self.bytes_of_elements()[indices] = value.simulated_array.bytes_of_elements()[value.simulated_index]
                return
            if not self.data.flags.writeable:
                fail(f"a write to the {self}, which is read-only")
            try:
                self.data[indices] = value
            except (TypeError, ValueError):
                fail(f"{kind_of(value)} cannot be stored in an element of the {self} of {self.dtype}")
        except OverflowError:  # on a GPU the integer wraps; NumPy raises
            self.check(index)
            bits, exact = 8 * self.itemsize, value
            value &= (1 << bits) - 1
            self.data[index] = value - (1 << bits) if self.signed and value >> bits - 1 else value
            self.wraps(index, exact)

    def wraps(self, index, exact):
        """Called after a store of the integer `exact`, which did not fit and has wrapped; a MonitoredArray reports it."""

    def as_integer(self, index, value):
        """A value, not yet an int, that is stored in an integer array. Raises SimulationError if it is not a number."""
        if isinstance(value, WHOLE):
            return int(value)
        if isinstance(value, (float, np.floating, bfloat16)):
            return integer_type(self.dtype)(value)
        if not self.selects_part(index):
            fail(f"{kind_of(value)} cannot be stored in an element of the {self} of {self.dtype}")
        return value

    def converted(self, value):
        """A number converted to the type of the elements."""
        if self.integer:
            return integer_type(self.dtype)(value)
        return value if isinstance(value, self.dtype.type) else self.dtype.type(value)

    def atomic(self, index, change):
        """Replace the element by `change(element)`; returns the old one."""
        old = self[index]
        new = change(old)
        self[index] = new
        count_poll(current_thread(), new != old)
        return old

    def window(self, index, count, alignment=None, kind="read", thread=None):
        """`count` bytes from flat element `index` on, as a uint8 view; checks bounds, and alignment to `alignment` or `count` bytes.

        kind: what the caller does with the bytes at once, "read", "write" or "atomic". thread: the accessing thread, by default the running
        one.
        """
        start, flat = int(index) * self.itemsize, self.between if self.between is not None else self.flat_bytes
        if start < 0 or start + count > flat.size:
            fail(f"{count} bytes at element {int(index)} are out of bounds for the {self} of {self.size} elements")
        if self.address is None:
            self.address = self.data.__array_interface__["data"][0]
        if (self.address + start) % (alignment or count):
            fail(f"a {count}-byte access at element {int(index)} of the {self} is not aligned to {alignment or count} bytes")
        if self.gaps and not lies_in_a_row(self.data, start, count):
            fail(f"{count} bytes at element {int(index)}, counted from the first, are in a gap of the {self} with strides {self.strides}")
        return flat[start : start + count]

    def check_contiguous(self, use):
        """Raise SimulationError if this array has gaps; use: what was attempted, for the message."""
        if not self.data.flags.c_contiguous:
            fail(f"the {self} with strides {self.strides} has gaps: it cannot be {use}")

    def view(self, dtype):
        """The same memory under another dtype (one-dimensional)."""
        self.check_contiguous("viewed")
        return self.part(self.data.reshape(-1).view(dtype_of(dtype)), 0)


def kind_of(value):
    """What a value is, in words."""
    if isinstance(value, CheckedArray):
        return f"an array of shape {value.shape}"
    kinds = {Record: "a record", complex: "a complex number", type(None): "None", np.complex128: "a complex number"}
    return kinds.get(type(value), f"a {type(value).__name__}")


def poisoned(shape, dtype):
    """A new array filled with bytes 0xFF, NaN in every floating-point format, so that reads of unwritten memory show."""
    shape = shape if isinstance(shape, tuple) else (shape,)
    count = math.prod(int(extent) for extent in shape)
    return np.full(count * dtype.itemsize, 0xFF, np.uint8).view(dtype).reshape([int(extent) for extent in shape])


poison = functools.lru_cache(256)(poisoned)  # callers copy the result; the local arrays of all threads have only a few shapes
