"""Vector forms of casts, operators and functions, with the results that the threads' scalars have.

Integers are int64 vectors; the static type says whether their bits stand for a uint64. A number that is the same for all lanes is a Python
int, or a NumPy scalar as in the threads. Where no vector form is known, `each` calls the scalar form for one lane after the other.
"""

import functools

import numpy as np

from minllm.machine.numba_cuda import as_dtype, types
from minllm.sim.arrays import CheckedArray
from minllm.sim.cuda_math import SimulatedMath
from minllm.sim.lanes.masks import VECTOR, some
from minllm.sim.scalars import simulated_type

WORD = 1 << 64
SIMULATED = SimulatedMath()


def wrapped(number, size=8, signed=True):
    """A Python integer wrapped to `size` bytes."""
    bits = 8 * size
    number &= (1 << bits) - 1
    return number - (1 << bits) if signed and number >> bits - 1 else number


def low(value):
    """An integer that may need more than 63 bits as one that int64 vectors combine with: its low 64 bits."""
    return value if type(value) is VECTOR or -(1 << 63) <= value < 1 << 63 else wrapped(value)


def unsigned(value):
    """A uint64 vector of the bits of an integer, or a np.uint64."""
    return value.view(np.uint64) if type(value) is VECTOR else np.uint64(int(value) % WORD)


def natural(value):
    """An integer of type uint64 as a number that is not negative."""
    return value.view(np.uint64) if type(value) is VECTOR else value % WORD if type(value) is int else value


def rows(values, chosen=None):
    """Tuples with one number of each value: for each lane, or each of those `chosen`."""
    size = next(value.size for value in values if type(value) is VECTOR)
    columns = []
    for value in values:
        if type(value) is not VECTOR:
            columns.append([value] * (size if chosen is None else chosen.size))
            continue
        value = value if chosen is None else value[chosen]
        columns.append(value.tolist() if value.dtype.kind in "iub" else list(value))
    return zip(*columns)


def each(function, *values):
    """function(...) of numbers, for one lane after the other if one is a vector."""
    if not any(type(value) is VECTOR for value in values):
        return function(*values)
    return column([function(*row) for row in rows(values)])


def column(results):
    """The vector of one number a lane; a tuple of vectors for tuples."""
    first = results[0]
    if isinstance(first, tuple):
        return tuple(map(column, zip(*results)))
    if first is None:
        return None
    if isinstance(first, (bool, np.bool_)):
        return np.array(results, np.bool_)
    if isinstance(first, (int, np.integer)):
        return np.array([wrapped(int(one)) for one in results], np.int64)
    return np.array(results, np.float64 if type(first) is float else type(first))


def stored_as(dtype, number):
    """A float as an element of an integer array."""
    element = CheckedArray(np.empty(1, dtype))
    element[0] = number
    return int(element.data[0])


# Casts


@functools.cache
def cast(wanted, given):
    """The function that converts a value of Numba type `given` to the type `wanted`."""
    scalar = simulated_type(wanted)
    if wanted == types.boolean:
        return lambda x: x != 0 if type(x) is VECTOR else bool(x)
    if isinstance(wanted, types.Integer):
        return integer_cast(wanted, given, scalar)
    dtype = np.dtype(scalar) if wanted == types.bfloat16 else as_dtype(wanted)
    if given == types.uint64:
        return lambda x: unsigned(x).astype(np.float64).astype(dtype) if type(x) is VECTOR else scalar(x % WORD)
    narrow = isinstance(given, types.Integer) and dtype.itemsize < 8 and given.bitwidth > 32
    if narrow or dtype.kind == "V":
        return lambda x: (
            x.astype(np.float64).astype(dtype) if type(x) is VECTOR and x.dtype != dtype else x if type(x) is VECTOR else scalar(x)
        )
    return lambda x: x.astype(dtype) if type(x) is VECTOR else scalar(x)


def integer_cast(wanted, given, scalar):
    """The cast to an integer type."""
    if not isinstance(given, (types.Integer, types.Boolean)):
        return functools.partial(each, scalar)
    if wanted.bitwidth == 64:
        return lambda x: x.astype(np.int64, copy=False) if type(x) is VECTOR else scalar(x)
    if not wanted.signed:
        most = (1 << wanted.bitwidth) - 1
        return lambda x: x.astype(np.int64, copy=False) & most if type(x) is VECTOR else scalar(x)
    dtype = as_dtype(wanted)
    return lambda x: x.astype(dtype).astype(np.int64) if type(x) is VECTOR else scalar(x)


# Operators on integers


