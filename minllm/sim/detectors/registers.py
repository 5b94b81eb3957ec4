"""Races on registers: accesses to a local array that a wgmma has in flight.

From a wgmma on, until its group has been waited for, a thread may not access the registers of the accumulator, nor change those of A (PTX
ISA, "wgmma.mma_async"). A product that belongs to no group is in flight for good.
"""

import sys

from minllm.sim.arrays import fail
from minllm.sim.detectors.transfers import VERBS
from minllm.sim.detectors.unwritten import element_at
from minllm.sim.detectors.waivers import waived_frame
from minllm.sim.monitor import NO_MORE, Monitor
from minllm.sim.place import describe_instruction, kernel_frame
from minllm.sim.transfer import why_in_flight


class RegisterRaces(Monitor):
    """Raises SimulationError at an access to registers that a wgmma of the thread has in flight."""

    spaces = ()  # accesses are reported only of arrays that a wgmma has been given

    def registers_taken(self, array):
        for one in (array, array.root):
            if self.access not in one.reports:
                one.reports = (self.access, *one.reports)

    def access(self, thread, array, start_byte, byte_count, kind, frame):
        own, idle = thread.asynchronous, True
        if own.settling:
            return None
        for group, committed in [(own.products, False), *((group, True) for group in own.product_groups)]:
            for use in (use for call in group for use in call.uses if use.root is array.root):
                idle = False
                taken = start_byte < use.stop and use.start < start_byte + byte_count
                if taken and (use.kind == "write" or kind != "read") and not waived_frame("race", kernel_frame(sys._getframe(1))):
                    element = element_at(array.root, max(start_byte, use.start))
                    fail(
                        f"race on registers: this thread {VERBS[kind]} the {array}, {element}, which a wgmma that it has started at "
                        f"{describe_instruction(use.code, use.offset)} {VERBS[use.kind]}, and {why_in_flight('wgmma', committed)}"
                    )
        return NO_MORE if idle else None
