"""Undefined values: results of a shuffle for lanes that read from a lane outside the mask.

    total += cuda.shfl_down_sync(0xFFFF, total, 8)       # lanes 8 to 15 read from lanes 16 to 23

In a tree of shuffles some lanes get such values, which are not used. So under this detector they are numbers that carry their origin
through arithmetic, and only their use in a store to global or shared memory, or as an index, is reported.
"""

import functools
import sys

from minllm.sim.arrays import fail
from minllm.sim.detectors.waivers import waived_frame
from minllm.sim.monitor import Monitor
from minllm.sim.place import describe_instruction, kernel_frame
from minllm.sim.scalars import Carrier

OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")


class Undefined(Carrier):
    """Base class of undefined numbers. why: the origin of the value, as text."""

    def with_value(self, value):
        return undefined(value, self.why)

    def stored(self, array):
        if array.space != "local" and not waived_frame("undefined", kernel_frame(sys._getframe(1))):
            fail(f"an undefined value is stored in the {array}; it comes from {self.why}")


def undefined(value, why):
    """The number as an Undefined one; other values are returned unchanged."""
    kind = type(value)
    if issubclass(kind, Undefined) or not hasattr(kind, "__add__") or kind in (bool, tuple):
        return value
    made = undefined_type(kind)(value)
    made.why = why
    return made


@functools.cache
def undefined_type(kind):
    """The subclass of a number's type with operators that return undefined numbers."""
    names = [f"__{side}{name}__" for name in OPERATORS for side in ("", "r")] + ["__neg__", "__abs__", "__invert__"]
    operators = {name: carry(getattr(kind, name)) for name in names if hasattr(kind, name)}
    return type(f"undefined {kind.__name__}", (kind, Undefined), operators)


def carry(plain):
    """An operator of an undefined number, which returns an undefined number of the same origin."""

    def operate(self, *others):
        found = plain(self, *others)
        return found if found is NotImplemented else undefined(found, self.why)

    return operate


class UndefinedValues(Monitor):
    """Raises SimulationError if an undefined value is stored or used as an index, and at operations without a defined result."""

    def undefined(self, value, why, place):
        return undefined(value, f"{why} ({describe_instruction(*place)})")

    def undefined_result(self, why):
        if not waived_frame("undefined", kernel_frame(sys._getframe(1))):
            fail(why)

    def index(self, thread, array, index):
        for position in index if type(index) is tuple else (index,):
            if isinstance(position, Undefined) and not waived_frame("undefined", kernel_frame(sys._getframe(1))):
                fail(f"an undefined value is an index into the {array}; it comes from {position.why}")
