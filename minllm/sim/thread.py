"""One CUDA thread of a simulation, which knows its place in the grid, and the greenlets that run threads."""

import functools
from collections import deque
from contextvars import ContextVar
from typing import NamedTuple

from greenlet import greenlet

from minllm.errors import SimulationError
from minllm.sim.python_errors import explained
from minllm.sim.watchdog import Spin, spinning

WARP_SIZE = 32

_running = ContextVar("the simulated thread that is running", default=None)
current_thread = _running.get  # the simulated thread that is running, or None outside a simulation


class Dimensions(NamedTuple):
    """Three sizes or indices: the value of threadIdx, blockIdx, blockDim or gridDim."""

    x: int
    y: int = 1
    z: int = 1


class Thread:
    """One CUDA thread: its place, and the asynchronous copies that it has started. worker: its greenlet, between its start and its end."""

    waiting_for = result = worker = None
    dead = False
    polls = 0  # atomics in a row that changed nothing
    polled = None  # {place: value} of the thread's last loads of system scope
    ordering = None  # of the access of system scope that the thread makes: "relaxed", "acquire" or "release" (system_scope.py)
    has_waited_for_predecessors = False  # griddepcontrol.wait
    asynchronous = None  # asynchrony.ThreadState, once the thread starts bulk stores or wgmma

    def __init__(self, block, number, index):
        self.block, self.number, self.index = block, number, index
        self.lane, self.warp = number % WARP_SIZE, block.warps[number // WARP_SIZE]
        self.warp.threads.append(self)
        self.warp.lanes |= 1 << self.lane
        self.copies, self.copy_groups = [], deque()

    @property
    def frame(self):
        """The Python frame at which the thread waits; None while it runs."""
        return self.worker.gr_frame

    def pause(self):
        """Let others run until this thread is continued: at once the next one that can run, if it has waited too, else the loop of all."""
        runnable = self.block.runnable
        runnable.polls = 0
        following = runnable[0].worker if runnable else None
        if following is None:
            self.worker.parent.switch()
        else:
            runnable.popleft()
            following.switch()


class Runnable(deque):
    """The threads that can run, in their order. polls: the switches in a row in which only threads that poll have run (polling.py)."""

    polls = 0


class Worker(greenlet):
    """A greenlet that runs threads one after the other, and ends when the next one in the queue has a greenlet already.

    Most threads of most kernels never wait, and share one. If a thread waits, the greenlet waits with it, and another runs the next.
    """

    thread = None

    def run(self, thread, runnable):
        while True:
            self.thread, thread.worker = thread, self
            _running.set(thread)
            try:
                thread.block.function(*thread.block.arguments)
                thread.worker, thread.dead = None, True
                thread.block.end_thread(thread)
            except Spin as spin:
                raise spinning(spin, thread) from None
            except SimulationError:
                raise
            except Exception as error:
                raise explained(error, thread) from error
            runnable.polls = 0
            if not runnable or runnable[0].worker is not None:
                return
            thread = runnable.popleft()


@functools.lru_cache(64)
def indices_of(size):
    """The threadIdx of every thread of a block of this size."""
    return [index_of(number, size) for number in range(size.x * size.y * size.z)]


def index_of(number, size):
    """The threadIdx of the thread with this number in a block of this size."""
    return Dimensions(number % size.x, number // size.x % size.y, number // (size.x * size.y))
