"""Asynchronous copies as a trace follows them: which are under way, and how the groups of one warp overlap its computing.

A thread starts copies, closes them into a group, and later waits until all but the newest n groups have arrived (PTX ISA, "cp.async").
The first lane that starts a copy stands for its warp: its waits count the steps of the timeline.
"""

from collections import Counter, defaultdict

from minllm.sim.trace_numbers import CopyGroup

WAIT = "cp_async_wait_group_"


class Pipeline:
    """Fed by a Tracer with every event; `groups` and `step_flops` are the timeline of the first warp that copied."""

    def __init__(self):
        self.under_way = defaultdict(Counter)  # shared memory of a block -> addresses that a copy is still to write
        self.lane = None
        self.open = []  # copies since the last group was closed: (address, bytes, line)
        self.groups, self.step_flops = [], [0]

    def event(self, thread, event, array, address, byte_count, frame):
        """A copy into shared memory was started, a group was closed, or the thread is about to wait for groups."""
        if byte_count:
            self.under_way[array.root][address] += 1
        if event == "cp_async":
            if self.lane is None:
                self.lane = thread
            if thread is self.lane:
                self.open.append((address, byte_count, frame.f_lineno))
        elif thread is self.lane:
            if event == "cp_async_commit_group":
                self.close_group()
            elif event.startswith(WAIT):
                self.wait(int(event.removeprefix(WAIT)))

    def close_group(self):
        """The lane's copies since the last time are a group now; groups without a copy count, they are waited for alike."""
        address, _, line = self.open[0] if self.open else (0, 0, 0)
        count = sum(size for _, size, _ in self.open)
        self.groups.append(CopyGroup(len(self.groups), len(self.step_flops) - 1, None, len(self.open), count, address, line))
        self.open = []

    def wait(self, pending):
        """The lane waits: all but its newest `pending` groups arrive, and a new step begins."""
        step = len(self.step_flops)
        for group in self.groups[: len(self.groups) - pending]:
            group.arrived = step if group.arrived is None else group.arrived
        self.step_flops.append(0)

    def arrival(self, array, address):
        """Whether a write of shared memory is a copy that arrives; True takes it off the list."""
        waiting = self.under_way.get(array.root)
        if not waiting or not waiting[address]:
            return False
        waiting[address] -= 1
        return True

    def flops(self, thread, count):
        """Operations of a warp: those of the warp that is followed go to its current step."""
        if self.lane is not None and thread.warp is self.lane.warp:
            self.step_flops[-1] += count
