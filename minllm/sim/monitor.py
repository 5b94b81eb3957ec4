"""What can watch a simulation: detectors and traces subclass Monitor and are given to `simulate(..., monitors=[...])`.

Without monitors nothing here is called: arrays are then of a class that does not report, and the machine looks at one `None`.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Launch:
    """One launch: the kernel, its grid and block, its arrays by argument name, and its dynamic shared memory in bytes."""

    kernel: Any
    function: Any
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    arrays: dict[str, Any] = field(default_factory=dict)


class Monitor:
    """Every method is called as the simulation goes and does nothing; override those that matter.

    `thread` is a machine.Thread (.number, .index, .lane, .warp, .block), `block` a machine.Block, `warp` a machine.Warp, `frame` the
    kernel's Python frame: file and line, and `f_lasti`, which together with `f_code` names one instruction. Take from a frame what is
    needed at once; it goes on running.
    """

    scalar_type = None  # a function from a Numba type to the cast that kernels use instead of the usual one, if the monitor has one
    spaces = ("global", "shared", "local", "constant")  # those whose accesses the monitor wants to hear of
    array_class = None  # a subclass of monitored_arrays.MonitoredArray that kernels are given instead of it, if the monitor has one

    def start(self, launch):
        """The launch is about to begin."""

    def start_block(self, block):
        """The threads of `block` are about to run."""

    def access(self, thread, array, start_byte, byte_count, kind, frame):
        """A thread reads, writes or atomically changes memory: kind is "read", "write" or "atomic".

        array: .space is "global", "shared", "local" or "constant", .name the argument or variable, .root the whole array that a slice
        or view was taken from; attach what must live as long as the memory to `array.root.notes`, a dict.
        start_byte: from the start of the root array; for shared memory, the address in the block's shared memory.
        """

    def index(self, thread, array, index):
        """A thread is about to use an index, or a tuple, that is not of plain ints, on an array; bounds have not been checked yet."""

    def barrier(self, block, threads):
        """All living threads of a block have met at a barrier, and go on now."""

    def collective(self, warp, kind, lanes, mask, frame):
        """The lanes (numbers) of a warp that `mask` names have met at a warp-wide instruction, such as "syncwarp" or "shfl"."""

    def release(self, thread, thing):
        """What `thread` has done so far is visible to whoever acquires `thing` from now on: an arrival at an mbarrier, say."""

    def acquire(self, thread, thing):
        """`thread` sees all that was released to `thing` so far: it has waited for an mbarrier's phase, say."""

    def flops(self, thread, count, kind):
        """Operations counted for a whole warp or more, called once by one of its threads: kind is the instruction's name."""

    def asynchronous(self, thread, event, array, start_byte, byte_count, frame):
        """A copy into shared memory starts: event "cp_async", which is under way until the thread's `access` of kind "write" to the same
        bytes tells that it has arrived, or "bulk", until its transfer ends. "cp_async_commit_group" and "cp_async_wait_group_0" to
        "..._3" (about to wait for all but so many groups) come with 0 bytes."""

    def transfer_starts(self, transfer):
        """A transfer.Transfer of shared memory begins beside the threads: bulk copies and stores, cp.async, wgmma."""

    def transfer_ends(self, transfer, threads, thing):
        """A transfer is done: `threads` have waited for it, or those who acquire `thing` will have. What a bulk copy wrote is there now."""

    def end_block(self, block):
        """All threads of `block` have ended."""

    def end(self):
        """All blocks have ended."""


HOOKS = [name for name, value in vars(Monitor).items() if not name.startswith("_") and callable(value)]


class Monitors(Monitor):
    """Several monitors as one: each event goes to those that override its method, in the order given."""

    def __init__(self, monitors):
        self.monitors = list(monitors)
        self.scalar_type = next((monitor.scalar_type for monitor in self.monitors if monitor.scalar_type is not None), None)
        self.array_class = next((monitor.array_class for monitor in self.monitors if monitor.array_class is not None), None)
        for name in HOOKS:
            setattr(self, name, in_turn([getattr(monitor, name) for monitor in self.monitors if hears(monitor, name)]))
        self.report_to = {space: self.access_to(space) for space in Monitor.spaces}  # by space: whom arrays tell of accesses
        self.access = self.route


    def route(self, thread, array, *rest):
        """Report an access to those that listen to the array's space."""
        self.report_to[array.space](thread, array, *rest)

    def access_to(self, space):
        """The function that accesses to memory of this space are reported to."""
        return in_turn([monitor.access for monitor in self.monitors if hears(monitor, "access") and space in monitor.spaces])


def hears(monitor, name):
    """Whether a monitor overrides the method of this name."""
    return getattr(type(monitor), name) is not getattr(Monitor, name)


def in_turn(methods):
    """A function that calls all of `methods`; the only one itself where it is one."""
    if len(methods) == 1:
        return methods[0]

    def call(*arguments):
        for method in methods:
            method(*arguments)

    return call


def combined(monitors):
    """All monitors as one, or None where there are none."""
    monitors = list(monitors)
    return Monitors(monitors) if monitors else None
