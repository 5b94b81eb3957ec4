"""One CUDA thread of a simulation: a greenlet that knows its place in the grid."""

from collections import deque
from typing import NamedTuple

from greenlet import getcurrent, greenlet

WARP_SIZE = 32


class Dimensions(NamedTuple):
    """Three sizes or indices: the value of threadIdx, blockIdx, blockDim or gridDim."""

    x: int
    y: int = 1
    z: int = 1


class Thread(greenlet):
    """One CUDA thread: its place, and the asynchronous copies that it has started."""

    waiting_for = result = None
    polls = 0  # atomics in a row that changed nothing
    has_waited_for_predecessors = False  # griddepcontrol.wait
    asynchronous = None  # asynchrony.ThreadState, once the thread starts bulk stores or wgmma

    def __init__(self, block, number, run):
        super().__init__(run)
        self.block, self.number = block, number
        self.index = index_of(number, block.dimensions)
        self.lane, self.warp = number % WARP_SIZE, block.warps[number // WARP_SIZE]
        self.warp.threads.append(self)
        self.warp.lanes |= 1 << self.lane
        self.copies, self.copy_groups = [], deque()


def index_of(number, size):
    """The threadIdx of the thread with this number in a block of this size."""
    return Dimensions(number % size.x, number // size.x % size.y, number // (size.x * size.y))


def current_thread():
    """The simulated thread that is running, or None outside a simulation."""
    thread = getcurrent()
    return thread if isinstance(thread, Thread) else None
