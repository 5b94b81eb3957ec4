"""The types and sizes of operators' results, and the casts that their operands need."""

import ast
import operator
from typing import Any, NamedTuple

import numpy as np

from minllm.machine.numba_cuda import types
from minllm.sim.operators import FLOOR_DIVISION, MODULO, divided_by_zero, power, shifted_left, shifted_right
from minllm.sim.scalars import IntegerType
from minllm.sim.typing.rules import call_signature
from minllm.sim.typing.values import (
    UNKNOWN,
    Constant,
    Value,
    is_float,
    is_integer,
    is_scalar,
    may_be_negative,
    must_cast,
    numba_type,
    of_type,
    range_bits,
)

BINARY = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_, ast.BitXor: operator.xor,
}  # fmt: skip
UNARY = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert, ast.Not: operator.not_}
COMPARISONS = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
WRAPS_LATER = (operator.add, operator.sub, operator.mul, operator.lshift, operator.and_, operator.or_, operator.xor)
FLOAT32_BITS = 24  # integers below 2**24 are exact in float32
COUNTER_BITS = 62  # an integer that a loop increments once per iteration does not reach 2**63 in any practical time


def binary(operation, left, right):
    """(Value of an operator's result, the types to which its two operands are cast; None for an operand without a cast)."""
    signature = call_signature(operation, (left.type, right.type)) if is_scalar(left.type) and is_scalar(right.type) else None
    if signature is None:
        found = call_signature(operation, kinds) if None not in (kinds := (numba_type(left), numba_type(right))) else None
        return (UNKNOWN if found is None else of_type(found.return_type)), (None, None)
    result = signature.return_type
    if is_integer(result):
        wanted = signature.args
        if operation in (operator.floordiv, operator.mod, operator.pow):
            wanted = result, wanted[1] if operation is operator.pow else result
        casts = tuple(map(integer_cast, (operation, operation), (left, right), wanted))
        return integer_result(operation, left, right, result), casts
    if is_float(result):
        return Value(result), float_casts(operation, left, right, signature)
    return folded(operation, (left, right), of_type(result)), (None, None)


def integer_cast(operation, value, wanted):
    """The cast of an operand of an integer operator, or None.

    Booleans are always cast. Integers need no cast for operators in WRAPS_LATER, because a later wrap of the result gives the right bits.
    """
    if value.type == types.boolean or (operation not in WRAPS_LATER and must_cast(value, wanted)):
        return wanted
    return None


def float_casts(operation, left, right, signature):
    """The casts of the two operands of a floating-point operator, needed if NumPy's result would have another type."""
    too_large = left.bits > 63 or right.bits > 63  # NumPy does not combine so large an int with a float
    if too_large or natural_type(left.type, right.type) != signature.return_type:
        return tuple(wanted if must_cast(value, wanted) else None for value, wanted in zip((left, right), wide_arguments(signature)))
    return tuple(value.type if value.wide else None for value in (left, right))


def wide_arguments(signature):
    """The argument types of a signature, with float64 for the division of two integers."""
    return [signature.return_type if is_integer(wanted) and signature.return_type == types.float64 else wanted for wanted in signature.args]


def natural_type(left, right):
    """The type of the result if NumPy scalars and Python ints are combined without casts; None for a Python float."""
    floats = [kind for kind in (left, right) if is_float(kind)]
    if len(floats) < 2:
        return floats[0] if floats else None
    if types.bfloat16 in floats:
        other = floats[floats[0] == types.bfloat16]
        return other if other in (types.bfloat16, types.float32, types.float64) else types.float32
    return max(floats)


def integer_result(operation, left, right, result):
    """The Value of an operator's integer result, with its size and whether it may still have to wrap."""
    bits = result_bits(operation, left, right)
    negative = operation in (operator.sub, operator.neg, operator.invert) or any(map(may_be_negative, (left, right)))
    if operation is operator.and_ and not all(map(may_be_negative, (left, right))):
        negative = False
    wide = operation in WRAPS_LATER and (left.wide or right.wide)
    wide = wide or bits > range_bits(result) or (negative and not result.signed)
    return folded(operation, (left, right), Value(result, min(bits, 64), wide))


def result_bits(operation, left, right):
    """An upper bound of the bits of an operator's exact result."""
    largest = max(left.bits, right.bits)
    if operation in (operator.add, operator.sub):
        return largest + 1
    if operation is operator.mul:
        return left.bits + right.bits
    if operation is operator.pow:
        return left.bits * right.constant.value if right.constant is not None else 65
    if operation is operator.lshift:
        return left.bits + (right.constant.value if right.constant is not None else 63)
    if operation is operator.rshift:
        return max(left.bits - right.constant.value, 1) if right.constant is not None else left.bits
    if operation is operator.floordiv:
        return left.bits
    if operation is operator.mod:
        return right.bits
    if operation is operator.and_:
        return min((value.bits for value in (left, right) if not may_be_negative(value)), default=largest)
    return largest


def folded(operation, operands, result):
    """`result` with its constant, if the operands are known integers or booleans and nothing wraps."""
    if any(value.constant is None or type(value.constant.value) not in (int, bool) for value in operands):
        return result
    if is_integer(result.type) and (result.wide or result.bits > 62):
        return result
    try:
        exact = operation(*(value.constant.value for value in operands))
    except (ArithmeticError, ValueError):
        return result
    if type(exact) not in (int, bool):
        return result
    return result._replace(constant=Constant(exact), bits=int(exact).bit_length())


