"""The types of calls, and the casts that their arguments need."""

import ast
import functools
import inspect
import operator
import re
import types as python_types

import numba.cuda
import numpy as np

from minllm.machine.numba_cuda import _Intrinsic, types
from minllm.sim.typing.arithmetic import MAXIMA, NUMPY_SCALARS, ROUND_TO, TO_INTEGERS, binary, replacement
from minllm.sim.typing.branches import pruning
from minllm.sim.typing.expressions import AXIS, Expressions, Method, among
from minllm.sim.typing.nested import Nested
from minllm.sim.typing.refusals import is_builtin, refused_allocation, refused_call
from minllm.sim.typing.rules import call_signature, element_type, intrinsic_signature, method_overload_of, overload_of
from minllm.sim.typing.values import (
    UNKNOWN,
    Constant,
    Value,
    is_float,
    is_integer,
    is_scalar,
    literal_type,
    must_cast,
    numba_type,
    of_constant,
    of_type,
    range_bits,
)

ARRAYS = [numba.cuda.shared.array, numba.cuda.local.array]
WIDTHS = [getattr(numba.cuda, name) for name in ("popc", "clz", "ffs", "brev")]
SHUFFLES = [getattr(numba.cuda, f"shfl{name}_sync") for name in ("", "_up", "_down", "_xor")]


class Width(int):
    """The width in bits of an integer intrinsic's operand."""


