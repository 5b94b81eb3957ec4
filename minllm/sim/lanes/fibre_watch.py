"""Detectors of fibres: the vector checks of watch.py, and the events that the threads' instructions report.

Shared memory is compared by vector clocks (order.py), because fibres are ordered by more than block barriers. The threads' own detectors
hear of what has clocks: mbarriers, named barriers, barriers of a cluster, transfers.
"""

import sys

import numpy as np

from minllm.sim.detectors.grid_order import THREAD_BITS
from minllm.sim.lanes.accesses import NAMES, READ, WRITE
from minllm.sim.lanes.faults import Fault
from minllm.sim.lanes.masks import some
from minllm.sim.lanes.order import VectorClusterRaces, VectorRaces
from minllm.sim.lanes.watch import FULL_MASK, MARKED, Watch
from minllm.sim.monitor import MEMORY_ORDERING, Monitor
from minllm.sim.monitored_arrays import MonitoredArray
from minllm.sim.transfer import CHUNK

CODES = {name: kind for kind, name in NAMES.items()}
GENERATED = "<lanes of "


class FibreWatch(Watch):
    """The detectors of a launch in fibres. events: what the threads' instructions report to."""

    def __init__(self, launch, how, function):
        super().__init__(launch, how, function)
        self.races, self.clusters = VectorRaces(), VectorClusterRaces()
        self.events = Events(self)
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
        if some(root.flights[at * size >> 4]):
            raise Fault("an access to memory that a cp.async writes")
        numbers = lanes.number if lanes.chosen is None else lanes.number[lanes.chosen]
        self.history(lanes.block).access(numbers, at * size, size, NAMES[kind])
        if lanes.block.cluster is not None:
            self.clusters.access_together(lanes.block, numbers, at * size, size, NAMES[kind])

    def release(self, block, numbers, thing):
        """A release by each of several threads."""
        self.history(block).release(numbers, thing)
        self.clusters.release_together(block, numbers, thing)

    def acquire(self, block, numbers, thing):
        """An acquire by each of several threads."""
        self.history(block).acquire(numbers, thing)
        self.clusters.acquire_together(block, numbers, thing)

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

    def of_thread(self, thread, root, starts, count, kind):
        """Accesses to global or shared memory by one thread, `count` bytes each. starts: their first bytes in the root, a list."""
        if not starts:  # of a tile that lies outside its tensor
            return
        if root.marks is not None:
            places = [slice(start, start + count) for start in starts]
            if kind != WRITE and not all(root.marks[place].all() for place in places):
                raise Fault("a read of memory that nobody wrote")
            if kind != READ:
                for place in places:
                    root.marks[place] = MARKED[1]
        if root.space == "shared":
            if thread.block.memory.root is root:  # not of another block of the cluster
                size, at = pieces(starts, count, 16)
                self.history(thread.block).access(np.full(at.size, thread.number), at, size, NAMES[kind])
        elif kind != READ or root.range.name in self.launch.stored or root in self.early.early or self.stores:
            size, at = pieces(starts, count, 8)
            who = np.full(at.size, thread.block.number * self.threads + thread.number)
            self.global_access(root, at // size, size, kind, None, thread.has_waited_for_predecessors, who, thread.block.epoch, 0)
        else:
            root.range.loaded = True

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
            for one in (self.races, self.clusters):
                one.collective(own, MEMORY_ORDERING, range(len(own.threads)), FULL_MASK, None)
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
        self.clusters.barrier(block, block.threads)
        self.order.barriers[block.number].append(self.position)
        block.epoch += 1
        for fibre in block.fibres:
            fibre.lanes.epoch = block.epoch


def pieces(starts, count, most):
    """(size, first bytes) of aligned words of up to `most` bytes that make up the bytes from each of `starts` on."""
    starts = np.asarray(starts)
    bits = int(np.bitwise_or.reduce(starts)) | count | most
    size = bits & -bits
    return size, (starts[:, None] + np.arange(0, count, size)).reshape(-1)


class Events(Monitor):
    """Hears of what the threads' instructions do, for a FibreWatch."""

    def __init__(self, watch):
        self.watch, self.races, self.clusters, self.unwritten = watch, watch.races, watch.clusters, watch.unwritten

    def start_block(self, block):
        self.races.start_block(block)
        self.clusters.start_block(block)
        self.watch.new_shared(block.memory.root, block)
        if block.cluster is not None:
            self.watch.order.clusters[block.number] = id(block.cluster)

    def access(self, thread, array, start_byte, byte_count, kind, frame):
        root, lane = self.owner(array)
        if lane is None:
            if root.space == "shared" and thread.block.cluster is not None:
                self.clusters.access(thread, array, start_byte, byte_count, kind, frame)
            self.watch.of_thread(thread, root, [start_byte], byte_count, CODES[kind])
            return
        part = root.marks[start_byte // root.itemsize : -(-(start_byte + byte_count) // root.itemsize), lane]
        if kind != "write" and not part.all():
            raise Fault("a read of local memory that nobody wrote")
        if kind != "read":
            part[...] = True

    def accesses(self, thread, array, start_bytes, byte_count, kind, frame):
        self.watch.of_thread(thread, self.owner(array)[0], start_bytes, byte_count, CODES[kind])

    def owner(self, array):
        """(the Root of an array that instructions take, its lane if the Root is local)."""
        return self.watch.launch.owners[id(array.root if isinstance(array, MonitoredArray) else array)][1:]

    def release(self, thread, thing):
        self.races.release(thread, thing)
        self.clusters.release(thread, thing)

    def arrives(self, thread, thing):
        self.clusters.arrives(thread, thing)

    def visits(self, thread, block):
        self.clusters.visits(thread, block)

    def exits(self, block):
        self.clusters.exits(block)

    def acquire(self, thread, thing):
        self.races.acquire(thread, thing)
        self.clusters.acquire(thread, thing)
        self.watch.order.acquired[thread.block.number].append(self.watch.position)

    def fence(self, thread, system=False):
        self.watch.order.fence((thread.block.number << THREAD_BITS) + thread.number, self.watch.position, system)

    def uses_mbarrier(self, thread, offset, initialises):
        self.races.uses_mbarrier(thread, offset, initialises)

    def transfer_starts(self, transfer):
        self.unwritten.transfer_starts(transfer)
        self.races.transfer_starts(transfer)
        self.clusters.transfer_starts(transfer)

    def transfer_ends(self, transfer, threads, thing):
        self.unwritten.transfer_ends(transfer, threads, thing)
        self.races.transfer_ends(transfer, threads, thing)
        self.clusters.transfer_ends(transfer, threads, thing)

    def store_starts(self, store):
        if store.targets:
            self.count_store(store, 1)

    def store_ends(self, store):
        """Report the writes again: they come after the accesses that come before the start, and before those that come after the end."""
        if store.targets:
            array, starts, count = self.count_store(store, -1)
            self.accesses(store.transfer.thread, array, starts, count, "write", None)

    def count_store(self, store, change):
        """Count a bulk store in the chunks that it writes, or no longer; returns (array, starts, bytes from each on)."""
        self.watch.stores += change
        array, _, count = store.targets[0]
        starts, root = [start for _, start, _ in store.targets], self.owner(array)[0]
        if root.stored is None:
            root.stored = np.zeros(root.flat.nbytes // CHUNK + 2, np.int16)
        first = self.watch.chunks(root, np.array(starts))[:, None] + np.arange(-(-count // CHUNK))
        root.stored[first] += change
        return array, starts, count

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
