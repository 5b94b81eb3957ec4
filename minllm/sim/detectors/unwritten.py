"""Reads of memory that was never written.

Every byte of shared and local memory has a mark that a write sets. A global array counts as written by the host, except for elements with
all bits set (the poison): in floating-point arrays, where this is a NaN that no arithmetic produces, and in arrays made by `unwritten`, of
any dtype. The memory of a simulated `cuda.device_array` keeps its marks from launch to launch (minllm/sim/device_memory.py).
"""

import numpy as np

from minllm.errors import SimulationError
from minllm.sim.array_bytes import bytes_between, place_of
from minllm.sim.arrays import fail, failure, poisoned
from minllm.sim.detectors.waivers import waived_frame
from minllm.sim.device_memory import mark_written, memory_of, of_elements, unwritten_bytes
from minllm.sim.monitor import NO_MORE, Monitor
from minllm.sim.place import describe
from minllm.sim.transfer import CHUNK

MARK = b"\1"
MARKS = [MARK * count for count in range(129)]
# Phrases of messages that name the cause of a read of unwritten memory: races, blocks of a cluster that do not wait, lost copies
CAUSES = "race on ", "a cluster's blocks meet at a barrier", "bytes of copies into its shared memory have landed"
UNKNOWN = object()  # stands for marks that do not exist yet
PATIENCE = 20_000  # accesses after a read of unwritten memory during which the detector looks for its writer


class Unwritten(np.ndarray):
    """An array with elements that count as unwritten while all their bits are set."""


def unwritten(shape, dtype):
    """A new array with all bits set; detectors report a kernel that reads an element before it is written."""
    return poisoned(shape, np.dtype(dtype)).view(Unwritten)


class Output(Unwritten):
    """An unwritten array; a launch that writes to it must write every element."""


def output(shape, dtype):
    """A new array like `unwritten`, which detectors also report if a launch writes some of its elements but not all."""
    return poisoned(shape, np.dtype(dtype)).view(Output)


def marks_of_host(data):
    """One mark per byte of an array from the host, 0 for elements that hold the poison; None if all are written."""
    if memory_of(data) is not None:
        missing = unwritten_bytes(data)
        return None if missing is None else bytearray((~missing).tobytes())
    if (data.dtype.kind in "iubmM" or data.dtype.names) and not isinstance(data, Unwritten):
        return None
    if bytes_between(data).size % data.dtype.itemsize:
        return None
    poison = holds_poison(data)
    return bytearray(np.repeat(~poison, data.dtype.itemsize).astype(np.uint8).tobytes()) if poison.any() else None


def holds_poison(data):
    """For each element in the order of memory, whether all its bits are set."""
    return (bytes_between(data).reshape(-1, data.dtype.itemsize) == 0xFF).all(1)


