"""Data races in global memory: two unordered accesses of different threads to the same bytes, at least one a write.

The threads may be of one block or of two. Blocks are ordered by a grid barrier, and by fences with atomics (grid_order.py); a kernel that
reads another block's result without either may read old data on a GPU, if the blocks run in another order than here.

Accesses are only logged while the kernel runs, and compared when the launch ends, as NumPy arrays: most elements are accessed by one thread
or are only read, and need no closer comparison. Two threads that write the same value do not race: many threads may set one flag.
"""

from typing import Any, NamedTuple

import numpy as np

from minllm.errors import SimulationError
from minllm.sim.arrays import fail
from minllm.sim.detectors.grid_order import THREAD_BITS, GridOrder
from minllm.sim.detectors.transfers import VERBS
from minllm.sim.detectors.unwritten import element_at
from minllm.sim.detectors.waivers import waived, waived_frame
from minllm.sim.monitor import MEMORY_ORDERING, Monitor
from minllm.sim.place import describe_instruction
from minllm.sim.thread import index_of
from minllm.sim.transfer import why_in_flight

FIELDS = 8  # items per access in the log: the fields of Access without its position
LOGGED = 1_000_000  # accesses after which the log is compared and begun anew; accesses of different logs are not compared


class Access(NamedTuple):
    """An access to global memory. start, count: in bytes; value: the value that a store wrote to an element, else None.

    In the log the position is left out, and root and code are ids.
    """

    position: int
    root: Any
    start: int
    count: int
    kind: str
    serial: int
    code: Any
    offset: int
    value: Any


