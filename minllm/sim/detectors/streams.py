"""Races between streams, and between host and device, in programs for numba.cuda.

A launch or an asynchronous copy goes on by itself after the call. Two of them that touch the same bytes, one of them a write, must be
ordered: on one stream, by an event, by the default stream, which waits for all others and they for it, or because the host has waited for
the first. The host itself reads and writes pinned and managed memory, and must wait for the device before. The simulator runs everything at
once and in order; what is ordered on a GPU is decided by Lamport's happens-before, with one clock per stream and one for the host.
"""

import contextlib
import contextvars
import sys
from collections import deque
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.array_utils import byte_bounds

from minllm.errors import SimulationError
from minllm.sim.array_bytes import bytes_between, place_of
from minllm.sim.detectors.waivers import waived
from minllm.sim.monitor import Monitor
from minllm.sim.place import describe_instruction, kernel_frame

READ, WRITE, ATOMIC = 1, 2, 4
BITS = {"read": READ, "write": WRITE, "atomic": ATOMIC}
VERBS = {READ: "reads", WRITE: "writes", ATOMIC: "changes"}
MOST = 256  # launches and copies that are remembered

recording = contextvars.ContextVar("the TouchedBytes of the launch that runs", default=None)


class TouchedBytes(Monitor):
    """Notes which bytes of global memory a launch reads, writes and atomically changes."""

    spaces = ("global",)

    def __init__(self, record):
        self.record = record

    def start(self, launch):
        self.record.clear()

    def access(self, thread, array, start_byte, byte_count, kind, frame):
        self.marks_of(array.root, array.root.flat_bytes)[start_byte : start_byte + byte_count] |= BITS[kind]

    def mark(self, root, at, size, kind):
        """Note an access of many lanes: `size` bytes each, at these multiples of it. kind: as in lanes/accesses.py."""
        word = int.from_bytes(bytes([1 << kind]) * size, "little")
        self.marks_of(root, root.flat).view(f"u{size}")[at] |= np.array(word, f"u{size}")

    def marks_of(self, root, memory):
        if root not in self.record:
            self.record[root] = memory.__array_interface__["data"][0], np.zeros(-(-memory.nbytes // 16) * 16, np.uint8)
        return self.record[root][1]


class Part(NamedTuple):
    """Memory that a launch or a copy touches. marks: for each byte from `address` on, READ, WRITE and ATOMIC. data: the array."""

    address: int
    marks: np.ndarray
    data: Any
    name: str = ""


class Timeline:
    """A stream, or the host. known: {Timeline: up to which of its works this one comes after}."""

    def __init__(self, name):
        self.name, self.clock, self.known = name, 0, {}

    def join(self, known):
        for other, clock in known.items():
            self.known[other] = max(clock, self.known.get(other, 0))


class Work(NamedTuple):
    """A launch or a copy. what: its name for messages. pinned: [(the host's bytes that it may still read, a copy of them)]."""

    line: Timeline
    clock: int
    what: str
    parts: list
    code: Any
    offset: int
    pinned: list


class StreamOrder:
    """The order of a program's works on streams. It is not kept before the program makes a stream, or memory that host and device share."""

    def __init__(self):
        self.host, self.default = Timeline("the host"), Timeline("the default stream")
        self.lines, self.works, self.pinned, self.is_kept = {}, deque(maxlen=MOST), [], False

    def keep(self):
        self.is_kept = True

    def line(self, stream):
        """The Timeline of a stream; of the default one if it is false."""
        if not stream:
            return self.default
        if stream not in self.lines:
            self.lines[stream] = Timeline(f"stream {len(self.lines) + 1}")
        return self.lines[stream]

    # What orders works

    def arrive(self, stream):
        """The Timeline of a stream, with all that comes before its next work: what the host knows, and by the default stream's rule."""
        line = self.line(stream)
        line.join(self.host.known)
        for other in self.lines.values() if line is self.default else (self.default,):
            line.join(other.known)
        return line

    def synchronize(self, stream=None):
        """The host waits for a stream; for all of them if it is None or the default one."""
        for line in [self.line(stream)] if stream else [self.default, *self.lines.values()]:
            self.learn(line.known)

    def learn(self, known):
        """The host knows that works are done."""
        self.host.join(known)
        done = [work for work in self.works if self.host.known.get(work.line, 0) >= work.clock]
        if done:
            self.works = deque((work for work in self.works if work not in done), MOST)
        for work in done:
            for memory, before in work.pinned:
                if not np.array_equal(memory, before) and not waived("race", (work.code, work.offset)):
                    raise SimulationError(
                        f"race between host and device: the host has written an array that {work.what} on {work.line.name} may still read "
                        f"({describe_instruction(work.code, work.offset)}): synchronize before it is written"
                    )

    @contextlib.contextmanager
    def callback(self, stream):
        """The host's work within this context comes after what is on the stream so far."""
        before, self.host.known = self.host.known, {**self.host.known, **self.arrive(stream).known}
        yield
        self.host.known = before

    # Works

    @contextlib.contextmanager
    def launch(self, kernel, stream, arguments, shared):
        """A launch runs within this context. shared: for each argument, whether it is the kernel's own memory, not a copy for it."""
        if not self.is_kept:
            yield
            return
        record = {}
        token = recording.set(record)
        try:
            yield
        finally:
            recording.reset(token)
        copied = [one for one, is_shared in zip(arguments, shared) if not is_shared and isinstance(one, np.ndarray)]
        own = [one.__array_interface__["data"][0] for one in copied]
        parts = [Part(address, marks, root.data, root.name) for root, (address, marks) in record.items() if address not in own]
        line = self.add(f"kernel {kernel}", stream, parts)
        if own:  # a NumPy array is copied to the device and back, for which the host waits
            self.learn(line.known)

    def copy(self, what, stream, *parts, waits=False):
        """A copy. parts: (array, READ or WRITE), the host's own only if it is pinned; waits: whether the host waits for the end."""
        if self.is_kept:
            line = self.add(what, stream, [whole(*part) for part in parts])
            if waits:
                self.synchronize(stream) if not stream else self.learn(line.known)

    def add(self, what, stream, parts):
        """Add a work to a stream; returns its Timeline. Raises SimulationError if it races with another one."""
        line, frame = self.arrive(stream), kernel_frame(sys._getframe(1))
        frame = outside(frame)
        line.clock += 1
        line.known[line] = line.clock
        work = Work(line, line.clock, what, parts, frame.f_code, frame.f_lasti, [])
        self.compare(work)
        for other in self.works:  # what the device itself writes is no write of the host
            other.pinned[:] = [one for one in other.pinned if not any(writes(part, one[0]) for part in parts)]
        work.pinned.extend((memory, memory.copy()) for memory in map(self.pinned_bytes, parts) if memory is not None)
        self.works.append(work)
        return line

    def compare(self, work):
        """Raise SimulationError if a work, or an access of the host, races with one that is not ordered before it."""
        for other in self.works:
            if work.line.known.get(other.line, 0) >= other.clock:
                continue
            for part in work.parts:
                for before in other.parts:
                    byte = conflict(part, before)
                    if byte is not None and not waived("race", (work.code, work.offset), (other.code, other.offset)):
                        self.report(work, part, other, before, byte)

    def report(self, work, part, other, before, address):
        now, then = (VERBS[lowest(one.marks[address - one.address])] for one in (part, before))
        by_host = work.line is self.host
        data = max(part.data, before.data, key=lambda one: one.size)
        index = ", ".join(map(str, place_of(data, address - byte_bounds(data)[0])))
        where = f"element [{index}] of {part.name or before.name or 'an array'}"
        between = "host and device" if by_host else "streams"
        advice = "synchronize first" if by_host else "let one stream wait for an event of the other"
        raise SimulationError(
            f"race between {between}: {work.what}{'' if by_host else f' on {work.line.name}'} {now} {where}, which {other.what} on "
            f"{other.line.name} {then} (at {describe_instruction(other.code, other.offset)}), and nothing orders the two: {advice} "
            f"({describe_instruction(work.code, work.offset)})"
        )

    # The host

    def host_access(self, data, kind):
        """The host reads or writes memory that the device sees too. kind: READ or WRITE."""
        if self.is_kept and self.works and data.size:
            frame = outside(kernel_frame(sys._getframe(1)))
            self.compare(Work(self.host, 0, "the host", [whole(data, kind)], frame.f_code, frame.f_lasti, []))

    @contextlib.contextmanager
    def pin(self, *arrays):
        """Within this context the memory of these arrays is pinned."""
        ranges = [byte_bounds(array) for array in arrays if array.size]
        self.pinned += ranges
        yield
        for one in ranges:
            self.pinned.remove(one)

    def is_pinned(self, data):
        """Whether an array's memory is pinned, so that copies of it are asynchronous."""
        return any(start <= data.__array_interface__["data"][0] < stop for start, stop in self.pinned)

    def pinned_bytes(self, part):
        """The bytes of a part that is pinned memory of the host and only read; else None."""
        alone = self.pinned and part.marks.size and not part.marks.strides[0] and part.marks[0] == READ
        return bytes_between(part.data) if alone and self.is_pinned(part.data) else None


orders = [StreamOrder()]


def order():
    """The StreamOrder of the program that runs."""
    return orders[-1]


@contextlib.contextmanager
def new_order():
    """Within this context another program runs."""
    orders.append(StreamOrder())
    try:
        yield
    finally:
        orders.pop()


def outside(frame):
    """The innermost frame at or above `frame` that is the program's own."""
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("numpy.", "numba.", "contextlib")):
        frame = frame.f_back
    return kernel_frame(frame) or frame


def whole(data, kind):
    """The Part of an array that is touched as a whole; gaps are not told apart."""
    low, high = byte_bounds(data) if data.size else (0, 0)
    return Part(low, np.broadcast_to(np.uint8(kind), high - low), data)


def writes(part, memory):
    """Whether a part with writes overlaps a run of bytes."""
    first = memory.__array_interface__["data"][0]
    low, high = max(first, part.address), min(first + memory.size, part.address + part.marks.size)
    return low < high and bool((part.marks[low - part.address : high - part.address] & ~np.uint8(READ)).any())


def conflict(part, other):
    """The address of the first byte for which two parts conflict, or None. Two atomics or two reads do not."""
    low, high = max(part.address, other.address), min(part.address + part.marks.size, other.address + other.marks.size)
    if low >= high:
        return None
    one, two = (each.marks[low - each.address : high - each.address] for each in (part, other))
    bad = (one & WRITE != 0) & (two != 0) | (two & WRITE != 0) & (one != 0) | (one & ATOMIC != 0) & (two & READ != 0)
    bad |= (two & ATOMIC != 0) & (one & READ != 0)
    return low + int(bad.argmax()) if bad.any() else None


def lowest(marks):
    """The bit to name of a byte's marks: a write before an atomic before a read."""
    return next(bit for bit in (WRITE, ATOMIC, READ) if marks & bit)
