"""The simulator's version of `numba.cuda`."""

import functools
import sys
from types import ModuleType

import numba.cuda
import numpy as np

from minllm.machine.numba_cuda import types
from minllm.sim.arrays import fail, failure
from minllm.sim.cooperative import this_grid
from minllm.sim.cuda_memory import Atomic, ConstantMemory, LocalMemory, SharedMemory
from minllm.sim.fused import fma
from minllm.sim.half_precision import BF16, FP16
from minllm.sim.machine import FULL_MASK, barrier, collective
from minllm.sim.place import instruction, kernel_frame
from minllm.sim.polling import give_way
from minllm.sim.scalars import simulated_type
from minllm.sim.system_scope import fence
from minllm.sim.thread import WARP_SIZE, current_thread
from minllm.sim.vectors import is_vector_stub, vector_type
from minllm.sim.warp_values import ballot, match_all, match_any, source_lane


class Indices:
    """threadIdx, blockIdx, blockDim or gridDim of the running thread: .x, .y and .z."""

    def __init__(self, find):
        self.find = find
        for axis in "xyz":
            setattr(type(self), axis, property(functools.partial(lambda axis, self: getattr(self.find(), axis), axis)))


class CooperativeGroups:
    """`cuda.cg`."""

    this_grid = staticmethod(this_grid)


class SimulatedCuda:
    """The module `numba.cuda` inside a simulated kernel."""

    shared, local, const, atomic = SharedMemory(), LocalMemory(), ConstantMemory(), Atomic()
    warpsize = WARP_SIZE
    cg, fp16, bf16 = CooperativeGroups(), FP16, BF16
    threadIdx = property(lambda self: current_thread().index)
    blockIdx = property(lambda self: current_thread().block.index)
    blockDim = property(lambda self: current_thread().block.dimensions)
    gridDim = property(lambda self: current_thread().block.grid)
    laneid = property(lambda self: current_thread().lane)
    twin_of_module = None  # a function that returns the simulated twin of cuda.types, cuda.libdevice and the like (minllm.sim.rewrite)

    def __getattr__(self, name):
        value = getattr(numba.cuda, name, None)
        if isinstance(value, types.Type):
            return simulated_type(value)
        if is_vector_stub(value):
            return vector_type(value.__name__)
        if isinstance(value, ModuleType):
            return self.twin_of_module(value)
        fail(f"cuda.{name} is not known to the simulator")

    def grid(self, dimensions):
        """The thread's position in the grid, in 1, 2 or 3 dimensions."""
        thread = current_thread()
        block = thread.block
        if dimensions == 1:
            return block.index.x * block.dimensions.x + thread.index.x
        return tuple(index * size + inside for index, size, inside in zip(block.index, block.dimensions, thread.index))[:dimensions]

    def gridsize(self, dimensions):
        """The number of threads of the grid along 1, 2 or 3 dimensions."""
        block = current_thread().block
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
        """Report a fence; nothing else is needed, because threads run in turn and every store is visible at once."""
        fence(current_thread())

    threadfence_block = threadfence

    def threadfence_system(self):
        """Report a fence of system scope, which other GPUs see too."""
        fence(current_thread(), system=True)

    def nanosleep(self, nanoseconds):
        """Let the other threads run first, so that a loop that sleeps and polls makes progress."""
        thread = current_thread()
        monitor = thread.block.monitor
        if monitor is not None:
            monitor.sleep(thread)
        give_way(thread)
        if monitor is not None:
            monitor.acquire(thread, "cuda.nanosleep")

    # Shuffles: every lane provides a value and the number of the lane from which it reads

    def _shuffle(self, kind, mask, value, operand):
        thread = current_thread()
        return collective(kind, (value, source_lane(kind, thread.lane, operand)), functools.partial(exchange, kind, mask, thread), mask)

    def shfl_sync(self, mask, value, src_lane):
        return self._shuffle("shfl", mask, value, src_lane)

    def shfl_xor_sync(self, mask, value, lane_mask):
        return self._shuffle("shfl_xor", mask, value, lane_mask)

    def shfl_down_sync(self, mask, value, delta):
        return self._shuffle("shfl_down", mask, value, delta)

    def shfl_up_sync(self, mask, value, delta):
        return self._shuffle("shfl_up", mask, value, delta)

    # Votes

    def ballot_sync(self, mask, predicate):
        return collective("ballot", bool(predicate), lambda v: dict.fromkeys(v, ballot(v)), mask)

    def any_sync(self, mask, predicate):
        return collective("any", bool(predicate), lambda v: dict.fromkeys(v, any(v.values())), mask)

    def all_sync(self, mask, predicate):
        return collective("all", bool(predicate), lambda v: dict.fromkeys(v, all(v.values())), mask)

    def match_any_sync(self, mask, value):
        return collective("match_any", value, match_any, mask)

    def match_all_sync(self, mask, value):
        return collective("match_all", value, lambda v: dict.fromkeys(v, match_all(v)), mask)

    def eq_sync(self, mask, predicate):
        return collective("eq", bool(predicate), lambda v: dict.fromkeys(v, len(set(v.values())) == 1), mask)

    def lanemask_lt(self):
        return (1 << current_thread().lane) - 1

    def activemask(self):
        """The mask of lanes that reach this instruction in the same scheduling round."""
        thread = current_thread()
        key = "activemask", instruction(sys._getframe(1))
        together = thread.warp.meetings.setdefault(key, set())
        together.add(thread.lane)
        self.nanosleep(0)
        if thread.warp.meetings.get(key) is together:
            del thread.warp.meetings[key]
        return sum(1 << lane for lane in together)

    # Integer and fused arithmetic

    def popc(self, value, bits=32):
        return unsigned(value, bits).bit_count()

    def clz(self, value, bits=32):
        return bits - unsigned(value, bits).bit_length()

    def ffs(self, value, bits=32):
        low = unsigned(value, bits)
        return (low & -low).bit_length()

    def brev(self, value, bits=32):
        return int(f"{unsigned(value, bits):0{bits}b}"[::-1], 2)

    def fma(self, a, b, c):
        return fma(a, b, c)

    def cbrt(self, value):
        return type(value)(np.cbrt(value))

    def selp(self, condition, yes, no):
        return yes if condition else no

    # Loads and stores with a cache hint, which the simulator ignores

    def ldcg(self, array, index):
        return array[index]

    def stcg(self, array, index, value):
        array[index] = value

    ldca = ldcs = ldcv = ldlu = ldcg
    stcs = stwb = stwt = stcg


