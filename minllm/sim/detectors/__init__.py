"""Detectors: monitors that find mistakes which a GPU does not report.

They raise SimulationError, with file, line, block and thread.

    simulate(kernel, grid, block, *arrays, detect=True)
    kernel.simulate[grid, block](*arrays, detect=True)
    with detecting(): ...                                     # every simulation within the context, through launchers too

    unwritten    elements of an `output` that a launch has not written, and reads of global, shared or local memory that was never written
    global_races unordered accesses to the same bytes of global memory, at least one a write, by two threads of one block or of two
                 without a barrier, grid barrier or fence and atomic between them
    races        unordered accesses to the same bytes of shared memory, at least one a write, by two threads or by a thread and an
                 asynchronous transfer: cp.async, bulk copies and stores, wgmma
    clusters     unordered accesses of two blocks of a cluster to shared memory, and those to a block that has not begun or has ended
    registers    accesses to registers of a wgmma that is in flight
    barriers     block barriers that some threads do not reach, or that threads reach at different lines; .aligned instructions too
    overflow     32-bit casts and stores that changed an index
    negative     indices below 0 that the kernel computes, which a GPU counts from the end
    undefined    stores of a value that a shuffle has read from a lane outside its mask; divisions of integers by 0, shifts beyond the width
    streams      unordered launches and copies on streams that touch the same bytes, and accesses of the host to memory that the device
                 still uses; only in programs for numba.cuda (numba_launches.py)
    early_reads  reads of an earlier launch's results by a kernel that overlaps it and has not waited; only within detecting()

The simulator itself checks bounds, alignment, deadlocks and missing lanes of warp-wide instructions (arrays.py, machine.py).
"""

import contextlib
import contextvars
import os

from minllm.sim.detectors.barriers import MeetingPlaces
from minllm.sim.detectors.clusters import ClusterRaces
from minllm.sim.detectors.early_reads import EarlyReads
from minllm.sim.detectors.global_races import GlobalMemoryRaces
from minllm.sim.detectors.negative_indices import NegativeIndices
from minllm.sim.detectors.overflow import IndexOverflow
from minllm.sim.detectors.races import SharedMemoryRaces
from minllm.sim.detectors.registers import RegisterRaces
from minllm.sim.detectors.streams import TouchedBytes, recording
from minllm.sim.detectors.undefined import UndefinedValues
from minllm.sim.detectors.unwritten import UnwrittenReads, output, unwritten
from minllm.sim.options import DETECT

__all__ = [
    "ClusterRaces",
    "EarlyReads",
    "GlobalMemoryRaces",
    "IndexOverflow",
    "MeetingPlaces",
    "NegativeIndices",
    "RegisterRaces",
    "SharedMemoryRaces",
    "UndefinedValues",
    "UnwrittenReads",
    "detecting",
    "detectors",
    "output",
    "unwritten",
]

_detecting = contextvars.ContextVar("detecting", default=None)
_written = contextvars.ContextVar("written", default=None)  # {address: array written by a launch within detecting()}


def detectors():
    """A new set of all detectors, for one launch."""
    history = _written.get()
    early = EarlyReads({} if history is None else history)
    of_memory = UnwrittenReads(), SharedMemoryRaces(), GlobalMemoryRaces(), RegisterRaces(), ClusterRaces()
    record = recording.get()
    touched = [] if record is None else [TouchedBytes(record)]
    return [*of_memory, *touched, MeetingPlaces(), NegativeIndices(), IndexOverflow(), UndefinedValues(), early]


def is_detecting():
    """Whether simulations run with detectors by default: as the context says, or the environment."""
    here = _detecting.get()
    return os.environ.get(DETECT) == "1" if here is None else here


@contextlib.contextmanager
def detecting(on=True):
    """Within this context simulations run with all detectors by default, or without them if `on` is False."""
    token = _detecting.set(on)
    kept = _written.set({} if _written.get() is None else _written.get())
    try:
        yield
    finally:
        _detecting.reset(token)
        _written.reset(kept)