class GlobalMemoryRaces(Monitor):
    """Raises SimulationError for the first race of a launch, when it ends."""

    spaces = ("global",)

    def start(self, launch):
        # The log is flat, FIELDS items per access, and has only numbers and strings, which the garbage collector does not traverse.
        self.order, self.log, self.base, self.blocks = GridOrder(), [], 0, []
        self.roots, self.codes = {}, {id(None): None}
        self.stores = {}  # bulk stores in flight

    def start_block(self, block):
        number = len(self.blocks)
        if block.cluster is not None:
            self.order.clusters[number] = id(block.cluster)
        self.blocks.append((str(block), block.dimensions))
        self.order.gpus.append(block.gpu)
        for thread in block.threads:
            thread.serial = (number << THREAD_BITS) + thread.number

    # Events, recorded as positions in the log

    def access(self, thread, array, start_byte, byte_count, kind, frame):
        if self.stores:
            self.compare_with_stores(array, start_byte, byte_count, kind, frame)
        value = array.stored if kind == "write" else None
        key = id(array.root)
        if key not in self.roots:
            self.roots[key] = array.root
        if kind == "atomic":
            self.order.atomic(thread.serial, (key, start_byte), self.now(), thread.ordering)
        code = None if frame is None else frame.f_code
        if id(code) not in self.codes:
            self.codes[id(code)] = code
        self.log += key, start_byte, byte_count, kind, thread.serial, id(code), 0 if frame is None else frame.f_lasti, value

    def store_starts(self, store):
        self.stores[store] = [(address_of(array.root) + start, count) for array, start, count in store.targets]

    def store_ends(self, store):
        """Log the writes again: they come after the accesses that come before the start, and before those that come after the end."""
        del self.stores[store]
        transfer = store.transfer
        for array, start, count in store.targets:
            self.log += id(array.root), start, count, "write", transfer.thread.serial, id(transfer.code), transfer.offset, None

    def compare_with_stores(self, array, start, count, kind, frame):
        """Raise SimulationError if an access touches bytes that a bulk store in flight writes."""
        address = address_of(array.root) + start
        for store, targets in self.stores.items():
            for begin, size in targets:
                if begin < address + count and address < begin + size and not waived_frame("race", frame):
                    transfer, element = store.transfer, element_at(array.root, start + max(begin - address, 0))
                    why = why_in_flight(transfer.unit, transfer.committed)
                    fail(
                        f"race on global memory: this thread {VERBS[kind]} the {array.root}, {element}, which a bulk store that thread "
                        f"{tuple(transfer.thread.index)} has started at {describe_instruction(transfer.code, transfer.offset)} writes, and "
                        f"{why if store.data is None else 'wait_group.read has waited for its reads alone'}"
                    )

    def now(self):
        """The position that the next access will have."""
        return self.base + len(self.log) // FIELDS

    def barrier(self, block, threads):
        self.order.barriers[threads[0].serial >> THREAD_BITS].append(self.now())

    def grid_barrier(self):
        self.order.grid_barriers.append(self.now())

    def collective(self, warp, kind, lanes, mask, frame):
        if kind != MEMORY_ORDERING:
            return
        positions, masks = self.order.warps[warp.threads[0].serial >> THREAD_BITS, warp.number]
        positions.append(self.now())
        masks.append(mask)

    def acquire(self, thread, thing):
        self.order.acquired[thread.serial >> THREAD_BITS].append(self.now())

    def fence(self, thread, system=False):
        self.order.fence(thread.serial, self.now(), system)

    def sleep(self, thread):
        """Remove the read before a sleep from the log: a loop that reads and sleeps waits for a store, and an acquire follows."""
        if self.log[-FIELDS:][3:5] == ["read", thread.serial]:
            self.log[-FIELDS + 2] = 0

    # The comparison

    def end_block(self, block):
        if len(self.log) > LOGGED * FIELDS:
            self.compare()

    def end(self):
        self.compare()

    def compare(self):
        """Compare all logged accesses in each range of memory that was written."""
        log, base = self.log, self.base
        self.log, self.base = [], base + len(log) // FIELDS
        if not log:
            return
        keys, starts, counts, kinds, serials = (np.array(log[field::FIELDS]) for field in range(5))
        changed = {self.roots[key] for key in np.unique(keys[kinds != "read"]).tolist()}
        for root in changed:
            root.notes["changed"] = True
        races = []
        for roots in overlapping(self.roots.values()):
            if not changed.isdisjoint(roots):
                (chosen,) = np.nonzero(np.isin(keys, [id(root) for root in roots]))
                offsets = starts[chosen] + shifts(keys[chosen], roots)
                granule, suspects = suspicious(offsets, counts[chosen], kinds[chosen], serials[chosen])
                entries = ((number, base + chosen[at], log[chosen[at] * FIELDS : (chosen[at] + 1) * FIELDS]) for number, at in suspects)
                races += self.compare_in(roots, granule, entries)
        if races:
            self.report(*min(races, key=lambda race: not is_mixed(*race[:2])))

    def compare_in(self, roots, granule, suspects):
        """The first race in one range of memory, [(access, earlier access, byte)], or [].

        roots: {array: its offset in the range}; suspects: (granule, position, entry).
        """
        last = None
        for number, position, (key, start, count, kind, serial, code, *rest) in suspects:
            access = Access(int(position), self.roots[key], start, count, kind, serial, self.codes[code], *rest)
            if number != last:
                history, last = History(self.order), number
            other = history.add(access)
            if other is not None and not waived("race", (access.code, access.offset), (other.code, other.offset)):
                return [(access, other, number * granule - roots[access.root])]
        return []

    def report(self, access, other, byte):
        """Raise SimulationError with both threads, both lines and the element."""
        byte = max(byte, access.start)
        also = "" if other.root is access.root else f" as {other.root.name}"
        advice = ": what others change by atomics is stored by one, a lock after cuda.threadfence()" if is_mixed(access, other) else ""
        raise SimulationError(
            f"race on global memory: this thread {VERBS[access.kind]} the {access.root}, {element_at(access.root, byte)}, which "
            f"{self.thread(other, access)} {VERBS[other.kind]}{also} at {place(other)}, and nothing orders the two{advice} "
            f"({place(access)}, {self.block(access)}, thread {self.thread_index(access)})"
        )

    def block(self, access):
        """The block of an access as text, such as `block (0, 0, 0)`, with its rank if the launch has several."""
        return self.blocks[access.serial >> THREAD_BITS][0]

    def thread_index(self, access):
        """The index of an access's thread in its block."""
        return tuple(index_of(access.serial & (1 << THREAD_BITS) - 1, self.blocks[access.serial >> THREAD_BITS][1]))

    def thread(self, other, access):
        """The thread of `other` as text, such as `thread (1, 0, 0)`, with its block unless that is the block of `access`."""
        same = other.serial >> THREAD_BITS == access.serial >> THREAD_BITS
        return f"thread {self.thread_index(other)}" + ("" if same else f" of {self.block(other)}")


