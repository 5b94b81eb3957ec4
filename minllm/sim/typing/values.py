"""Values in type inference: the type, the size, and the value itself if it is a constant."""

import functools
from typing import Any, NamedTuple

import numpy as np

from minllm.machine.numba_cuda import types
from minllm.sim.typing.rules import argument_type, common_type, context, element_type

AXIS_BITS = 31  # axes of arrays in the simulator are shorter than 2**31


class Constant:
    """An object that is known at inference: a function, a module, a number of a closure.

    prunes: whether Numba decides a condition with it before it infers types (branches.py).
    """

    __slots__ = ("prunes", "value")

    def __init__(self, value, prunes=False):
        self.value, self.prunes = value, prunes

    def __eq__(self, other):
        same_type = type(self) is type(other) and type(self.value) is type(other.value) and self.prunes == other.prunes
        return same_type and (self.value is other.value or (type(self.value) in (int, bool, float) and self.value == other.value))

    def __hash__(self):
        return hash(self.value) if type(self.value) in (int, bool, float) else id(self.value)


class Value(NamedTuple):
    """The inferred properties of an expression or variable.

    type: the Numba type, None if unknown. bits: an integer's magnitude is below 2**bits. wide: whether an integer may be outside its type's
    range, because Python's integers do not wrap. items, fields: the Values and field names of a tuple. element: the Value of an iterator's
    elements.
    """

    type: Any = None
    bits: int = 0
    wide: bool = False
    constant: Constant | None = None
    items: tuple | None = None
    fields: tuple | None = None
    element: Any = None


UNKNOWN = Value()
NOTHING = Value(types.none, constant=Constant(None, prunes=True))


# Classes of Numba's types are abstract base classes, of which `isinstance` takes several times as long as a look-up.
integers = functools.cache(lambda kind: issubclass(kind, types.Integer))
floats = functools.cache(lambda kind: issubclass(kind, (types.Float, types.bfloat16.__class__)))


def is_integer(type):
    """Whether a Numba type is an integer of any width."""
    return integers(type.__class__)


def is_float(type):
    """Whether a Numba type is a floating-point number of any width."""
    return floats(type.__class__)


def is_scalar(type):
    """Whether a Numba type is a number or a boolean that inference follows."""
    return integers(type.__class__) or floats(type.__class__) or type == types.boolean


def range_bits(type):
    """Bits of the magnitude of an integer type's values."""
    return 1 if type == types.boolean else type.bitwidth - type.signed


def of_type(type):
    """The Value of something of which only the Numba type is known."""
    if isinstance(type, types.Literal):
        return of_constant(type.literal_value)
    if is_integer(type) or type == types.boolean:
        return Value(type, range_bits(type))
    if isinstance(type, types.NoneType):
        return NOTHING
    if isinstance(type, types.BaseTuple):
        return Value(type, items=tuple(map(of_type, type)), fields=getattr(type, "fields", None))
    return Value(type)


def of_constant(value):
    """The Value of an object of a closure, a module or the code."""
    known = Constant(value)
    if value is None:
        return NOTHING
    if isinstance(value, (bool, int, np.integer)):
        type = element_type(value.dtype) if isinstance(value, np.integer) else argument_type(value)
        return Value(type, int(value).bit_length(), constant=Constant(value if isinstance(value, bool) else int(value)))
    if hasattr(value, "__cuda_array_interface__"):
        return Value(argument_type(value))
    if isinstance(value, tuple):
        return Value(items=tuple(map(of_constant, value)), fields=getattr(value, "_fields", None), constant=known)
    if isinstance(value, (float, complex, np.generic, np.ndarray)):
        return Value(argument_type(value), constant=None if isinstance(value, np.ndarray) else known)
    return Value(constant=known)


def numba_type(value):
    """The Numba type of a Value, for look-ups in Numba's typing context; None if unknown."""
    if value.type is not None:
        return value.type
    if value.items is not None:
        found = tuple(map(numba_type, value.items))
        return None if None in found else types.Tuple(found)
    if value.constant is not None:
        if type(value.constant.value) is str:
            return types.literal(value.constant.value)
        try:
            return context().resolve_value_type(value.constant.value)
        except Exception:
            return None
    return None


def literal_type(value):
    """Like numba_type, with an IntegerLiteral for a known integer."""
    if value.constant is not None and type(value.constant.value) is int:
        return types.literal(value.constant.value)
    return numba_type(value)


def may_be_negative(value):
    """Whether a value may be negative: a negative constant, or a signed integer that is not constant."""
    if value.constant is not None:
        return value.constant.value < 0
    return is_integer(value.type) and value.type.signed


def must_cast(value, wanted):
    """Whether the simulator's value must be cast to become a value of the type `wanted`."""
    given = value.type
    if not (is_scalar(given) and is_scalar(wanted)):
        return False
    if is_float(given) or is_float(wanted) or wanted == types.boolean:
        return given != wanted
    if given == types.boolean or value.wide:
        return True
    return value.bits > range_bits(wanted) or (not wanted.signed and may_be_negative(value))


def steps(value, wanted):
    """The casts that convert a value to the type `wanted`; a wide integer that becomes a float is wrapped first."""
    return (value.type, wanted) if value.wide and not is_integer(wanted) else (wanted,)


def changes_type(value, wanted):
    """Whether a variable's value has to be cast because the variable has another type elsewhere."""
    return value.type != wanted and must_cast(value, wanted)


def met(first, second):
    """The Constant of a variable that has either of two: of two assignments of the same number, one that decides no condition."""
    if first is second or first is None or second is None:
        return first if first is second else None
    first, second = Constant(first.value), Constant(second.value)
    return first if first == second else None


def merge(first, second):
    """The Value of a variable that has either of two Values."""
    constant = met(first.constant, second.constant)
    if first == second:
        return first if constant is first.constant else first._replace(constant=constant)
    if is_scalar(first.type) and is_scalar(second.type):
        type = common_type(first.type, second.type)
        if not is_scalar(type):
            return UNKNOWN
        wide = is_integer(type) and (first.wide or second.wide)  # what becomes a float is wrapped before (steps)
        return Value(type, max(first.bits, second.bits), wide, constant)
    if first.items is not None and second.items is not None and len(first.items) == len(second.items) and first.fields == second.fields:
        return Value(items=tuple(map(merge, first.items, second.items)), fields=first.fields, constant=constant)
    return Value(first.type) if first.type == second.type and first.type is not None else UNKNOWN
