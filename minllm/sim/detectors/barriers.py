"""Barriers and warp-wide instructions that threads miss or reach at different instructions of the code.

A block barrier in a divergent branch is undefined, even if the hardware happens to count enough arrivals. The lanes of a warp may meet in a
shuffle, vote or syncwarp from different instructions of the code (PTX ISA, "shfl.sync"), but not in an instruction that PTX calls .aligned,
such as ldmatrix and mma.
"""

import sys

from minllm.errors import SimulationError
from minllm.sim.detectors.waivers import waived, waived_frame
from minllm.sim.monitor import Monitor
from minllm.sim.place import describe, describe_instruction, instruction, kernel_frame

ALIGNED = ("ldmatrix", "stmatrix", "mma", "wgmma")


class MeetingPlaces(Monitor):
    """Raises SimulationError if threads meet at different instructions of the code or miss a barrier."""

    all_must_meet = True

    def barrier(self, block, threads):
        self.compare(block, threads, "a block barrier")
        if len(threads) < len(block.threads):
            here = {thread.number for thread in threads}
            gone = [thread for thread in block.threads if thread.number not in here]
            if waived_frame("barrier", waiting_frame(threads[0])):
                return
            place = f"{describe(waiting_frame(threads[0]))}, block {tuple(block.index)}, first of them thread {tuple(gone[0].index)}"
            raise SimulationError(f"{len(gone)} threads have ended without reaching a barrier where {len(threads)} wait ({place})")

    def collective(self, warp, kind, lanes, mask, frame):
        if kind.startswith(ALIGNED):
            self.compare(warp.threads[0].block, [warp.threads[lane] for lane in lanes], kind)

    def compare(self, block, threads, what):
        """Check that all threads are at one instruction, reached by the same calls."""
        expected = positions(threads[0])
        for thread in threads[1:]:
            if positions(thread) == expected:  # fast path, taken nearly always
                continue
            first, other = calls(threads[0]), calls(thread)
            if other != first and not waived("barrier", first[0], other[0]):
                one, two = (describe_instruction(*next(pair[i] for pair in zip(first, other) if pair[0] != pair[1])) for i in (0, 1))
                raise SimulationError(
                    f"threads of block {tuple(block.index)} meet at {what} from different places: thread {tuple(threads[0].index)} at "
                    f"{one}, thread {tuple(thread.index)} at {two}; all must reach the same one"
                )


def waiting_frame(thread):
    """The kernel's innermost frame of a thread that is waiting or running."""
    return kernel_frame(thread.frame or sys._getframe(1))


def positions(thread):
    """(code, f_lasti) of each frame of the kernel. Threads at one instruction may differ in f_lasti; see place.instruction_starts."""
    frame, found = waiting_frame(thread), []
    while frame is not None:
        found.append((frame.f_code, frame.f_lasti))
        frame = kernel_frame(frame.f_back)
    return found


def calls(thread):
    """(code, offset) of the current instruction in each of the kernel's frames, innermost first."""
    frame, found = waiting_frame(thread), []
    while frame is not None:
        found.append(instruction(frame))
        frame = kernel_frame(frame.f_back)
    return found