def exchange(kind, mask, last, values):
    """The results of a shuffle: {lane: value}. values: {lane: (value, source lane)}; last: the thread that arrived last."""
    try:
        return {lane: values[source][0] for lane, (_, source) in values.items()}
    except KeyError:
        found = {}
        for lane, (own, source) in values.items():
            found[lane] = values[source][0] if source in values else undefined(kind, mask, last, lane, own, source)
        return found


def undefined(kind, mask, last, lane, own, source):
    """The result of a lane that reads from one that does not take part: 0, which under a detector must not be stored.

    Shuffles up and down may read beyond the mask, because kernels ignore these values; other shuffles raise SimulationError.
    """
    why, monitor = missing_source(kind, mask, lane, source), last.block.monitor
    if kind in ("shfl", "shfl_xor"):
        raise failure(f"{why}, so its value is undefined", last.warp.threads[lane])
    place = None if monitor is None else instruction(kernel_frame(last.frame or sys._getframe(1)))
    value = type(own)(0)
    found = None if monitor is None else monitor.undefined(value, why, place)
    return value if found is None else found


def missing_source(kind, mask, lane, source):
    """A clause for a message about a lane that reads from one that does not take part."""
    why = "is not in the mask" if not int(mask) >> source & 1 else "does not exist or has returned"
    return f"{kind} with mask {int(mask) & FULL_MASK:#010x}: lane {lane} reads from lane {source}, which {why}"


def unsigned(value, bits):
    """The low `bits` bits of an integer, as an unsigned number."""
    return int(value) & (1 << bits) - 1