class Calls(Expressions):
    """Expressions with calls, whose replacements it records in `self.found`.

    A subclass also keeps `statement`, and `partial`, the variables that may have no value. It implements
    `call_device(node, function, arguments, named)` and `is_parameter_of_device_function(node)`.
    """

    def Call(self, node):
        self.found.calls.pop(node, None)
        function = self.value(node.func)
        arguments = self.items_of(node.args)
        named = {keyword.arg: self.settled(keyword.value) for keyword in node.keywords}
        if function.constant is None or arguments is None:
            return self.unknown_call(node, arguments or ())
        called = function.constant.value
        if isinstance(called, Method):
            return self.method(node, called.array, called.name, arguments, named)
        if isinstance(called, types.Type) or (isinstance(called, type) and issubclass(called, NUMPY_SCALARS)):
            return self.conversion(node, called, arguments)
        if isinstance(called, type) and issubclass(called, tuple) and hasattr(called, "_fields"):
            items = [*arguments, *(named[field] for field in called._fields[len(arguments) :] if field in named)]
            return Value(items=tuple(items), fields=called._fields) if len(items) == len(called._fields) else UNKNOWN
        if isinstance(called, Nested):
            return self.call_nested(node, called, arguments, named)
        if hasattr(called, "py_func"):
            return self.call_device(node, called, arguments, named)
        if isinstance(called, _Intrinsic):
            return self.intrinsic(node, called, arguments, named)
        if among(called, ARRAYS):
            return self.new_array(node, arguments, named)
        return self.known_function(node, called, arguments, named)

    def positional(self, node, values):
        """Pairs (expression, Value) of positional arguments; empty if one of them is an unpacked tuple."""
        return () if any(isinstance(argument, ast.Starred) for argument in node.args) else zip(node.args, values)

    def instance(self, node, value, classes):
        """The Value of isinstance(x, classes), which Numba decides by the type of x: an int32 is no int, and a float32 no float."""
        names = [one.constant and one.constant.value for one in classes.items or (classes,)]
        kind = numba_type(value)
        if kind is None or not all(any(name is one for one in CLASSES) for name in names):
            return self.unknown_call(node, [value, classes])
        found = any(kind == CLASSES[name] or (name is tuple and isinstance(kind, types.BaseTuple)) for name in names)
        self.found.calls[node] = ALWAYS[found]
        return Value(types.boolean, 1, constant=Constant(found, prunes=True))

    def unknown_call(self, node, arguments):
        """The Value of a call of an unknown function."""
        self.settle(node, arguments)
        return UNKNOWN

    def settle(self, node, arguments):
        """Record casts that wrap all arguments of a call into the ranges of their types."""
        for argument, value in self.positional(node, arguments):
            if value.wide:
                self.cast(argument, value, value.type)

    def cast_arguments(self, node, arguments, wanted):
        """Record casts of arguments to the types of a signature."""
        for (argument, value), kind in zip(self.positional(node, arguments), wanted):
            if is_float(kind) and is_scalar(value.type):
                self.to_type(argument, value, kind)
            elif value.wide:
                self.cast(argument, value, value.type)

    def conversion(self, node, wanted, arguments):
        """The Value of a conversion: float32(x), int32(x), numpy.uint8(x)."""
        wanted = wanted if isinstance(wanted, types.Type) else element_type(np.dtype(wanted))
        if len(arguments) != 1 or not is_scalar(wanted):
            return UNKNOWN
        value = arguments[0]
        if is_float(wanted):
            if value.wide and node.args:
                self.cast(node.args[0], value, value.type)
            return Value(wanted)
        result = of_type(wanted)
        if is_integer(value.type) and not value.wide and not must_cast(value, wanted):
            return result._replace(bits=value.bits, constant=value.constant and Constant(value.constant.value))
        return result

    def check_call(self, node, called, kinds, signature):
        """Raise SimulationError for a call that numba-cuda does not compile."""
        if any(self.is_parameter_of_device_function(argument) and kind in types.integer_domain for argument, kind in zip(node.args, kinds)):
            return  # it may be a literal in the call
        if why := refused_call(called, kinds, signature):
            self.refuse(node, f"{why}: convert the arguments to another type, or take another function")

    def intrinsic(self, node, called, arguments, named):
        """The Value of a call of an intrinsic, such as an instruction; a variable that a shuffle reads may lack a value."""
        parameters = list(inspect.signature(called._defn).parameters)[1:] if named else ()
        arguments = [*arguments, *(named[name] for name in parameters[len(arguments) :] if name in named)]
        kinds = tuple(map(numba_type, arguments))
        literals = tuple(map(literal_type, arguments))
        signature = None if None in kinds else intrinsic_signature(called, kinds, literals)
        self.check_call(node, called, kinds, signature)
        if signature is None:
            return self.unknown_call(node, arguments)
        self.cast_arguments(node, arguments, signature.args)
        if among(called, SHUFFLES):
            given = node.args[1] if len(node.args) > 1 else next((one.value for one in node.keywords if one.arg == "value"), None)
            if isinstance(given, ast.Name) and given.id in self.partial:
                self.found.placeholders.setdefault(self.statement, {})[given.id] = arguments[1].type
        return of_type(signature.return_type)

    def new_array(self, node, arguments, named):
        """The Value of a call of cuda.shared.array or cuda.local.array."""
        shape = arguments[0] if arguments else named.get("shape", UNKNOWN)
        self.check_shape(node.args[0] if node.args else next((one.value for one in node.keywords if one.arg == "shape"), node), shape)
        element = arguments[1] if len(arguments) > 1 else named.get("dtype", UNKNOWN)
        dtype = element.constant and dtype_of_constant(element.constant.value)
        if dtype is None:
            return UNKNOWN
        return Value(types.Array(dtype, 1 if shape.items is None else len(shape.items), "C"))

    def check_shape(self, node, shape):
        """Raise SimulationError for a shape that Numba rejects: it must be known at compile time, and written without arithmetic."""
        if isinstance(node, (ast.Tuple, ast.List)) and shape.items is not None:
            for element, extent in zip(node.elts, shape.items):
                self.check_shape(element, extent)
        elif is_integer(shape.type) and shape.constant is not None and is_computed(node):
            self.refuse(
                node, "the shape of a shared or local array is computed: Numba takes a number for it, or a name outside of the kernel"
            )
        elif is_integer(shape.type) and shape.constant is None and not self.is_parameter_of_device_function(node):
            self.refuse(
                node,
                "the shape of a shared or local array is known only at run time, and a GPU needs it when the kernel is compiled: take a "
                "constant, or for shared memory shape 0 and the size in bytes at the launch",
            )

    def method(self, node, array, name, arguments, named):
        """The Value of a method call of an array: view, reshape, or one registered by `@overload_method`; UNKNOWN for others."""
        if name == "view" and arguments and arguments[0].constant is not None:
            dtype = dtype_of_constant(arguments[0].constant.value)
            return Value(types.Array(dtype, array.type.ndim, array.type.layout)) if dtype is not None else UNKNOWN
        if name == "reshape":
            shape = arguments[0].items if len(arguments) == 1 and arguments[0].items is not None else arguments
            return Value(types.Array(array.type.dtype, len(shape), array.type.layout))
        kinds, named_kinds = tuple(map(numba_type, arguments)), {name: numba_type(value) for name, value in named.items()}
        if hasattr(np.ndarray, name) or None in (*kinds, *named_kinds.values()):
            return UNKNOWN
        found = method_overload_of(array.type, name, kinds, tuple(map(literal_type, arguments)), named_kinds)
        if found is None:
            return UNKNOWN
        self.found.methods.add(node)
        return self.call_device(node, found, [array, *arguments], named)

    def known_function(self, node, called, arguments, named):
        """The Value of a call of a builtin, or of a function of math, libdevice or numba.cuda."""
        if called is range:
            return self.range(node, arguments)
        if why := refused_allocation(called):
            self.refuse(node, why)
        if called is enumerate and arguments and (inner := self.elements(node, arguments[0])) is not UNKNOWN:
            return Value(element=Value(items=(AXIS, inner)))
        if called is zip:
            return Value(element=Value(items=tuple(self.elements(node, one) for one in arguments)))
        if called is pow and len(arguments) == 2 and not named:
            return self.power(node, *arguments)
        if called is sum and len(arguments) == 1 and arguments[0].items and all(is_integer(one.type) for one in arguments[0].items):
            return functools.reduce(lambda total, one: binary(operator.add, total, one)[0], arguments[0].items, of_constant(0))
        if called is sum and len(arguments) == 1 and arguments[0].items and all(is_scalar(one.type) for one in arguments[0].items):
            self.settle(node, arguments)
            self.found.calls[node] = sum_of_floats
            return of_type(types.float64)
        if called is len and arguments[0].items is not None:
            length = of_constant(len(arguments[0].items))
            return pruning(length) if self.is_parameter(node.args[0]) else length
        if called is numba.cuda.const.array_like:
            return arguments[0]
        if called is isinstance:
            return self.instance(node, *arguments)
        kinds, named_kinds = tuple(map(numba_type, arguments)), {name: numba_type(value) for name, value in named.items()}
        if None in (*kinds, *named_kinds.values()):
            self.check_call(node, called, (*kinds, None), None)
            return self.unknown_call(node, arguments)
        if is_users_function(called):
            implementation = overload_of(called, kinds, tuple(map(literal_type, arguments)), named_kinds)
            if implementation is not None:
                return self.call_device(node, implementation, arguments, named)
        if named:
            return self.unknown_call(node, arguments)
        signature = call_signature(called, kinds)
        self.check_call(node, called, kinds, signature)
        if signature is None:
            return self.unknown_call(node, arguments)
        return self.typed_call(node, called, arguments, signature)

    def power(self, node, base, exponent):
        """The Value of pow(base, exponent), which is that of base ** exponent."""
        result, casts = binary(operator.pow, base, exponent)
        for (argument, value), wanted in zip(self.positional(node, (base, exponent)), casts):
            self.cast(argument, value, wanted)
        other = replacement(operator.pow, base, exponent, result)
        if other is not None:
            self.found.calls[node] = other
        return result

    def range(self, node, arguments):
        """The Value of a call of range, whose elements have as many bits as its widest argument."""
        self.settle(node, arguments)
        kinds = tuple(value.type for value in arguments)
        signature = call_signature(range, kinds) if None not in kinds else None
        if signature is None:
            return UNKNOWN
        for (argument, value), kind in zip(self.positional(node, arguments), signature.args):
            self.cast(argument, value, kind if is_float(value.type) else None)
        if not all(map(is_integer, kinds)):
            return of_type(signature.return_type)._replace(element=of_type(signature.return_type.dtype))
        return Value(element=Value(signature.return_type.dtype, max(value.bits for value in arguments)))

    def typed_call(self, node, called, arguments, signature):
        """The Value of a call with a known signature; arguments and result are cast if Python's types differ."""
        result = signature.return_type
        if among(called, (max, min)):
            return self.extremum(node, called, arguments, result)
        if is_builtin(called):
            self.settle(node, arguments)
        self.cast_arguments(node, arguments, signature.args)
        if among(called, WIDTHS) and signature.args[0].bitwidth != 32:
            self.found.calls[node] = Width(signature.args[0].bitwidth)
        if called is round and is_float(result) and len(arguments) == 2:
            self.found.calls[node] = ROUND_TO[result.bitwidth]
        elif among(called, (round, float)) and is_float(result):
            self.found.calls[node] = result
        if among(called, TO_INTEGERS) and is_float(signature.args[0]) and is_integer(result):
            self.found.calls[node] = TO_INTEGERS[called]
        value = of_type(result)
        if called is abs and is_integer(result):
            bits = min(arguments[0].bits, range_bits(result) + result.signed)
            leaves = result.signed and bits >= range_bits(result)  # abs of the least integer is beyond the type
            if leaves and result.bitwidth < 64:
                self.found.calls[node] = result
            return value._replace(bits=bits, wide=leaves and result.bitwidth == 64)
        return value

    def extremum(self, node, called, arguments, result):
        """The Value of a call of max or min."""
        if not is_float(result):
            self.settle(node, arguments)
            known = [value.bits for value in arguments]
            return of_type(result)._replace(bits=min(max(known), range_bits(result))) if is_integer(result) else of_type(result)
        for argument, value in zip(node.args, arguments):
            self.to_type(argument, value, result)
        if all(is_float(value.type) for value in arguments) and types.float16 not in [value.type for value in arguments]:
            self.found.calls[node] = MAXIMA[called]
        return Value(result)


def sum_of_floats(items):
    """sum(items) of a tuple with floats: Numba begins with an integer 0, which makes a float64 of a float32."""
    return functools.reduce(operator.add, map(np.float64, items), np.float64(0))


CLASSES = {int: types.int64, float: types.float64, complex: types.complex128, bool: types.boolean, tuple: types.BaseTuple}
ALWAYS = {True: lambda *_: True, False: lambda *_: False}


def is_computed(node):
    """Whether an expression computes with names; arithmetic of numbers alone is folded by Python's compiler."""
    return isinstance(node, (ast.BinOp, ast.Call)) and any(isinstance(inner, ast.Name) for inner in ast.walk(node))


def is_users_function(called):
    """Whether a Python function is not one of Numba's."""
    return isinstance(called, python_types.FunctionType) and re.match(r"numba\.(?!cuda\.tests\.)", called.__module__) is None


def dtype_of_constant(value):
    """The Numba type of a dtype argument, or None."""
    if isinstance(value, types.Type):
        return value
    try:
        return element_type(np.dtype(value))
    except TypeError:
        return None
