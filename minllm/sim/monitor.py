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

    def barrier(self, block, threads):
        """All living threads of a block have met at a barrier, and go on now."""

    def collective(self, warp, kind, lanes, mask, frame):
        """The lanes (numbers) of a warp that `mask` names have met at a warp-wide instruction, such as "syncwarp" or "shfl"."""

    def flops(self, thread, count, kind):
        """Operations counted for a whole warp or more, called once by one of its threads: kind is the instruction's name."""

    def asynchronous(self, thread, event, array, start_byte, byte_count, frame):
        """A transfer that runs beside the threads: event "cp_async" starts a write of shared memory, which is still under way until the
        thread's `access` of kind "write" to the same bytes tells that it has arrived. "cp_async_commit_group" and
        "cp_async_wait_group_0" to "..._3" (about to wait for all but so many groups) come with 0 bytes."""

    def end_block(self, block):
        """All threads of `block` have ended."""

    def end(self):
        """All blocks have ended."""


class Monitors(Monitor):
    """Several monitors as one."""

    def __init__(self, monitors):
        self.monitors = list(monitors)


def forward(name):
    """A method that calls the method of this name of every monitor."""

    def call(self, *arguments):
        for monitor in self.monitors:
            getattr(monitor, name)(*arguments)

    call.__name__ = name
    return call


for _name in [name for name in vars(Monitor) if not name.startswith("_")]:
    setattr(Monitors, _name, forward(_name))


def combined(monitors):
    """None, the only monitor, or all of them as one."""
    monitors = list(monitors)
    return None if not monitors else monitors[0] if len(monitors) == 1 else Monitors(monitors)
