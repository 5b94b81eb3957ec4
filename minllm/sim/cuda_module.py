"""The names of `numba.cuda`, `math` and libdevice that kernels use, as the simulator understands them."""

import math
import sys

import numpy as np
from greenlet import getcurrent

from minllm.errors import SimulationError
from minllm.sim.arrays import checked, fail, poisoned
from minllm.sim.machine import FULL_MASK, SHARED_MEMORY_BYTES, WARP_SIZE, barrier, collective
from minllm.sim.place import assigned_name, instruction
from minllm.sim.scalars import dtype_of


class SharedMemory:
    """`cuda.shared`."""

    def array(self, shape, dtype, alignment=None):
        """A static array: one per block and place in the code; shape 0 is the dynamic memory from its start."""
        block, dtype = getcurrent().block, dtype_of(dtype)
        key = instruction(sys._getframe(1))
        if key not in block.shared_arrays:
            start, stop = self.place(block, shape, dtype, alignment)
            data = block.shared[start:stop].view(dtype)
            data = data if shape == 0 else data.reshape(shape)
            block.shared_arrays[key] = checked(data, "shared", start, assigned_name(*key), block.monitor, block.shared_root)
        return block.shared_arrays[key]

    def place(self, block, shape, dtype, alignment):
        """First byte of an array in the block's shared memory, and the byte behind it."""
        if shape == 0:
            return 0, block.dynamic_bytes // dtype.itemsize * dtype.itemsize
        alignment = max(alignment or dtype.itemsize, 16)
        start = -(-block.shared_top // alignment) * alignment
        count = math.prod(shape) if isinstance(shape, tuple) else int(shape)
        block.shared_top = start + count * dtype.itemsize
        if block.shared_top > SHARED_MEMORY_BYTES:
            fail(f"shared arrays of {block.shared_top} bytes do not fit the {SHARED_MEMORY_BYTES} bytes of a block")
        return start, block.shared_top


class LocalMemory:
    """`cuda.local`."""

    def array(self, shape, dtype, alignment=None):
        """A thread's own array, full of NaN until written."""
        name = assigned_name(*instruction(sys._getframe(1)))
        return checked(poisoned(shape, dtype_of(dtype)), "local", 0, name, getcurrent().block.monitor)


class ConstantMemory:
    """`cuda.const`."""

    def array_like(self, array):
        """A read-only copy of a host array."""
        name = assigned_name(*instruction(sys._getframe(1)))
        return checked(np.ascontiguousarray(array), "constant", 0, name, getcurrent().block.monitor)


class Atomic:
    """`cuda.atomic`: each reads, changes, and returns the old value."""

    def add(self, array, index, value):
        return array.atomic(index, lambda old: old + value)

    def sub(self, array, index, value):
        return array.atomic(index, lambda old: old - value)

    def max(self, array, index, value):
        return array.atomic(index, lambda old: max(old, value))

    def min(self, array, index, value):
        return array.atomic(index, lambda old: min(old, value))

    def exch(self, array, index, value):
        return array.atomic(index, lambda old: value)

    def and_(self, array, index, value):
        return array.atomic(index, lambda old: int(old) & int(value))

    def or_(self, array, index, value):
        return array.atomic(index, lambda old: int(old) | int(value))

    def xor(self, array, index, value):
        return array.atomic(index, lambda old: int(old) ^ int(value))

    def inc(self, array, index, value):
        return array.atomic(index, lambda old: 0 if old >= value else old + 1)

    def cas(self, array, index, old, value):
        return array.atomic(index, lambda found: value if found == old else found)


class SimulatedCuda:
    """The module `numba.cuda` inside a simulated kernel."""

    shared, local, const, atomic = SharedMemory(), LocalMemory(), ConstantMemory(), Atomic()
    warpsize = WARP_SIZE
    threadIdx = property(lambda self: getcurrent().index)
    blockIdx = property(lambda self: getcurrent().block.index)
    blockDim = property(lambda self: getcurrent().block.dimensions)
    gridDim = property(lambda self: getcurrent().block.grid)
    laneid = property(lambda self: getcurrent().lane)

    def __getattr__(self, name):
        raise SimulationError(f"cuda.{name} is not known to the simulator")

    def grid(self, dimensions):
        """Absolute position of the thread in the grid, in 1, 2 or 3 dimensions."""
        thread = getcurrent()
        triples = zip(thread.block.index, thread.block.dimensions, thread.index)
        position = tuple(block * size + inside for block, size, inside in triples)
        return position[0] if dimensions == 1 else position[:dimensions]

    def gridsize(self, dimensions):
        """Threads of the whole grid, in 1, 2 or 3 dimensions."""
        block = getcurrent().block
        sizes = tuple(blocks * size for blocks, size in zip(block.grid, block.dimensions))
        return sizes[0] if dimensions == 1 else sizes[:dimensions]

    # Barriers and fences

    def syncthreads(self):
        barrier()

    def syncthreads_count(self, predicate):
        return sum(1 for value in barrier(bool(predicate)) if value)

    def syncthreads_and(self, predicate):
        return int(all(barrier(bool(predicate))))

    def syncthreads_or(self, predicate):
        return int(any(barrier(bool(predicate))))

    def syncwarp(self, mask=FULL_MASK):
        collective("syncwarp", None, lambda values: dict.fromkeys(values), mask)

    def threadfence(self):
        """Threads run in turn, so every store is visible at once."""

    threadfence_block = threadfence_system = threadfence

    # Shuffles: every lane brings a value and names the lane that it reads

    def _shuffle(self, kind, mask, value, source):
        def exchange(values):
            return {lane: values[wanted][0] if wanted in values else own for lane, (own, wanted) in values.items()}

        return collective(kind, (value, source), exchange, mask)

    def shfl_sync(self, mask, value, source_lane):
        return self._shuffle("shfl", mask, value, int(source_lane) % WARP_SIZE)

    def shfl_xor_sync(self, mask, value, lane_mask):
        return self._shuffle("shfl_xor", mask, value, getcurrent().lane ^ int(lane_mask))

    def shfl_down_sync(self, mask, value, delta):
        lane = getcurrent().lane
        return self._shuffle("shfl_down", mask, value, lane + int(delta) if lane + int(delta) < WARP_SIZE else lane)

    def shfl_up_sync(self, mask, value, delta):
        lane = getcurrent().lane
        return self._shuffle("shfl_up", mask, value, lane - int(delta) if lane >= int(delta) else lane)

    # Votes

    def ballot_sync(self, mask, predicate):
        return collective("ballot", bool(predicate), lambda v: dict.fromkeys(v, sum(1 << lane for lane in v if v[lane])), mask)

    def any_sync(self, mask, predicate):
        return collective("any", bool(predicate), lambda v: dict.fromkeys(v, any(v.values())), mask)

    def all_sync(self, mask, predicate):
        return collective("all", bool(predicate), lambda v: dict.fromkeys(v, all(v.values())), mask)

    def match_any_sync(self, mask, value):
        def match(values):
            return {lane: sum(1 << other for other in values if values[other] == values[lane]) for lane in values}

        return collective("match_any", value, match, mask)

    def activemask(self):
        return sum(1 << thread.lane for thread in getcurrent().warp.threads if not thread.dead)

    # Integer and fused arithmetic

    def popc(self, value):
        return (int(value) & 0xFFFFFFFFFFFFFFFF).bit_count()

    def clz(self, value):
        return 32 - (int(value) & FULL_MASK).bit_length()

    def ffs(self, value):
        low = int(value) & FULL_MASK
        return (low & -low).bit_length()

    def brev(self, value):
        return int(f"{int(value) & FULL_MASK:032b}"[::-1], 2)

    def fma(self, a, b, c):
        return np.float32(float(a) * float(b) + float(c)) if isinstance(a, np.float32) else a * b + c

    def selp(self, condition, yes, no):
        return yes if condition else no


class SimulatedMath:
    """The module `math` inside a simulated kernel: a float32 argument gives a float32 result, infinities instead of exceptions."""

    def __getattr__(self, name):
        exact = getattr(math, name)
        if not callable(exact):
            return exact

        def function(*arguments):
            single = any(isinstance(a, (np.float32, np.float16)) for a in arguments)
            with np.errstate(all="ignore"):
                numpy_function = getattr(np, {"pow": "power", "fabs": "abs"}.get(name, name), None)
                if isinstance(numpy_function, np.ufunc):
                    result = numpy_function(*(np.float64(a) for a in arguments))
                else:
                    result = exact(*(float(a) for a in arguments))
                return np.float32(result) if single and not isinstance(result, (bool, np.bool_)) else result

        return function


class SimulatedLibdevice:
    """`numba.cuda.libdevice`: the float32 functions that kernels use, by their names there."""

    def __getattr__(self, name):
        plain = name.removeprefix("fast_").removesuffix("f").removesuffix("_rn")
        if plain == "rsqrt":
            return lambda x: np.float32(1 / np.sqrt(np.float64(x)))
        if plain == "fma":
            return lambda a, b, c: np.float32(float(a) * float(b) + float(c))
        if not hasattr(math, plain):
            raise SimulationError(f"libdevice.{name} is not known to the simulator")
        function = getattr(SimulatedMath(), plain)
        return lambda *arguments: np.float32(function(*arguments))
