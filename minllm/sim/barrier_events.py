"""Record the events at a kernel's mbarriers: waits, arrivals and copies that land, with the state of all mbarriers after each.

    recorder = BarrierEvents()
    simulate(kernel, grid, block, *arguments, monitors=[recorder])          # or `recording()` around a launcher
    recorder.events, recorder.barriers

The recorded block is the first one with bulk copies that complete on an mbarrier. Lanes of a warp that do the same are one event. The order
is that of the simulation, in which a copy lands as late as possible: when a thread waits for it. On a GPU events may be earlier or
simultaneous.
"""

import contextlib
from dataclasses import dataclass, field

from minllm.sim import simulator
from minllm.sim.asynchrony import state
from minllm.sim.mbarrier import MBarrier
from minllm.sim.monitor import Monitor
from minllm.sim.transfer import CHUNK

COPY, LAND, WAIT, PASS, ARRIVE, USE, DONE = "copy", "land", "wait", "pass", "arrive", "use", "done"


@dataclass(frozen=True)
class BarrierState:
    """The state of an mbarrier. completed: phases; pending: missing arrivals of the current phase; bytes: expected but not landed."""

    completed: int
    pending: int
    bytes: int


@dataclass
class BarrierEvent:
    """One event of one warp.

    kind: COPY, a bulk copy starts; LAND, it has landed; WAIT, the warp begins to wait for a phase that has not completed; PASS, the warp
    continues because the phase has completed; ARRIVE, an arrival; USE and DONE, wgmma begins and ends reading a stage. barrier: the shared
    address of the mbarrier; for USE and DONE, that of the mbarrier of the copies that filled the stage. phase: the phase's number. bytes:
    size of a copy. states: {address: BarrierState} of all mbarriers after the event.
    """

    kind: str
    warp: int
    barrier: int
    phase: int
    line: int = 0
    bytes: int = 0
    states: dict[int, BarrierState] = field(default_factory=dict)


class BarrierEvents(Monitor):
    """A Monitor that records the `events` of the first block with copies that complete on an mbarrier."""

    spaces = ()

    def __init__(self):
        self.block, self.of_blocks = None, {}  # the recorded block; {block: its events}, for all blocks until one copies
        self.filled = {}  # chunk of shared memory -> (barrier, phase) of the copy that filled it
        self.seen = set()  # keys of events that another lane of the warp has already caused

    @property
    def events(self):
        """The BarrierEvents, in the order of the simulation."""
        return self.of_blocks.get(self.block, [])

    @property
    def barriers(self):
        """Shared addresses of the block's mbarriers: first those on which copies complete, then all others."""
        full = {event.barrier for event in self.events if event.kind == COPY}
        return sorted({address for event in self.events for address in event.states}, key=lambda address: (address not in full, address))

    def transfer_starts(self, transfer):
        if transfer.kind == "read":
            self.read(transfer, USE)
        elif transfer.barrier is not None:
            if self.block is None:
                self.block = transfer.block
            if self.block is transfer.block:
                self.filled.update((chunk, (transfer.barrier, transfer.phase)) for chunk in transfer.chunks.tolist())
            self.copy(COPY, transfer)

    def transfer_ends(self, transfer, threads, thing):
        if transfer.kind == "read":
            self.read(transfer, DONE)
        elif transfer.barrier is not None:
            self.copy(LAND, transfer)

    def copy(self, kind, transfer):
        """Record that a bulk copy starts or has landed."""
        self.note(transfer.thread, BarrierEvent(kind, 0, transfer.barrier, transfer.phase, transfer.line, CHUNK * transfer.chunks.size))

    def read(self, transfer, kind):
        """Record that a wgmma begins or ends reading memory that copies have filled."""
        if transfer.block is self.block:
            for barrier, phase in sorted({self.filled[chunk] for chunk in transfer.chunks.tolist() if chunk in self.filled}):
                self.note(transfer.thread, BarrierEvent(kind, 0, barrier, phase, transfer.line))

    def waits(self, thread, barrier, phase):
        self.note(thread, BarrierEvent(WAIT, 0, barrier.offset, phase))

    def acquire(self, thread, thing):
        self.synchronise(thread, thing, PASS)

    def release(self, thread, thing):
        self.synchronise(thread, thing, ARRIVE)

    def synchronise(self, thread, thing, kind):
        """Record an acquire or a release of an mbarrier's phase; others, such as a cluster's barrier, are not recorded."""
        if isinstance(thing, tuple) and isinstance(thing[0], MBarrier):
            self.note(thread, BarrierEvent(kind, 0, thing[0].offset, thing[1]))

    def note(self, thread, event):
        """Append an event of a thread's warp, unless another of its lanes has done the same."""
        if self.block not in (None, thread.block):
            return
        self.complete(thread.block)
        event.warp = thread.warp.number
        key = thread.block, event.kind, event.warp, event.barrier, event.phase
        if event.kind in (COPY, LAND, ARRIVE) or key not in self.seen:
            self.of_blocks.setdefault(thread.block, []).append(event)
            self.seen.add(key)
            if event.kind not in (LAND, ARRIVE):  # these take effect after they are reported to the monitor
                self.complete(thread.block)

    def complete(self, block):
        """Add the mbarriers' states to the last event of a block, unless it has them."""
        events = self.of_blocks.get(block)
        if events and not events[-1].states:
            barriers = sorted(state(block).mbarriers.items())
            events[-1].states = {offset: BarrierState(one.completed, one.pending, one.transactions) for offset, one in barriers}

    def end_block(self, block):
        self.complete(block)


@contextlib.contextmanager
def recording():
    """Record the next simulated launch in this context; yields the BarrierEvents."""
    recorder, given = BarrierEvents(), []

    def monitor():
        given.append(recorder if not given else BarrierEvents())
        return given[-1]

    simulator.standing_monitors.append(monitor)
    try:
        yield recorder
    finally:
        simulator.standing_monitors.remove(monitor)