class UnwrittenReads(Monitor):
    """Raises SimulationError at a read of a byte that was never written."""

    def __init__(self):
        self.outputs = {}  # root of an Output -> bytes that were unwritten when the launch began
        self.watched = []  # roots in the memory of device arrays
        self.complaint = None  # a Complaint about a read, until it is known whether a thread writes the bytes later

    def start(self, launch):
        roots = {array.root: memory_of(array.data) for array in launch.arrays.values() if array.root.size}
        memories = [memory for memory in roots.values() if memory is not None]
        for root, memory in roots.items():
            if memories.count(memory) > 1:  # views that may overlap, so that one may be written and read through another
                mark_written(root.data)
            if "written" not in root.notes:
                root.notes["written"] = marks_of_host(root.data)
            if memory is not None and root.notes["written"] is not None:
                self.watched.append(root)
            if isinstance(root.data, Output) and root.notes["written"] is not None:
                self.outputs[root] = root.notes["written"].count(0)

    def access(self, thread, array, start_byte, byte_count, kind, frame):
        notes = array.root.notes
        marks = notes.get("written", UNKNOWN)
        if marks is UNKNOWN:
            marks = notes["written"] = None if array.space == "constant" else bytearray(array.root.span)
        if marks is None:
            return NO_MORE
        stop = start_byte + byte_count
        if kind != "write" and marks.find(b"\0", start_byte, stop) >= 0 and not waived_frame("unwritten", frame):
            self.report(thread, array, marks.find(b"\0", start_byte, stop), start_byte, byte_count)
        if self.complaint is not None:
            self.complaint.look(thread, array.root, start_byte, stop, kind, frame)
        if kind != "read":
            marks[start_byte:stop] = MARKS[byte_count] if byte_count < len(MARKS) else MARK * byte_count
            if array.space == "local" and b"\0" not in marks:
                notes["written"] = None

    def transfer_starts(self, transfer):
        marks = self.shared_marks(transfer.block)
        if transfer.kind == "read":
            written = np.frombuffer(marks, np.uint8).reshape(-1, CHUNK)[transfer.chunks].all(1)
            if not written.all():
                address = int(transfer.chunks[written.argmin()]) * CHUNK
                name = transfer.block.shared_name(address)
                fail(f"{transfer.unit} that this thread starts reads shared memory that nobody wrote: {name} (address {address})")

    def transfer_ends(self, transfer, threads, thing):
        if transfer.kind == "write":
            size = transfer.chunks.size * CHUNK
            self.shared_marks(transfer.block)[transfer.start : transfer.start + size] = MARK * size

    def shared_marks(self, block):
        """The marks of a block's shared memory."""
        notes = block.shared_root.notes
        if "written" not in notes:
            notes["written"] = bytearray(block.shared_root.span)
        return notes["written"]

    def report(self, thread, array, first, start_byte, byte_count):
        """Report a read of unwritten bytes; at once for local memory, which no other thread can write, else as a Complaint."""
        if array.space == "local":
            fail(f"a {byte_count}-byte read of memory that nobody wrote: the {array}, {element_at(array.root, first)}")
        if self.complaint is not None:
            return
        if array.space == "shared":
            what = f"shared memory that nobody wrote: {thread.block.shared_name(first)} (address {first})"
        else:
            what = f"memory that nobody wrote: the {array}, {element_at(array.root, first)}"
        error = failure(f"a {byte_count}-byte read of {what}")
        self.complaint = Complaint(error, thread, array.root, start_byte, start_byte + byte_count)

    def end_block(self, block):
        if self.complaint is not None and self.complaint.root.space == "shared":
            complaint, self.complaint = self.complaint, None
            raise complaint.verdict(True)

    def end(self):
        self.stopped(None)
        for root, before in self.outputs.items():
            missing = root.notes["written"].count(0)
            if 0 < missing < before:
                first = element_at(root, root.notes["written"].find(0))
                raise SimulationError(
                    f"no thread has written {missing // root.itemsize} of the {root.size} elements of the {root}; the first is {first}: "
                    "is the grid too small, or a condition too narrow?"
                )

    def stopped(self, error):
        for root in self.watched:
            mark_written(root.data, of_elements(root.data, np.frombuffer(root.notes["written"], bool)))
        # Errors after a read of unwritten memory are its consequences, except those that are the same mistake and name both threads.
        if self.complaint is not None and not any(cause in str(error) for cause in CAUSES):
            raise self.complaint.verdict(error is None)


class Complaint:
    """A read of unwritten bytes. The kernel continues for PATIENCE accesses, to find a thread that writes them later.

    readers: threads that have read the bytes too, whose writes give them no first value. change: what such a thread did, as a clause.
    """

    def __init__(self, error, thread, root, start, stop):
        self.error, self.thread, self.root, self.start, self.stop = error, thread, root, start, stop
        self.patience, self.readers, self.change = PATIENCE, {thread}, None

    def look(self, thread, root, start, stop, kind, frame):
        """Examine a later access; raise the error if it is the first write of the bytes, and name the writer in it, or after PATIENCE."""
        self.patience -= 1
        if self.patience < 0:
            raise self.verdict()
        if root is not self.root or start >= self.stop or self.start >= stop:
            return
        if kind != "write" or thread in self.readers:
            self.readers.add(thread)
            if kind != "read" and self.change is None:
                self.change = f"{self.writer(thread)} changes it at {describe(frame)}, but nobody gives it a value first"
            return
        self.change = f"{self.writer(thread)} writes it later, at {describe(frame)}: is a barrier or a wait missing?"
        raise self.verdict()

    def writer(self, thread):
        """A thread as text: relative to the one that has read."""
        if thread is self.thread:
            return "the same thread"
        return f"thread {tuple(thread.index)}" if thread.block is self.thread.block else f"block {tuple(thread.block.index)}"

    def verdict(self, ended=False):
        """The error, with what has happened to the bytes since. ended: whether all threads have ended that could write them."""
        change = self.change or ("nobody writes it later either" if ended else None)
        return SimulationError(f"{self.error}; {change}") if change else self.error


def element_at(root, byte):
    """The index of the element that holds a byte of a root array."""
    return "element " + "[" + ", ".join(map(str, place_of(root.data, byte))) + "]"
