"""The threads of a simulation, and the greenlets that run them."""

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
current_thread = _running.get  # returns the simulated thread that is running, or None outside a simulation


class Dimensions(NamedTuple):
    """Three sizes or indices: the value of threadIdx, blockIdx, blockDim or gridDim."""

    x: int
    y: int = 1
    z: int = 1


class Thread:
    """One CUDA thread: its position, and the cp.async copies that it has started. worker: its greenlet while it is alive."""

    waiting_for = result = worker = None
    dead = False
    polls = 0  # consecutive atomics that changed nothing
    polled = None  # {(array, index): value} of the thread's last loads of system scope
    ordering = None  # "relaxed", "acquire" or "release" during an access of system scope (system_scope.py)
    has_waited_for_predecessors = False  # whether the thread has executed griddepcontrol.wait
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
        """Suspend this thread until it is continued: switch to the next runnable thread if its greenlet has begun, else to the parent.

        A greenlet that began here would inherit this one's depth of recursion, and so on to Python's limit.
        """
        runnable = self.block.runnable
        runnable.polls = 0
        following = runnable[0].worker if runnable else None
        if not following:
            self.worker.parent.switch()
        else:
            runnable.popleft()
            following.switch()


class Runnable(deque):
    """The queue of runnable threads. polls: consecutive switches in which only polling threads have run (polling.py)."""

    polls = 0


class Worker(greenlet):
    """A greenlet that runs threads one after the other, and ends when the next thread in the queue already has a greenlet.

    Most threads of most kernels never wait, and share one greenlet. If a thread waits, so does its greenlet, and a new greenlet runs the
    next thread.
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
