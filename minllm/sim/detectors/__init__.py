"""Detectors: monitors that raise SimulationError for what a GPU lets pass in silence, with file, line, block and thread.

    simulate(kernel, grid, block, *arrays, detect=True)
    kernel.simulate[grid, block](*arrays, detect=True)
    with detecting(): ...                                     # every simulation inside, through launchers too

    unwritten    reads of global, shared or local memory that nobody wrote
    races        two threads at one place in shared memory, one of them writing, with nothing that orders them; or a thread and what runs
                 beside the threads: cp.async, bulk copies and stores, wgmma
    barriers     block barriers that some threads have left out, or that threads reach at different places; warp-wide instructions too
    overflow     32-bit casts that changed an index
    early_reads  reads of what an earlier launch wrote, by a kernel that overlaps it and has not waited; only within detecting()

Bounds, alignment, deadlocks and lanes missing from a warp-wide instruction are checked always (arrays.py, machine.py).
"""

import contextlib
import contextvars

from minllm.sim.detectors.barriers import MeetingPlaces
from minllm.sim.detectors.early_reads import EarlyReads
from minllm.sim.detectors.overflow import IndexOverflow
from minllm.sim.detectors.races import SharedMemoryRaces
from minllm.sim.detectors.unwritten import UnwrittenReads, unwritten

__all__ = ["EarlyReads", "IndexOverflow", "MeetingPlaces", "SharedMemoryRaces", "UnwrittenReads", "detecting", "detectors", "unwritten"]

_detecting = contextvars.ContextVar("detecting", default=False)
_written = contextvars.ContextVar("written", default=None)  # arrays that launches inside detecting() wrote, by address


def detectors():
    """A new set of all detectors, for one launch."""
    history = _written.get()
    return [UnwrittenReads(), SharedMemoryRaces(), MeetingPlaces(), IndexOverflow(), EarlyReads({} if history is None else history)]


def is_detecting():
    """Whether simulations run with detectors unless they say otherwise."""
    return _detecting.get()


@contextlib.contextmanager
def detecting(on=True):
    """Simulations inside this context run with detectors, or without them, unless they say otherwise themselves."""
    token = _detecting.set(on)
    kept = _written.set({} if _written.get() is None else _written.get())
    try:
        yield
    finally:
        _detecting.reset(token)
        _written.reset(kept)
