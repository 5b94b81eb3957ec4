"""Integer overflow in index arithmetic: a 32-bit cast, or a store in an array of 32-bit integers, that changes an index.

    x[int32(row * stride + column)]          # beyond 2**31 elements the cast wraps, and the kernel reads another element
    offsets[i] = row * stride                # an int32 array: the store wraps

Integers that wrap are common and right in random numbers and hashes. So under this detector a cast that wraps returns a `Wrapped` integer,
which also carries the exact value and the position of the cast through sums, differences, products and quotients, and through an array.
Only an index that differs from its exact value is reported: uint32(5 + uint32(-3)) is 2 both ways. Bit operations and remainders drop the
exact value.
"""

import functools
import sys

from minllm.sim.arrays import fail
from minllm.sim.detectors.undefined import Undefined, undefined
from minllm.sim.detectors.waivers import waived_frame
from minllm.sim.monitor import Monitor
from minllm.sim.place import describe_instruction, kernel_frame
from minllm.sim.scalars import WHOLE, Carrier, IntegerType, simulated_type


class Wrapped(int, Carrier):
    """A wrapped integer. exact: its exact value; place: (code, offset) of the instruction that wrapped it; how: "cast" or "store"."""

    def __new__(cls, value, exact, place, how):
        made = super().__new__(cls, value)
        made.exact, made.place, made.how = exact, place, how
        return made


def exactly(value):
    """The exact value of a Wrapped integer; other values are returned unchanged."""
    return value.exact if type(value) is Wrapped else value


def carry(name):
    """An operator of Wrapped, which also computes the exact result."""
    plain = getattr(int, name)

    def operate(self, other):
        value = plain(self, other)
        if value is NotImplemented or type(other) not in (int, Wrapped):
            return value
        exact = plain(self.exact, exactly(other))
        return value if value == exact else Wrapped(value, exact, self.place, self.how)

    return operate


for _name in ("add", "sub", "mul", "floordiv", "lshift"):
    setattr(Wrapped, f"__{_name}__", carry(f"__{_name}__"))
    if _name in ("add", "sub", "mul"):
        setattr(Wrapped, f"__r{_name}__", carry(f"__r{_name}__"))


class WatchedIntegerType(IntegerType):
    """An integer cast that returns a Wrapped integer if it wraps."""

    def __call__(self, value):
        if type(value) is int and self.least <= value <= self.greatest:  # fast path for the common case
            return value
        wrapped = IntegerType.__call__(self, value)
        if type(value) is not int and isinstance(value, Undefined):
            return undefined(wrapped, value.why)
        if self.bits < 32:
            return wrapped
        exact = exactly(value)
        if not isinstance(exact, WHOLE) or int(exact) == wrapped:
            return wrapped
        if type(value) is Wrapped:
            return Wrapped(wrapped, int(exact), value.place, value.how)
        frame = kernel_frame(sys._getframe(1))
        return Wrapped(wrapped, int(exact), (frame.f_code, frame.f_lasti), "cast")


@functools.cache
def watched_type(numba_type):
    """Like scalars.simulated_type, with WatchedIntegerType for integers."""
    plain = simulated_type(numba_type)
    return WatchedIntegerType(plain.dtype) if isinstance(plain, IntegerType) else plain


class IndexOverflow(Monitor):
    """Raises SimulationError at an index that a 32-bit cast or store has changed."""

    scalar_type = staticmethod(watched_type)  # the casts of kernels under this monitor

    def wrapped_store(self, array, element, exact):
        frame = kernel_frame(sys._getframe(1))
        return Wrapped(element, exact, (frame.f_code, frame.f_lasti), "store") if array.itemsize >= 4 else None

    def index(self, thread, array, index):
        for position in index if type(index) is tuple else (index,):
            if type(position) is Wrapped and not waived_frame("overflow", kernel_frame(sys._getframe(1))):
                wrapped = f"without the 32-bit {position.how} at {describe_instruction(*position.place)}"
                fail(f"index {int(position)} into the {array} has overflowed: it is {position.exact} {wrapped}")
