"""The trace of asynchronous copies, and of their overlap with computation.

cp.async: a thread starts copies, commits them as a group, and later waits until all but the newest n groups have arrived (PTX ISA,
"cp.async"). The trace follows the first lane that starts a copy: each of its waits begins a new step of the timeline. Bulk copies: each is
a group by itself, in flight until a thread waits for its mbarrier; a step ends when copies arrive after some computation, and the step's
FLOPs are those of the whole block.
"""

from collections import Counter, defaultdict

from minllm.sim.trace_numbers import CopyGroup

WAIT = "cp_async_wait_group_"


class Pipeline:
    """The timeline (`groups`, `step_flops`) of the first warp or block that copies."""

    def __init__(self):
        self.under_way = defaultdict(Counter)  # shared memory of a block -> destination addresses of copies in flight
        self.lane, self.memory = None, None  # the thread with the traced cp.async, or the memory of the traced bulk copies
        self.open = []  # copies that are not yet in a group: (address, bytes, line)
        self.groups, self.step_flops = [], [0]

    def event(self, thread, event, array, address, byte_count, line):
        """Record a copy, a commit or a wait, which stands in a line of the kernel; see Monitor.asynchronous."""
        if byte_count:
            self.under_way[array.root][address] += 1
        if event == "cp_async":
            if self.lane is None and self.memory is None:
                self.lane = thread
            if thread is self.lane:
                self.open.append((address, byte_count, line))
        elif event == "bulk":
            if self.lane is None and self.memory is None:
                self.memory = array.root
            if array.root is self.memory:
                group = CopyGroup(len(self.groups), len(self.step_flops) - 1, None, 1, byte_count, address, line)
                self.groups.append(group)
        elif thread is self.lane:
            if event == "cp_async_commit_group":
                self.close_group()
            elif event.startswith(WAIT):
                self.wait(int(event.removeprefix(WAIT)))

    def close_group(self):
        """Commit the lane's open copies as a group, which may be empty."""
        address, _, line = self.open[0] if self.open else (0, 0, 0)
        count = sum(size for _, size, _ in self.open)
        self.groups.append(CopyGroup(len(self.groups), len(self.step_flops) - 1, None, len(self.open), count, address, line))
        self.open = []

    def wait(self, pending):
        """Record a wait of the lane: all but its newest `pending` groups arrive, and a new step begins."""
        step = len(self.step_flops)
        for group in self.groups[: len(self.groups) - pending]:
            group.arrived = step if group.arrived is None else group.arrived
        self.step_flops.append(0)

    def arrival(self, array, address):
        """Record a write of shared memory; returns whether it is the arrival of a copy, which is then no longer in flight."""
        waiting = self.under_way.get(array.root)
        if not waiting or not waiting[address]:
            return False
        waiting[address] -= 1
        if array.root is self.memory:
            self.bulk_arrival(address)
        return True

    def bulk_arrival(self, address):
        """Record the arrival of the oldest copy to an address, which may begin a new step."""
        group = next(group for group in self.groups if group.address == address and group.arrived is None)
        if self.step_flops[-1] or group.issued == len(self.step_flops) - 1:
            self.step_flops.append(0)
        group.arrived = len(self.step_flops) - 1

    def flops(self, thread, count):
        """Add FLOPs to the current step, if the traced warp or block executed them."""
        followed = thread.warp is self.lane.warp if self.lane is not None else thread.block.shared_root is self.memory
        if followed:
            self.step_flops[-1] += count
