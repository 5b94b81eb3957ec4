"""The types of a function's expressions, and the casts that they need; those of calls are in calls.py."""

import ast
import functools
import math
import operator

import numba.cuda

from minllm.machine.numba_cuda import types
from minllm.sim.numba_cuda_mlir import of_numba_cuda
from minllm.sim.typing.arithmetic import BINARY, COMPARISONS, UNARY, binary, comparison, replacement, unary
from minllm.sim.typing.branches import Branches, pruning
from minllm.sim.typing.nodes import nodes_in
from minllm.sim.typing.refusals import refused_construct, refused_field, refused_number
from minllm.sim.typing.rules import attribute_type, call_signature
from minllm.sim.typing.values import (
    AXIS_BITS,
    NOTHING,
    UNKNOWN,
    Constant,
    Value,
    changes_type,
    is_float,
    is_integer,
    is_scalar,
    merge,
    numba_type,
    of_constant,
    of_type,
    steps,
)

INDICES = [getattr(numba.cuda, name) for name in ("threadIdx", "blockIdx", "blockDim", "gridDim")]
AXIS = Value(types.intp, AXIS_BITS)


class Method:
    """A method of an array, before it is called."""

    def __init__(self, array, name):
        self.array, self.name = array, name


def among(value, group):
    """Whether `value` is one of the objects in `group`."""
    return any(value is one for one in group)


