"""Reads, by a kernel that overlaps its predecessors, of what these have written, before it has waited for them.

A kernel made with `@kernel(dependent_launch=True)` may run while kernels before it in the stream still do, until it executes
`griddepcontrol.wait` (PTX ISA). Simulated kernels run one after another, so its results are always right here; but within `detecting()`
the arrays that earlier launches wrote are remembered, and a read of one of them before the wait is reported. Weights and the like, which
no kernel of the stream writes, may be read before it: that is what such kernels are for.
"""

from dataclasses import dataclass
from typing import Any

from minllm.sim.arrays import fail
from minllm.sim.monitor import Monitor


@dataclass
class Written:
    """An array that a launch wrote: its addresses, the kernel's name, and the memory itself, so that nothing else comes to lie there."""

    start: int
    stop: int
    kernel: str
    data: Any


class EarlyReads(Monitor):
    """Raises SimulationError at such a read. history: what earlier launches of the context wrote, by address; a launch adds its own."""

    spaces = ("global",)

    def __init__(self, history):
        self.history, self.roots, self.overlaps, self.early = history, set(), False, {}

    def start(self, launch):
        self.name = launch.function.__name__
        self.overlaps = getattr(launch.kernel, "dependent_launch", False)
        for array in launch.arrays.values() if self.overlaps else ():
            start, stop = addresses(array.root.data)
            writers = [written.kernel for written in self.history.values() if written.start < stop and start < written.stop]
            if writers:
                self.early[array.root] = writers[-1]

    def access(self, thread, array, start_byte, byte_count, kind, frame):
        if kind != "read":
            self.roots.add(array.root)
        elif self.early and array.root in self.early and not thread.has_waited_for_predecessors:
            fail(
                f"this thread reads the {array}, which {self.early[array.root]} wrote, before griddepcontrol.wait: on a GPU that kernel "
                "may still be running, because this one is launched to overlap it"
            )

    def end(self):
        for root in self.roots:
            start, stop = addresses(root.data)
            self.history.pop(start, None)
            self.history[start] = Written(start, stop, self.name, root.data)


def addresses(data):
    """The first byte of an array's memory, and the one behind the last."""
    start = data.__array_interface__["data"][0]
    return start, start + data.nbytes
