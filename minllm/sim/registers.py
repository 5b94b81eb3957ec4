"""The register pool of a block, shared by its warpgroups. PTX ISA, "setmaxnreg".

At first each thread has its share of the registers under the block's launch bounds, and the pool is empty. setmaxnreg.dec moves registers
of a warpgroup to the pool; setmaxnreg.inc waits until the pool holds enough for all threads of the warpgroup.
"""

from dataclasses import dataclass

from minllm.sim.arrays import fail
from minllm.sim.asynchrony import meet, park, state, wake
from minllm.sim.thread import current_thread

REGISTERS = 65_536  # per SM (streaming multiprocessor)
MOST = 256  # registers per thread, at most
UNIT = 8  # registers per thread are a multiple of this
WARPGROUP = 128


class RegisterPool:
    """A block's registers. counts: per thread, by warpgroup; free: in the pool; waiting: {warpgroup: (count, threads)}."""

    def __init__(self, block):
        threads = block.dimensions.x * block.dimensions.y * block.dimensions.z
        if threads % WARPGROUP:
            fail(f"setmaxnreg in a block of {threads} threads; it takes whole warpgroups of {WARPGROUP}")
        start = min(REGISTERS // block.resident // threads, MOST) // UNIT * UNIT
        self.counts, self.free, self.waiting = [start] * (threads // WARPGROUP), 0, {}

    def decrease(self, group, count):
        """Return registers to the pool, so that the warpgroup keeps `count` per thread."""
        if count > self.counts[group]:
            fail(f"setmaxnreg.dec to {count} registers of warpgroup {group}, which has {self.counts[group]} a thread: none to give")
        self.free += (self.counts[group] - count) * WARPGROUP
        self.counts[group] = count
        self.serve()

    def increase(self, group, count):
        """Wait until the pool gives the warpgroup `count` registers per thread."""
        if count < self.counts[group]:
            fail(f"setmaxnreg.inc to {count} registers of warpgroup {group}, which has {self.counts[group]} a thread already")
        thread = current_thread()
        self.waiting.setdefault(group, (count, []))[1].append(thread)
        self.serve()
        if group in self.waiting:
            park(thread, Wish(self, group, count))

    def serve(self):
        """Give registers to waiting warpgroups as long as the pool has enough."""
        for group, (count, threads) in list(self.waiting.items()):
            wanted = (count - self.counts[group]) * WARPGROUP
            if wanted <= self.free:
                self.free -= wanted
                self.counts[group] = count
                del self.waiting[group]
                for thread in threads:
                    if thread is not current_thread():
                        wake(thread)


@dataclass
class Wish:
    """The reason why a warpgroup waits, as text for a deadlock report."""

    pool: RegisterPool
    group: int
    count: int

    def __str__(self):
        wanted = (self.count - self.pool.counts[self.group]) * WARPGROUP
        return f"setmaxnreg.inc {self.count} of warpgroup {self.group}, which wants {wanted} registers where {self.pool.free} are free"


def set_registers(action, count):
    """Execute setmaxnreg.dec or .inc for the running thread, together with all threads of its warpgroup."""
    thread = current_thread()
    group = thread.number // WARPGROUP
    reason = f"setmaxnreg.{action} {count}, which all threads of warpgroup {group} have to reach"
    first = meet(("setmaxnreg", action, group, count), WARPGROUP, reason, compute=first_of_all, orders=False)
    if action == "inc" or first:
        resize(action, count)


def resize(action, count):
    """Take registers from the pool for the running thread's warpgroup, whose threads have met, or give them back."""
    thread = current_thread()
    own, group = state(thread.block), thread.number // WARPGROUP
    if own.registers is None:
        own.registers = RegisterPool(thread.block)
    (own.registers.increase if action == "inc" else own.registers.decrease)(group, count)


def first_of_all(threads):
    """{thread: whether it has the lowest number}."""
    lowest = min(thread.number for thread in threads)
    return {thread: thread.number == lowest for thread in threads}