def replacement(operation, left, right, result):
    """What stands for an operator whose result Python does not give: a function of both operands, a Guard, or None.

    left, right, result: the Values of the operands and of the result.
    """
    known = right.constant.value if right.constant is not None and type(right.constant.value) in (int, bool) else None
    if operation in FLOAT_DIVISION and result.type in (types.float32, types.float64):
        return FLOAT_DIVISION[operation][result.type.bitwidth]
    if not is_integer(right.type) or not is_scalar(left.type):
        return None
    if operation is operator.pow:
        return power if is_float(left.type) or known is None or not 0 <= known <= 64 else None
    if not is_integer(result.type):
        return None
    if operation in FLOAT_DIVISION and not known:
        return NONZERO
    if operation in SHIFTS and (known is None or not 0 <= known < result.type.bitwidth):
        return Guard(result.type.bitwidth, SHIFTS[operation])
    return None


class Guard(NamedTuple):
    """An operator that Python may compute only if its right operand is non-negative and less than `below`; None: if it is not 0.

    otherwise: the function of both operands that gives the result else; of none for a division.
    """

    below: int | None
    otherwise: Any


def unary(operation, value):
    """(Value of -x, +x, ~x or not x; type to which x is cast or None; type to which the result is cast or None).

    Numba negates and inverts in the type of x, and then converts the result to a 64-bit type.
    """
    if operation is operator.not_:
        known = value.constant is not None
        result = Value(types.boolean, 1, constant=Constant(not value.constant.value) if known else None)
        return result, value.type if value.wide else None, None
    signature = call_signature(operation, (value.type,)) if is_scalar(value.type) else None
    if signature is None:
        return UNKNOWN, None, None
    result = signature.return_type
    if is_integer(result):
        if value.type == types.boolean:
            return Value(result, 2), result, None
        leaves = value.wide or operation is operator.neg and (not value.type.signed or value.bits >= range_bits(value.type))
        wraps = operation is not operator.pos and (leaves or not value.type.signed) and value.constant is None
        bits = range_bits(value.type) if wraps else value.bits
        return folded(operation, (value,), Value(result, bits)), None, value.type if wraps else None
    return of_type(result), result if must_cast(value, result) else None, None


def comparison(operation, left, right):
    """(Value of a comparison's result, the types to which its two operands are cast or None)."""
    result = Value(types.boolean, 1)
    if not (is_scalar(left.type) and is_scalar(right.type)):
        return result, (None, None)
    canonical = tuple(value.type if value.wide else None for value in (left, right))
    if is_integer(left.type) != is_integer(right.type):  # a boolean beside an integer
        canonical = tuple(types.int64 if value.type == types.boolean else cast for value, cast in zip((left, right), canonical))
    signature = call_signature(operation, (left.type, right.type))
    if signature is None:
        return result, canonical
    if is_float(signature.args[0]) and not exact(left, right):
        return result, tuple(wanted if must_cast(value, wanted) else None for value, wanted in zip((left, right), signature.args))
    return folded(operation, (left, right), result), canonical


def exact(left, right):
    """Whether Python and NumPy compare two numbers exactly, as Numba does in its wider type."""
    floats = [value.type for value in (left, right) if is_float(value.type)]
    largest = max((value.bits for value in (left, right) if not is_float(value.type)), default=0)
    if len(floats) == 1:
        return largest <= {types.float64: 53, types.float32: FLOAT32_BITS}.get(floats[0], 0) or left.type == types.boolean
    return bool(floats) or largest <= 53


def float_max(first, second, *others):
    """max of floats on a GPU: NaN only if all of them are NaN, and 0.0 is greater than -0.0."""
    greatest = second if second == second and not first > second and not (first == second and np.signbit(second)) else first
    return float_max(greatest, *others) if others else greatest


def float_min(first, second, *others):
    """min of floats on a GPU: NaN only if all of them are NaN, and -0.0 is less than 0.0."""
    least = second if second == second and not first < second and not (first == second and np.signbit(first)) else first
    return float_min(least, *others) if others else least


def truncated(number=0):
    """int(x) in a kernel: a float is converted to 64 bits."""
    return int(number) if isinstance(number, int) else INT64(number)


def nearest(number):
    """round(x) in a kernel: the nearest integer of 64 bits, with halves rounded to even."""
    return INT64(np.rint(np.float64(number)))


def round_to(kind):
    """The function round(x, digits) as Numba computes it: scaled by a power of ten in float64, and rounded to 64 bits."""

    def rounded(number, digits):
        if not np.isfinite(number):
            return kind(number)
        with np.errstate(all="ignore"):
            power = np.float64(10.0) ** abs(digits)
            scaled = number * power if digits >= 0 else number / power
            if not np.isfinite(scaled):
                return kind(number)
            whole = np.float64(nearest(scaled))
            if abs(scaled - whole) == 0.5:
                whole = 2.0 * nearest(scaled / 2.0)
            return kind(whole / power if digits >= 0 else whole * power)

    return rounded


ROUND_TO = {32: round_to(np.float32), 64: round_to(np.float64)}
INT64 = IntegerType(np.int64)
TO_INTEGERS = {int: truncated, round: nearest}
MAXIMA = {max: float_max, min: float_min}
FLOAT_DIVISION = {operator.floordiv: FLOOR_DIVISION, operator.mod: MODULO}
SHIFTS = {operator.lshift: shifted_left, operator.rshift: shifted_right}
NONZERO = Guard(None, divided_by_zero)
NUMPY_SCALARS = (np.number, np.bool_)
