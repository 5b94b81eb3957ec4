"""Arrays that report every access to a monitor: a tracer counts accesses, a detector checks them."""

import sys

from minllm.sim.arrays import CheckedArray
from minllm.sim.monitor import NO_MORE
from minllm.sim.place import is_own, kernel_frame
from minllm.sim.polling import count_poll
from minllm.sim.records import Record
from minllm.sim.scalars import Carrier
from minllm.sim.thread import current_thread


class MonitoredArray(CheckedArray):
    """A CheckedArray that reports every access to a Monitor.

    root: the whole array that this one is part of. notes (of a root): data that monitors attach to the memory. carried (of a root):
    {start byte: (element, Carrier)} of elements that were stored as a Carrier. reports: the monitors' `access` functions, without those
    that have returned NO_MORE. stored: the value of the store that is being reported, else None.
    """

    __slots__ = ("monitor", "reports", "root", "notes", "carried", "strides", "stored")

    def __init__(self, data, space="global", base=0, name="", monitor=None, root=None):
        super().__init__(data, space, base, name)
        self.monitor, self.reports = monitor, monitor.report_to[space]
        self.root = self if root is None else root
        self.notes, self.carried = {} if root is None else None, None
        self.strides, self.stored = data.strides, None

    def part(self, data, offset):
        found = type(self)(data, self.space, self.base + offset, self.name, self.monitor, self.root)
        found.reports = self.reports
        return found

    def tell(self, thread, start, count, kind, frame):
        """Report an access; frame: the one that indexes the array, in the kernel or in the simulator."""
        if is_own(frame.f_code.co_filename):
            frame = kernel_frame(frame)
        for report in self.reports:
            if report(thread, self, start, count, kind, frame) is NO_MORE:
                self.reports = tuple(other for other in self.reports if other is not report)

    def start_byte(self, index):
        """The offset of an existing element from the start of the root, in bytes."""
        if type(index) is tuple:
            start = self.base
            for position, stride in zip(index, self.strides):
                start += position * stride
            return start
        return self.base + index * self.strides[0]

    def look_at(self, index):
        """An index counted from the start; reported first if it is negative or not made of plain ints."""
        for position in index if type(index) is tuple else (index,):
            if type(position) is int:
                if position >= 0:
                    continue
            elif type(position) is slice or type(position) is str:
                continue
            self.monitor.index(current_thread(), self, index)
            return self.from_start(index)
        return index

    def __getitem__(self, index):
        if type(index) is int and 0 <= index < self.quick:  # fast path for the common case
            found = self.data.item(index) if self.integer else self.data[index]
            start = self.base + index * self.strides[0]
        else:
            index = self.look_at(index)
            found = CheckedArray.__getitem__(self, index)
            if isinstance(found, (CheckedArray, Record)):
                return found
            start = self.start_byte(index)
        if self.reports:
            self.tell(current_thread(), start, self.itemsize, "read", sys._getframe(1))
        if self.integer and self.root.carried is not None:
            element, carrier = self.root.carried.get(start, (None, None))
            return carrier if element == found else found
        return found

    def wraps(self, index, exact):
        carrier = self.monitor.wrapped_store(self, CheckedArray.__getitem__(self, index), exact)
        if carrier is not None:
            self.carry(index, carrier)

    def carry(self, index, carrier):
        """Keep a Carrier with the element that has been stored."""
        if self.root.carried is None:
            self.root.carried = {}
        self.root.carried[self.start_byte(index)] = CheckedArray.__getitem__(self, index), carrier

    def __setitem__(self, index, value):
        if type(value) is self.dtype.type and type(index) is int and 0 <= index < self.quick:  # fast path for floats
            self.data[index] = value
            start = self.base + index * self.strides[0]
        else:
            index = self.look_at(index)
            if (type(index) is not int or self.ndim != 1) and self.selects_part(index):
                self[index].fill(value)
                return
            self.store(index, value)
            start = self.start_byte(index)
        if self.reports:
            self.stored = value
            self.tell(current_thread(), start, self.itemsize, "write", sys._getframe(1))
            self.stored = None

    def store(self, index, value):
        """Store to an element, and keep the value as a Carrier if it is one."""
        if self.root.carried is not None:
            self.root.carried.pop(self.start_byte(index), None)
        CheckedArray.__setitem__(self, index, value)
        if isinstance(value, Carrier):
            value.stored(self)
            if self.integer:
                self.carry(index, value)

    def atomic(self, index, change):
        index = self.look_at(index)
        old = CheckedArray.__getitem__(self, index)
        new = change(old)
        CheckedArray.__setitem__(self, index, new)
        if self.reports:
            self.tell(current_thread(), self.start_byte(index), self.itemsize, "atomic", sys._getframe(1))
        count_poll(current_thread(), new != old)
        return old

    def window(self, index, count, alignment=None, kind="read", thread=None):
        if type(index) is not int:
            self.monitor.index(current_thread(), self, index)
        found = CheckedArray.window(self, index, count, alignment)
        if self.reports:
            self.tell(current_thread() if thread is None else thread, self.base + int(index) * self.itemsize, count, kind, sys._getframe(1))
        return found


def checked(data, space="global", base=0, name="", monitor=None, root=None):
    """A CheckedArray, or with a monitor a MonitoredArray or the monitor's own `array_class`."""
    if monitor is None:
        return CheckedArray(data, space, base, name)
    return (monitor.array_class or MonitoredArray)(data, space, base, name, monitor, root)
