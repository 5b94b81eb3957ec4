"""Detectors of fibres: the vector checks of watch.py, and the events that the threads' instructions report.

Shared memory is compared by vector clocks (order.py), because fibres are ordered by more than block barriers. The threads' own detectors
hear of what has clocks: mbarriers, named barriers, barriers of a cluster, transfers.
"""

import sys

import numpy as np

from minllm.sim.detectors.grid_order import THREAD_BITS
from minllm.sim.lanes.accesses import READ, WRITE
from minllm.sim.lanes.faults import Fault
from minllm.sim.lanes.order import VectorRaces
from minllm.sim.lanes.watch import FULL_MASK, KINDS, MARKED, Watch
from minllm.sim.monitor import MEMORY_ORDERING, Monitor, combined
from minllm.sim.monitored_arrays import MonitoredArray
from minllm.sim.transfer import CHUNK

CODES = {name: kind for kind, name in KINDS.items()}
GENERATED = "<lanes of "


class FibreWatch(Watch):
    """The detectors of a launch in fibres. monitor: what the threads' instructions report to."""

    def __init__(self, launch, how, function):
        super().__init__(launch, how, function)
        self.races = VectorRaces()
        self.events = Events(self)
        self.monitor = combined([self.events])
        self.stores = 0  # bulk stores in flight

    def start_block(self, block):
        """The fibres of a block are about to be made."""
        block.threads[0].block.monitor.start_block(block)

    def new_shared(self, root, block):
        """The shared memory of a block."""
        root.marks = np.frombuffer(self.unwritten.shared_marks(block), np.uint8)
        root.flights = np.zeros(-(-root.flat.size // CHUNK), bool)
        self.launch.owners[id(block.shared_root)] = block.shared_root, root, None

    def shared_access(self, lanes, root, at, size, kind):
        if root.flights[at * size >> 4].any():
            raise Fault("an access to memory that a cp.async writes")
        numbers = lanes.number if lanes.chosen is None else lanes.number[lanes.chosen]
        self.history(lanes.block).access(numbers, at * size, size, KINDS[kind])

    def history(self, block):
        """The VectorHistory of a block."""
        return block.shared_root.notes["history"]

    def global_access(self, root, at, size, kind, value, waited, who, epoch, clock):
        if self.stores and root.stored is not None and root.stored[self.chunks(root, at * size)].any():
            raise Fault("an access to memory that a bulk store writes")
        super().global_access(root, at, size, kind, value, waited, who, epoch, clock)

    def chunks(self, root, byte):
        """The numbers of the chunks of 16 bytes that hold bytes of a root."""
        return byte + root.flat.__array_interface__["data"][0] % CHUNK >> 4

    def of_thread(self, thread, root, start, count, kind):
        """An access to global or shared memory by one thread. start: its first byte in the root."""
        if root.marks is not None and kind != WRITE and not root.marks[start : start + count].all():
            raise Fault("a read of memory that nobody wrote")
        if root.space == "shared":
            if thread.block.memory.root is not root:  # of another block of the cluster
                root.marks[start : start + count] |= kind != READ
                return
            history = self.history(thread.block)
            size = next(size for size in (16, 8, 4, 2, 1) if (start | count) % size == 0)
            at = np.arange(start, start + count, size)
            history.access(np.full(at.size, thread.number), at, size, KINDS[kind])
        elif kind != READ or root.range.name in self.launch.stored or root in self.early.early or self.stores:
            at = np.arange(start // root.itemsize, (start + count) // root.itemsize)
            who = np.full(at.size, thread.block.number * self.threads + thread.number)
            self.global_access(root, at, root.itemsize, kind, None, thread.has_waited_for_predecessors, who, thread.block.epoch, 0)
        else:
            root.range.loaded = True
        if root.marks is not None and kind != READ:
            root.marks[start : start + count] = MARKED[1]

    # Registers of wgmma

    def compare_written(self, part, registers):
        """Raise Fault if the lanes `part` have not written registers that wgmma reads."""
        if not all(root.marks[first : first + count, part].all() for root, first, count in registers):
            raise Fault("a read of local memory that nobody wrote")

    def take_registers(self, call):
        """A wgmma has registers in flight."""
        for number, (root, first, count) in enumerate(call.registers):
            root.flying = [*root.flying, (first, first + count, call, "read" if number else "write")]

    def give_registers(self, call):
        """A wgmma is done: its sums are written."""
        for number, (root, first, count) in enumerate(call.registers):
            root.flying = [one for one in root.flying if one[2] is not call]
            if not number:
                root.marks[first : first + count, call.part] = True

    def local_read(self, lanes, array, at):
        if array.root.flying:
            self.compare_registers(lanes, array.root, at, "read")
        super().local_read(lanes, array, at)

    def local_written(self, lanes, array, at):
        if array.root.flying:
            self.compare_registers(lanes, array.root, at, "write")
        super().local_written(lanes, array, at)

    def compare_registers(self, lanes, root, at, kind):
        """Raise Fault if an access touches registers that a wgmma has in flight."""
        here = np.ones(lanes.size, bool) if lanes.mask is None else lanes.mask
        for first, stop, call, use in root.flying:
            if (kind == "write" or use == "write") and ((at >= first) & (at < stop) & here)[call.part].any():
                raise Fault("an access to registers of a wgmma in flight")

    # Barriers

    def blocks_of(self, lanes):
        return [lanes.block.number]

    def syncwarp(self, lanes):
        for warp in np.unique(lanes.warp_of if lanes.mask is None else lanes.warp_of[lanes.mask]).tolist():
            own = lanes.block.warps[warp]
            self.races.collective(own, MEMORY_ORDERING, range(len(own.threads)), FULL_MASK, None)
            positions, masks = self.order.warps[lanes.block.number, warp]
            positions.append(self.position)
            masks.append(FULL_MASK)

    def reach(self, lanes):
        """A fibre reaches a block barrier."""
        frame, place = sys._getframe(1), []
        while frame is not None:
            if frame.f_code.co_filename.startswith(GENERATED):
                place.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        lanes.place = place

    def block_barrier(self, block):
        """All living fibres of a block have reached a barrier."""
        if any(fibre.ended or fibre.lanes.dead is not False for fibre in block.fibres):
            raise Fault("some threads do not reach a barrier")
        if any(fibre.lanes.place != block.fibres[0].lanes.place for fibre in block.fibres):
            raise Fault("threads meet at a barrier from different places")
        self.races.barrier(block, block.threads)
        self.order.barriers[block.number].append(self.position)
        block.epoch += 1
        for fibre in block.fibres:
            fibre.lanes.epoch = block.epoch


class Events(Monitor):
    """Hears of what the threads' instructions do, for a FibreWatch."""

    def __init__(self, watch):
        self.watch, self.races, self.unwritten = watch, watch.races, watch.unwritten

    def start_block(self, block):
        self.races.start_block(block)
        self.watch.new_shared(block.memory.root, block)
        if block.cluster is not None:
            self.watch.order.clusters[block.number] = id(block.cluster)

    def access(self, thread, array, start_byte, byte_count, kind, frame):
        _, root, lane = self.watch.launch.owners[id(array.root if isinstance(array, MonitoredArray) else array)]
        if lane is None:
            self.watch.of_thread(thread, root, start_byte, byte_count, CODES[kind])
            return
        part = root.marks[start_byte // root.itemsize : -(-(start_byte + byte_count) // root.itemsize), lane]
        if kind != "write" and not part.all():
            raise Fault("a read of local memory that nobody wrote")
        if kind != "read":
            part[...] = True

    def release(self, thread, thing):
        self.races.release(thread, thing)

    def acquire(self, thread, thing):
        self.races.acquire(thread, thing)
        self.watch.order.acquired[thread.block.number].append(self.watch.position)

    def fence(self, thread, system=False):
        self.watch.order.fence((thread.block.number << THREAD_BITS) + thread.number, self.watch.position, system)

    def transfer_starts(self, transfer):
        self.unwritten.transfer_starts(transfer)
        self.races.transfer_starts(transfer)

    def transfer_ends(self, transfer, threads, thing):
        self.unwritten.transfer_ends(transfer, threads, thing)
        self.races.transfer_ends(transfer, threads, thing)

    def store_starts(self, store):
        self.count_store(store, 1)

    def store_ends(self, store):
        """Report the writes again: they come after the accesses that come before the start, and before those that come after the end."""
        self.count_store(store, -1)
        for array, start, count in store.targets:
            self.access(store.transfer.thread, array, start, count, "write", None)

    def count_store(self, store, change):
        self.watch.stores += change
        for array, start, count in store.targets:
            root = self.watch.launch.owners[id(array.root if isinstance(array, MonitoredArray) else array)][1]
            if root.stored is None:
                root.stored = np.zeros(root.flat.nbytes // CHUNK + 2, np.int16)
            first, last = self.watch.chunks(root, start), self.watch.chunks(root, start + count - 1)
            root.stored[first : last + 1] += change

    def index(self, thread, array, index):
        for position in index if type(index) is tuple else (index,):
            if not isinstance(position, slice) and position < 0:
                raise Fault("a negative index")

    def wrapped_store(self, array, element, exact):
        raise Fault("a stored integer wraps")

    def undefined(self, value, why, place):
        raise Fault(why)

    def undefined_result(self, why):
        raise Fault(why)
