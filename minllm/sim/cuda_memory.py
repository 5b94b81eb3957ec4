"""Simulated `cuda.shared`, `cuda.local`, `cuda.const` and `cuda.atomic`."""

import math
import sys

import numpy as np

from minllm.sim.arrays import fail, poison
from minllm.sim.machine import SHARED_MEMORY_BYTES
from minllm.sim.monitored_arrays import checked
from minllm.sim.place import assigned_at, assigned_name, code_number, instruction
from minllm.sim.scalars import dtype_of
from minllm.sim.thread import current_thread

SMALLEST_NORMAL = np.finfo(np.float32).smallest_normal
STATIC_BYTES = 48 * 1024  # limit of static shared memory per block, on every GPU


class Named:
    """A namespace of `numba.cuda`. Raises SimulationError for names that the simulator lacks."""

    def __getattr__(self, name):
        fail(f"cuda.{type(self).name}.{name} is not known to the simulator")


class SharedMemory(Named):
    """`cuda.shared`."""

    name = "shared"

    def array(self, shape, dtype, alignment=None):
        """A static array, one per block and call in the code; shape 0 means the dynamic shared memory."""
        block, dtype = current_thread().block, dtype_of(dtype)
        code, offset = instruction(sys._getframe(1))
        key = code_number(code), offset
        if key not in block.shared_arrays:
            start, stop = self.place(block, shape, dtype, alignment)
            data = block.shared[start:stop].view(dtype)
            data = data if shape == 0 else data.reshape(shape)
            block.shared_arrays[key] = checked(data, "shared", start, assigned_name(code, offset), block.monitor, block.shared_root)
        return block.shared_arrays[key]

    def place(self, block, shape, dtype, alignment):
        """Allocate an array in the block's shared memory; returns (first byte, one past the last)."""
        if shape == 0:
            return 0, block.dynamic_bytes // dtype.itemsize * dtype.itemsize
        alignment = max(alignment or dtype.itemsize, 16)
        start = -(-block.shared_top // alignment) * alignment
        count = math.prod(shape) if isinstance(shape, tuple) else int(shape)
        block.shared_top = start + count * dtype.itemsize
        block.static_bytes += count * dtype.itemsize
        if block.static_bytes > STATIC_BYTES:
            fail(f"{block.static_bytes} bytes of static shared arrays; a block has at most {STATIC_BYTES}, more only as dynamic ones")
        if block.shared_top > SHARED_MEMORY_BYTES:
            fail(f"shared arrays of {block.shared_top} bytes do not fit the {SHARED_MEMORY_BYTES} bytes of a block")
        return start, block.shared_top


class LocalMemory(Named):
    """`cuda.local`."""

    name = "local"

    def array(self, shape, dtype, alignment=None):
        """A thread's own array, filled with NaN."""
        frame = sys._getframe(1)
        name = assigned_at(frame.f_code, frame.f_lasti)
        return checked(poison(shape, dtype_of(dtype)).copy(), "local", 0, name, current_thread().block.monitor)


class ConstantMemory(Named):
    """`cuda.const`."""

    name = "const"

    def array_like(self, array):
        """A read-only copy of a host array."""
        name = assigned_name(*instruction(sys._getframe(1)))
        data = np.array(array, order="C")
        data.flags.writeable = False
        return checked(data, "constant", 0, name, current_thread().block.monitor)


class Atomic(Named):
    """`cuda.atomic`: each function changes an element and returns its old value. Operands are first converted to the array's type."""

    name = "atomic"

    def add(self, array, index, value):
        value = array.converted(value)
        if array.dtype == np.float32 and array.space == "global":
            return array.atomic(index, lambda old: without_subnormals(without_subnormals(old) + without_subnormals(value)))
        return array.atomic(index, lambda old: old + value)

    def sub(self, array, index, value):
        return self.add(array, index, -array.converted(value))

    def max(self, array, index, value):
        value = array.converted(value)
        return array.atomic(index, lambda old: max(old, value))

    def min(self, array, index, value):
        value = array.converted(value)
        return array.atomic(index, lambda old: min(old, value))

    def exch(self, array, index, value):
        return array.atomic(index, lambda old: value)

    def and_(self, array, index, value):
        return array.atomic(index, lambda old: int(old) & int(value))

    def or_(self, array, index, value):
        return array.atomic(index, lambda old: int(old) | int(value))

    def xor(self, array, index, value):
        return array.atomic(index, lambda old: int(old) ^ int(value))

    def nanmax(self, array, index, value):
        return array.atomic(index, lambda old: np.fmax(old, value))

    def nanmin(self, array, index, value):
        return array.atomic(index, lambda old: np.fmin(old, value))

    def dec(self, array, index, value):
        value = array.converted(value)
        return array.atomic(index, lambda old: value if old == 0 or old > value else old - 1)

    def compare_and_swap(self, array, old, value):
        return self.cas(array, 0, old, value)

    def inc(self, array, index, value):
        value = array.converted(value)
        return array.atomic(index, lambda old: 0 if old >= value else old + 1)

    def cas(self, array, index, old, value):
        old = array.converted(old)
        return array.atomic(index, lambda found: value if found == old else found)


def without_subnormals(number):
    """A float32, with a zero of its sign for a subnormal number: what atom.add.f32 on global memory adds and stores. PTX ISA, "atom"."""
    return number if not abs(number) < SMALLEST_NORMAL else np.copysign(np.float32(0), number)
