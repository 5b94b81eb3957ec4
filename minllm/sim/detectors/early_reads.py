"""Reads of a predecessor's results by a kernel that has not yet waited for it.

A kernel made with `@kernel(dependent_launch=True)` may overlap its predecessors in the stream until it executes `griddepcontrol.wait`
(PTX ISA). Simulated kernels run one after another, so their results are always right; but within `detecting()` the arrays that earlier
launches wrote are recorded, and a read of one of them before the wait is reported. Arrays that no kernel of the stream writes, such as
weights, may be read before the wait: that is the gain of dependent launches.
"""

from dataclasses import dataclass
from typing import Any

from minllm.sim.arrays import fail
from minllm.sim.monitor import NO_MORE, Monitor


@dataclass
class Written:
    """An array that a launch wrote; `data` keeps its memory from being reused."""

    start: int
    stop: int
    kernel: str
    data: Any


class EarlyReads(Monitor):
    """Raises SimulationError at a read of an earlier launch's results before griddepcontrol.wait. history: {address: Written}."""

    spaces = ("global",)

    def __init__(self, history):
        self.history, self.overlaps, self.early = history, False, {}

    def start(self, launch):
        self.name, self.arrays = launch.function.__name__, launch.arrays
        self.overlaps = getattr(launch.kernel, "dependent_launch", False)
        for array in launch.arrays.values() if self.overlaps else ():
            start, stop = addresses(array.root.data)
            writers = [written.kernel for written in self.history.values() if written.start < stop and start < written.stop]
            if writers:
                self.early[array.root] = writers[-1]

    def access(self, thread, array, start_byte, byte_count, kind, frame):
        if array.root not in self.early:
            return NO_MORE
        if kind == "read" and not thread.has_waited_for_predecessors:
            fail(
                f"this thread reads the {array}, which {self.early[array.root]} wrote, before griddepcontrol.wait: on a GPU that kernel "
                "may still be running, because this one is launched to overlap it"
            )

    def end(self):
        for root in {array.root for array in self.arrays.values() if array.root.notes.get("changed")}:
            start, stop = addresses(root.data)
            self.history.pop(start, None)
            self.history[start] = Written(start, stop, self.name, root.data)


def addresses(data):
    """(address of an array's first byte, one past its last)."""
    start = data.__array_interface__["data"][0]
    return start, start + data.nbytes