def by_sign(plain, lanes, left, right):
    """An operator on uint64: `plain`, a NumPy function, of unsigned vectors."""
    found = plain(unsigned(left), unsigned(right))
    if type(found) is VECTOR:
        return found.view(np.int64) if found.dtype == np.uint64 else found
    return int(found) if isinstance(found, np.uint64) else bool(found)


def compare_unsigned(compare, left, right, left_unsigned, right_unsigned):
    """A comparison of integers of which at least one is a uint64; the other may be negative unless it is called unsigned too."""
    found = compare(unsigned(left), unsigned(right))
    for value, known, pair in ((left, left_unsigned, (-1, 0)), (right, right_unsigned, (0, -1))):
        if not known:
            found = np.where(np.asarray(value) < 0, compare(*pair), found)
    return found if VECTOR in (type(left), type(right)) else bool(found)


def check_divisor(lanes, right):
    """Send the launch to the threads if a lane divides by 0."""
    if type(right) is not VECTOR:
        zero = right == 0
    else:
        zero = some((right == 0) if lanes.mask is None else (right == 0) & lanes.mask)
    if zero:
        lanes.doubt("an integer is divided by 0")


def floordiv(lanes, left, right):
    """left // right of integers."""
    check_divisor(lanes, right)
    return left // right


def mod(lanes, left, right):
    """left % right of integers."""
    check_divisor(lanes, right)
    return left % right


def unsigned_floordiv(lanes, left, right):
    """left // right, of which at least one is a uint64."""
    check_divisor(lanes, right)
    return by_sign(np.floor_divide, lanes, left, right)


def unsigned_mod(lanes, left, right):
    """left % right, of which at least one is a uint64."""
    check_divisor(lanes, right)
    return by_sign(np.remainder, lanes, left, right)


def check_shift(lanes, right, below=64):
    """Send the launch to the threads if a lane shifts by a negative number, or by `below` and more."""
    odd = (right < 0) | (right >= below)
    if odd if type(right) is not VECTOR else some(odd if lanes.mask is None else odd & lanes.mask):
        lanes.doubt("a shift by a negative or too large number")


def lshift(lanes, left, right, below=64):
    """left << right of integers."""
    check_shift(lanes, right, below)
    return low(left << right) if type(left) is not VECTOR and type(right) is not VECTOR else left << right


def rshift(lanes, left, right, below=64):
    """left >> right of integers."""
    check_shift(lanes, right, below)
    return left >> right


def unsigned_rshift(lanes, left, right, below=64):
    """left >> right of a uint64."""
    check_shift(lanes, right, below)
    return by_sign(np.right_shift, lanes, left, right)


def power(lanes, left, right):
    """left**right, lane by lane."""
    return each(lambda a, b: a**b, left, right)


# Functions


def int_max(first, *others):
    """The maximum of integers."""
    for other in others:
        first = np.maximum(first, other) if VECTOR in (type(first), type(other)) else max(first, other)
    return first


def int_min(first, *others):
    """The minimum of integers."""
    for other in others:
        first = np.minimum(first, other) if VECTOR in (type(first), type(other)) else min(first, other)
    return first


def extremum(scalar, first, second, *others):
    """max or min of floats, of which `scalar` is the form for numbers."""
    if VECTOR not in (type(first), type(second)):
        found = scalar(first, second)
    else:
        is_max = scalar(2.0, 1.0) == 2.0
        better = first > second if is_max else first < second
        better |= (second != second) | ((first == second) & np.signbit(second if is_max else first))  # 0.0 is greater than -0.0
        found = np.where(better, first, second)
    return extremum(scalar, found, *others) if others else found


@functools.cache
def math_form(name):
    """The vector form of a function of `math`."""
    scalar = getattr(SIMULATED, name)
    found = getattr(np, {"pow": "power", "fabs": "abs"}.get(name, name), None)
    if not isinstance(found, np.ufunc) or found.nout > 1 or name in ("ldexp", "gcd"):
        return functools.partial(each, scalar)

    def form(*values):
        vectors = [value for value in values if type(value) is VECTOR]
        if not vectors:
            return scalar(*values)
        kinds = {value.dtype for value in values if hasattr(value, "dtype")}
        if kinds - {np.dtype(np.float32), np.dtype(np.float64)} or any(type(value) is int for value in values):
            return each(scalar, *values)
        result = found(*(value.astype(np.float64) if type(value) is VECTOR else np.float64(value) for value in values))
        return result if result.dtype == np.bool_ or np.dtype(np.float64) in kinds else result.astype(np.float32)

    return form


def not_(value):
    """not x."""
    return ~value if type(value) is VECTOR and value.dtype == np.bool_ else value == 0 if type(value) is VECTOR else not value


def position(index):
    """An index as a tuple."""
    return index if isinstance(index, tuple) else (index,)