def overlapping(roots):
    """The arrays grouped into ranges of memory: one dictionary {array: its offset} for all arrays that overlap."""
    found, stop = [], None
    for root in sorted(roots, key=address_of):
        address = address_of(root)
        if stop is None or address >= stop:
            start = stop = address
            found.append({})
        found[-1][root] = address - start
        stop = max(stop, address + root.flat_bytes.size)
    return found


def shifts(keys, roots):
    """For each access the offset of its array in the range of memory. keys: the arrays' ids."""
    if len(roots) == 1:
        return next(iter(roots.values()))
    offsets = {id(root): offset for root, offset in roots.items()}
    return np.array([offsets[key] for key in keys.tolist()])


def suspicious(offsets, counts, kinds, serials):
    """(bytes per granule, [(granule, index of an access)]) of the granules at which threads may race, those with atomics first.

    offsets: where the accesses begin in the range of memory. The granule is the largest power of two, up to 16 bytes, that divides all
    offsets and counts.
    """
    bits = int(np.bitwise_or.reduce(offsets | counts)) | 16
    granule = bits & -bits
    pieces = counts // granule
    if not pieces.any():
        return granule, []
    numbers = np.repeat(np.arange(len(offsets)), pieces)
    granules = np.repeat(offsets // granule - np.cumsum(pieces) + pieces, pieces) + np.arange(numbers.size)
    owners = np.empty(int(granules.max()) + 1, np.int64)
    owners[granules] = serials[numbers]
    marked = np.zeros(owners.size, np.uint8)
    marked[granules[owners[granules] != serials[numbers]]] |= 1  # several threads
    for mark, other in ((2, "read"), (4, "atomic")):  # 2: an access that changes the granule; 4: one that is not atomic
        marked[granules[(kinds != other)[numbers]]] |= mark
    chosen = np.flatnonzero(marked[granules] == 7)
    mixed = np.zeros(owners.size, bool)
    mixed[granules[(kinds == "atomic")[numbers]]] = True
    chosen = chosen[np.lexsort((granules[chosen], ~mixed[granules[chosen]]))]
    return granule, list(zip(granules[chosen].tolist(), numbers[chosen].tolist()))


class History:
    """The accesses to a granule that a later one may race with: the last write, and reads and atomics by thread."""

    def __init__(self, order):
        self.order, self.write, self.reads, self.atomics = order, None, {}, {}

    def add(self, access):
        """An earlier access that races with this one, or None."""
        others = []
        if self.write is not None and not (access.kind == "write" and same(access.value, self.write.value)):
            others.append(self.write)
        if access.kind != "read":
            others += self.reads.values()
        if access.kind != "atomic":
            own = self.atomics.get(access.serial)  # it comes after all atomics before it
            others += [other for other in self.atomics.values() if own is None or other.position > own.position]
        found = next((other for other in others if not self.ordered(other, access)), None)
        if access.kind == "write":
            self.write = access
            if found is None:
                self.reads, self.atomics = {}, {}
        else:
            (self.reads if access.kind == "read" else self.atomics)[access.serial] = access
        return found

    def ordered(self, first, second):
        """Whether the first access comes before the second on every GPU."""
        return self.order.ordered(first.serial, first.position, second.serial, second.position)


def is_mixed(access, other):
    """Whether a race is between an atomic and a plain store, as at a lock: others at what the lock guards follow from it."""
    return {access.kind, other.kind} == {"atomic", "write"}


def same(value, other):
    """Whether two stores wrote the same known value."""
    try:
        return value is not None and other is not None and bool(value == other)
    except ValueError:  # records
        return False


def place(access):
    """The position of an access as text, `file:line in function`."""
    return describe_instruction(access.code, access.offset) if access.code is not None else "unknown place"


def address_of(root):
    """The address of a root's lowest byte."""
    return root.data.__array_interface__["data"][0] - root.base