class Expressions(Branches):
    """Finds the Value of every expression of one function except calls, and records casts and replaced operators in `self.found`.

    A subclass keeps `variables`, {name: Value}, and `missed`, the names that were read and are no variables yet. It implements
    `Call(node)`, `outer(name)` and `refuse(node, why)`.
    """

    def value(self, node):
        """The Value of an expression, without a cast."""
        self.found.casts.pop(node, None)
        visit = getattr(self, node.__class__.__name__, None)
        if visit is None and (why := refused_construct(node)):
            self.refuse(node, why)
        found = self.found.values[node] = UNKNOWN if visit is None else visit(node)
        return found

    def settled(self, node):
        """The Value of an expression, with a cast that wraps it into its type's range if it may be outside."""
        value = self.value(node)
        return self.cast(node, value, value.type) if value.wide else value

    def cast(self, node, value, wanted):
        """Record a cast of an expression to the type `wanted` (None: no cast); returns its Value."""
        if wanted is None:
            return value
        self.found.casts[node] = steps(value, wanted)
        return of_type(wanted)._replace(constant=value.constant if is_integer(wanted) and not value.wide else None)

    def to_type(self, node, value, wanted):
        """Record a cast if the value has another type in the simulator than `wanted`; returns its Value."""
        return self.cast(node, value, wanted if changes_type(value, wanted) else None)

    # Names and constants

    def Constant(self, node):
        return pruning(of_constant(node.value))

    def Name(self, node):
        if node.id in self.variables:
            return self.variables[node.id]
        self.missed.add(node.id)
        return pruning(self.outer(node.id))

    def Tuple(self, node):
        items = self.items_of(node.elts)
        return UNKNOWN if items is None else Value(items=tuple(items))

    def items_of(self, elements):
        """The Values of a tuple's elements or of a call's positional arguments, unpacked; None if their number is unknown."""
        items = []
        for element in elements:
            if isinstance(element, ast.Starred):
                inner = self.value(element.value).items
                if inner is None:
                    return None
                items += inner
            else:
                items.append(self.value(element))
        return items

    def Attribute(self, node):
        owner, name = self.value(node.value), node.attr
        if owner.fields is not None and name in owner.fields:
            return owner.items[owner.fields.index(name)]
        if owner.constant is not None and owner.type is None:
            if among(owner.constant.value, INDICES):
                return Value(types.int32, 31)
            if owner.constant.value is numba.cuda and name in ("laneid", "warpsize"):
                return Value(types.int32, 6)
            if owner.constant.value is math and attribute_type(types.Module(math), name) is None:
                self.refuse(node, f"numba-cuda has no math.{name}: compute it from other functions")
            try:
                return of_constant(of_numba_cuda(getattr(owner.constant.value, name)))
            except AttributeError:
                return UNKNOWN
        self.check_field(node, owner.type, name)
        if is_record_array(owner.type) and name in owner.type.dtype.fields:
            self.found.fields.add(node)
        if isinstance(owner.type, types.Array):
            found = self.array_attribute(owner, name)
            return pruning(found) if name == "ndim" and self.is_parameter(node.value) else found
        found = None if owner.type is None else attribute_type(owner.type, name)
        return UNKNOWN if found is None else of_type(found)

    def check_field(self, node, owner, name):
        """Raise SimulationError for a field, of a record or of an array of records, that numba-cuda does not access."""
        record = owner.dtype if isinstance(owner, types.Array) else owner
        if isinstance(record, types.Record) and name in record.fields and (why := refused_field(record, name)):
            self.refuse(node, why)

    def array_attribute(self, array, name):
        """The Value of an attribute of an array; a Method for names that are no data."""
        if name in ("shape", "strides"):
            return Value(items=(AXIS,) * array.type.ndim)
        if name == "ndim":
            return of_constant(array.type.ndim)
        if is_record_array(array.type) and name in array.type.dtype.fields:
            found = attribute_type(array.type, name)
            return UNKNOWN if found is None else Value(found)
        if name in ("size", "nbytes", "itemsize"):
            return AXIS
        if name == "flat":
            return Value(types.Array(array.type.dtype, 1, "C"))
        if name == "dtype":
            return Value(constant=Constant(array.type.dtype))
        return array if name == "T" else Value(constant=Constant(Method(array, name)))

    def Subscript(self, node):
        owner, index = self.value(node.value), self.index(node.slice)
        if index.constant is not None and type(index.constant.value) is str and owner.type is not None:
            self.check_field(node, owner.type, index.constant.value)
            field = attribute_type(owner.type, index.constant.value)
            return UNKNOWN if field is None else Value(field) if isinstance(field, types.Array) else of_type(field)
        if owner.items is not None:
            found = item(owner, index, node.slice)
            return self.elements(node, owner) if found is None else found
        if isinstance(owner.type, types.Array):
            positions = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            kept = owner.type.ndim - sum(not isinstance(position, ast.Slice) for position in positions)
            if isinstance(node.slice, ast.Name) and index.items is not None:
                kept = owner.type.ndim - len(index.items)
            return of_type(owner.type.dtype) if kept == 0 else Value(types.Array(owner.type.dtype, kept, owner.type.layout))
        kinds = numba_type(owner), numba_type(index)
        found = None if None in kinds else call_signature(operator.getitem, kinds)
        return UNKNOWN if found is None else of_type(found.return_type)

    def index(self, node):
        """The Value of an index; unsigned integers wrap, because negative numbers would count from the end."""
        found = self.value(node)
        pairs = zip(node.elts, found.items or ()) if isinstance(node, ast.Tuple) else [(node, found)]
        for position, value in pairs:
            if value.wide and not value.type.signed:
                self.cast(position, value, value.type)
        return found

    def elements(self, node, value):
        """The Value of the elements that a loop, or an index known only at run time, gets from a value."""
        kinds = list(dict.fromkeys(one.type for one in value.items or ()))
        if len(kinds) > 1 and all(map(is_scalar, kinds)):
            names = " and ".join(map(str, kinds))
            self.refuse(
                node, f"numba-cuda neither loops over a tuple of {names}, nor takes an index into it that is known only at run time"
            )
        return iterated(value)

    def Slice(self, node):
        for bound in (node.lower, node.upper, node.step):
            if bound is not None:
                self.value(bound)
        return UNKNOWN

    # Operators

    def BinOp(self, node):
        left, right = self.value(node.left), self.value(node.right)
        result, casts = binary(BINARY[type(node.op)], left, right) if type(node.op) in BINARY else (UNKNOWN, (None, None))
        self.check_operator(node, result, left, right)
        self.cast(node.left, left, casts[0])
        self.cast(node.right, right, casts[1])
        self.replace_operator(node, left, right, result)
        if isinstance(node.right, ast.Constant) and (why := refused_number(node)):
            self.refuse(node, why)
        return folded_by_python(node, result)

    def check_operator(self, node, result, *operands):
        """Raise SimulationError for an operator of numbers that numba-cuda does not compile, such as `x | 1` of a float."""
        kinds = [one.type for one in operands]
        if result is UNKNOWN and all(map(is_scalar, kinds)):
            named = " and ".join(map(str, kinds))
            self.refuse(node, f"numba-cuda does not compile {ast.unparse(node)} for {named}: convert floats to integers first, int32(x)")

    def replace_operator(self, node, left, right, result):
        """Record what stands for the operator of a BinOp or an AugAssign."""
        self.found.has_floats |= is_float(result.type)
        self.found.operators.pop(node, None)
        other = replacement(BINARY[type(node.op)], left, right, result) if type(node.op) in BINARY else None
        if other is not None:
            self.found.operators[node] = other

    def UnaryOp(self, node):
        operand = self.value(node.operand)
        result, cast, wrap = unary(UNARY[type(node.op)], operand)
        self.check_operator(node, result, operand)
        self.cast(node.operand, operand, cast)
        self.found.wraps[node] = wrap
        if result.type == types.boolean and isinstance(node.op, ast.Invert):
            self.found.calls[node] = ast.Not()
        return folded_by_python(node, result)

    def is_parameter(self, node):
        """Whether an expression is a parameter of the function."""
        return isinstance(node, ast.Name) and node.id in self.found.arguments

    def Compare(self, node):
        if len(node.ops) > 1:
            values = [self.settled(operand) for operand in (node.left, *node.comparators)]
            return Value(types.boolean, 1, constant=self.known_comparison(node, values))
        left, right, operation = self.value(node.left), self.value(node.comparators[0]), type(node.ops[0])
        known = self.known_comparison(node, (left, right))
        if operation in (ast.Is, ast.IsNot) and known is None and right == NOTHING and (left.constant is not None or left.type is not None):
            known = Constant((left == NOTHING) == (operation is ast.Is))
        if operation not in COMPARISONS:
            return Value(types.boolean, 1, constant=known)
        result, casts = comparison(COMPARISONS[operation], left, right)
        self.cast(node.left, left, casts[0])
        self.cast(node.comparators[0], right, casts[1])
        return result if known is None else result._replace(constant=known)

    def BoolOp(self, node):
        stop = isinstance(node.op, ast.Or)
        kept = []
        for operand in node.values:
            value = self.settled(operand)
            known = self.taken(operand)
            if known is (not stop) and operand is not node.values[-1]:
                continue  # it decides nothing
            kept.append((operand, value))
            if known is stop:
                break
        merged = functools.reduce(merge, (value for _, value in kept))
        for operand, value in kept:
            if is_scalar(merged.type) and changes_type(value, merged.type):
                self.cast(operand, self.found.values[operand], merged.type)
        return merged

    def IfExp(self, node):
        taken = self.tested(node.test)
        if taken is not None:
            return self.value(node.body if taken else node.orelse)
        body, other = self.value(node.body), self.value(node.orelse)
        merged = merge(body, other)
        if is_scalar(merged.type):
            self.to_type(node.body, body, merged.type)
            self.to_type(node.orelse, other, merged.type)
        return merged


