"""Reads of memory that was never written.

Every byte of shared and local memory has a mark that a write sets. A global array counts as written by the host, except for elements with
all bits set (the poison): in floating-point arrays, where this is a NaN that no arithmetic produces, and in arrays made by `unwritten`, of
any dtype.
"""

import numpy as np

from minllm.sim.array_bytes import bytes_between, place_of
from minllm.sim.arrays import fail, poisoned
from minllm.sim.monitor import NO_MORE, Monitor
from minllm.sim.transfer import CHUNK

MARK = b"\1"
MARKS = [MARK * count for count in range(129)]
UNKNOWN = object()  # nothing is noted yet


class Unwritten(np.ndarray):
    """An array whose elements count as unwritten while all their bits are set."""


def unwritten(shape, dtype):
    """An array with all bits set: detectors report a kernel that reads an element before writing it."""
    return poisoned(shape, np.dtype(dtype)).view(Unwritten)


def marks_of_host(data):
    """One mark per byte, 0 for elements that hold the poison; None if all are written."""
    if data.dtype.kind in "iub" and not isinstance(data, Unwritten):
        return None
    poison = (bytes_between(data).reshape(-1, data.dtype.itemsize) == 0xFF).all(1)
    return bytearray(np.repeat(~poison, data.dtype.itemsize).astype(np.uint8).tobytes()) if poison.any() else None


class UnwrittenReads(Monitor):
    """Raises SimulationError at a read of a byte that was never written."""

    def start(self, launch):
        for array in launch.arrays.values():
            root = array.root
            if root.size and "written" not in root.notes:
                root.notes["written"] = marks_of_host(root.data)

    def access(self, thread, array, start_byte, byte_count, kind, frame):
        notes = array.root.notes
        marks = notes.get("written", UNKNOWN)
        if marks is UNKNOWN:
            marks = notes["written"] = None if array.space == "constant" else bytearray(array.root.span)
        if marks is None:
            return NO_MORE
        stop = start_byte + byte_count
        if kind != "write" and marks.find(b"\0", start_byte, stop) >= 0:
            self.report(thread, array, marks.find(b"\0", start_byte, stop), start_byte, byte_count)
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
        """Fail with a message that names the array and the element."""
        if array.space == "shared":
            fail(f"a {byte_count}-byte read of shared memory that nobody wrote: {thread.block.shared_name(first)} (address {first})")
        fail(f"a {byte_count}-byte read of memory that nobody wrote: the {array}, {element_at(array.root, first)}")


def element_at(root, byte):
    """The index of the element that holds a byte of a root array."""
    return "element " + "[" + ", ".join(map(str, place_of(root.data, byte))) + "]"
