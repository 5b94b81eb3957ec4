"""Count a kernel's float32 FLOPs, by a type that counts its operations.

While a kernel is traced, every float32 from an array, a cast, a math function or an emulated instruction is a `CountedFloat32`: it computes
like float32, and each addition, subtraction, multiplication and division counts as one FLOP. A fused multiply-add counts as two, a function
(exp, 1 / sqrt(x), ex2, ...) as one. Comparisons, minima, maxima, signs, conversions and integer arithmetic do not count.
"""

import functools
import operator
import types as python_types
from collections import Counter

import numpy as np

from minllm.sim.cuda_math import SimulatedMath
from minllm.sim.cuda_module import SimulatedCuda
from minllm.sim.fused import fma_of
from minllm.sim.monitored_arrays import MonitoredArray
from minllm.sim.rewrite import CUDA, LIBDEVICE, MATH, SimulatedModule, names_used
from minllm.sim.scalars import Cast

NOT_ARITHMETIC = {"fabs", "fabsf", "floor", "ceil", "trunc", "isnan", "isinf", "isfinite", "copysign", "min", "max", "fmin", "fmax"}
COUNTED_INSTRUCTIONS = {"ex2", "rcp", "tanh_approx"}

operations = Counter()  # kind -> FLOPs of the launch that is being traced


class CountedFloat32(np.float32):
    """A float32 that counts its arithmetic operations."""

    __slots__ = ()


def counted(value):
    """A float32, or each float32 in a tuple, as CountedFloat32; other values are returned unchanged."""
    if type(value) is np.float32:
        return CountedFloat32(value)
    return tuple(map(counted, value)) if type(value) is tuple else value


def counting(name, kind):
    """An arithmetic operator of CountedFloat32. name: a method of float32; kind: the key of its count in `operations`."""
    plain = getattr(np.float32, name)

    def operate(self, other):
        value = plain(self, other)
        if type(value) is np.float32:
            operations[kind] += 1
            return CountedFloat32(value)
        return value

    return operate


for _name, _kind in dict(add="add", sub="add", mul="multiply", truediv="divide", pow="function").items():
    for _side in ("", "r"):
        setattr(CountedFloat32, f"__{_side}{_name}__", counting(f"__{_side}{_name}__", f"float32 {_kind}"))
CountedFloat32.__neg__ = lambda self: CountedFloat32(np.float32.__neg__(self))
CountedFloat32.__abs__ = lambda self: CountedFloat32(np.float32.__abs__(self))


class CountedArray(MonitoredArray):
    """A MonitoredArray that returns its float32 elements as CountedFloat32."""

    __slots__ = ()

    def __getitem__(self, index):
        return counted(MonitoredArray.__getitem__(self, index))


class CountedCast(Cast):
    """The cast to float32, which returns a CountedFloat32."""

    def __call__(self, value):
        return CountedFloat32(value)


class CountedModule:
    """A module that a kernel uses, with each attribute replaced by `change(name, value)`."""

    def __init__(self, module, change):
        self._module, self._change = module, change

    def __getattr__(self, name):
        found = self._change(name, getattr(self._module, name))
        setattr(self, name, found)
        return found


def counted_function(function, count):
    """The function with CountedFloat32 for float32 results; a call that returns one counts as `count` FLOPs."""

    def call(*arguments):
        value = counted(function(*arguments))
        if count and type(value) is CountedFloat32:
            operations["float32 function" if count == 1 else "float32 multiply-add"] += count
        return value

    call.__name__ = getattr(function, "__name__", "")
    return call


def counted_fma(*operands):
    """The fma that type inference puts in the place of a product and a sum of float32: two FLOPs."""
    operations["float32 multiply-add"] += 2
    return CountedFloat32(fma_of(np.float32)(*map(uncounted, operands)))


def uncounted(value):
    """A number as a float32 itself, which takes operators less time than CountedFloat32 does."""
    return +value if isinstance(value, np.float32) else np.float32(value)


def operations_of(name):
    """(kind, FLOPs) of a function of math or libdevice: a function has one, a fused multiply-add two, what is no arithmetic none."""
    return ("multiply-add", 2) if name.startswith("fma") else ("function", int(name not in NOT_ARITHMETIC))


def counted_math(name, found):
    """The counted version of `found`, called `name` in math or libdevice."""
    return counted_function(found, operations_of(name)[1]) if callable(found) else found


class CountedCuda(SimulatedCuda):
    """The module `numba.cuda`, of which only fma counts FLOPs."""

    fma = staticmethod(counted_function(lambda *operands: CUDA.fma(*(+one if type(one) is CountedFloat32 else one for one in operands)), 2))


@functools.cache
def replaced():
    """{id of what a kernel refers to: what counts in its place}, made for the first trace, because the fma of float32 is compiled."""
    modules = {id(module): CountedModule(module, counted_math) for module in (MATH, LIBDEVICE)}
    return {id(CUDA): CountedCuda(), **modules, id(fma_of(np.float32)): counted_fma}


def count_in(function, done):
    """Make a kernel's simulated twin count FLOPs, by replacing its globals and closure variables. done: twins that count already."""
    if function not in done:
        done.add(function)
        for name in names_used(function.__code__) & set(function.__globals__):
            function.__globals__[name] = replacement(function.__globals__[name], done)
        for cell in function.__closure__ or ():
            cell.cell_contents = replacement(cell.cell_contents, done)
    return function


def replacement(value, done):
    """The object that a counted kernel uses instead of `value`."""
    if id(value) in replaced():
        return replaced()[id(value)]
    if isinstance(value, SimulatedModule):
        return CountedModule(value, lambda name, found: replacement(found, done))
    if value is np.float32:
        return CountedCast(value)
    if isinstance(value, tuple):
        items = [replacement(item, done) for item in value]
        return value if all(map(operator.is_, items, value)) else value._make(items) if hasattr(value, "_make") else tuple(items)
    if not isinstance(value, python_types.FunctionType):
        return value
    if hasattr(value, "simulated_twin_of"):
        return count_in(value, done)
    if value.__module__ == SimulatedMath.__module__:  # imported from math
        return counted_math(value.__name__, value)
    is_instruction = (value.__module__ or "").startswith("minllm.ptx.")
    return counted_function(value, int(is_instruction and value.__name__ in COUNTED_INSTRUCTIONS))
