"""Simulated vector types: `cuda.float32x4(a, b, c, d)`, with .x, .y, .z and .w."""

import functools
import re

from numba.cuda import stubs

from minllm.errors import SimulationError
from minllm.machine.numba_cuda import types
from minllm.sim.scalars import simulated_type

FIELDS = "xyzw"


def is_vector_stub(value):
    """Whether `value` is one of numba.cuda's vector types."""
    return isinstance(value, type) and issubclass(value, stubs.Stub) and re.fullmatch(r"u?(int|float)\d+x[1-4]", value.__name__) is not None


@functools.cache
def vector_type(name):
    """The class that simulates a vector type of numba.cuda, by its full name, such as "float32x4"."""
    element, _, count = name.rpartition("x")
    cast, fields = simulated_type(getattr(types, element)), FIELDS[: int(count)]

    class Vector:
        """A vector, built from numbers and the elements of other vectors."""

        __slots__ = tuple(fields)

        def __init__(self, *parts):
            values = [value for part in parts for value in elements(part)]
            if len(values) != len(fields):
                raise SimulationError(f"{name} is built from {len(fields)} numbers; given {len(values)}")
            for field, value in zip(fields, values):
                setattr(self, field, cast(value))

        def __repr__(self):
            return f"{name}({', '.join(repr(value) for value in elements(self))})"

    Vector.__name__ = Vector.__qualname__ = name
    return Vector


def elements(part):
    """The elements of a vector; [part] for a number."""
    fields = getattr(type(part), "__slots__", None)
    return [getattr(part, field) for field in fields] if fields and set(fields) <= set(FIELDS) else [part]