def is_record_array(kind):
    """Whether a Numba type is that of an array of records."""
    return isinstance(kind, types.Array) and isinstance(kind.dtype, types.Record)


def folded_by_python(node, value):
    """The Value of an operator; Python computes one of literals before Numba sees it."""
    if not all(isinstance(one, (ast.Constant, ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop)) for one in nodes_in(node)):
        return value
    negates = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)
    if negates and value.type == types.float64:
        value = value._replace(constant=Constant(-node.operand.value))
    return pruning(value)


def item(owner, index, node):
    """The Value of an element or a slice of a tuple; None for an index that is known only at run time."""
    if isinstance(node, ast.Slice):
        try:
            bounds = [None if bound is None else ast.literal_eval(bound) for bound in (node.lower, node.upper, node.step)]
        except ValueError:
            return UNKNOWN
        return Value(items=owner.items[slice(*bounds)])
    if index.constant is not None and -len(owner.items) <= index.constant.value < len(owner.items):
        return owner.items[index.constant.value]
    return None


def iterated(value):
    """The Value of the elements that a for loop gets from a value."""
    if value.element is not None:
        return value.element
    if value.items:
        found = value.items[0]
        for other in value.items[1:]:
            found = merge(found, other)
        return found
    if isinstance(value.type, types.Array):
        kept = value.type.ndim - 1
        return Value(types.Array(value.type.dtype, kept, value.type.layout)) if kept else of_type(value.type.dtype)
    return UNKNOWN
