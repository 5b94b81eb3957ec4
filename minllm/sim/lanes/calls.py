"""The lane forms of calls: builtins, math, numba.cuda and PTX instructions."""

import ast
import functools
import types as python_types

import numba.cuda

from minllm.machine.numba_cuda import types
from minllm.sim.float_operations import COUNTED_INSTRUCTIONS, operations_of
from minllm.sim.half_precision import half_precision
from minllm.sim.lanes import operations, warps
from minllm.sim.lanes.carried import LOADS, STORES
from minllm.sim.rewrite import CUDA, LIBDEVICE
from minllm.sim.typing.arithmetic import MAXIMA, truncated
from minllm.sim.typing.calls import Width
from minllm.sim.typing.values import UNKNOWN, is_integer, is_scalar

FORMS = {}  # id of an object that kernels call -> function(writer, node, value, arguments, named) that writes the call
BY_BITS = ("popc", "clz", "ffs", "brev")


def form(*things):
    """Register how calls of objects are written."""

    def register(function):
        for thing in things:
            FORMS[id(thing)] = function
        return function

    return register


def call_form(writer, node, called, value, arguments, named):
    """The source of the call of an object."""
    write = FORMS.get(id(called))
    if write is not None:
        return write(writer, node, value, arguments, named)
    name = getattr(called, "__name__", str(called))
    emulation = getattr(called, "emulation", None)
    if (vectors := getattr(emulation, "in_lanes", None)) is not None and not named:
        writer.by_threads |= vectors.by_threads
        text = writer.at(node, writer.thing(vectors), "L", *naturals(writer, node, arguments))
        return writer.operated(text, value.type, "function", name in COUNTED_INSTRUCTIONS)
    if emulation is not None and getattr(called, "pure", False) and not named:
        return scalars(writer, node, emulation, arguments)
    if named:
        writer.refuse(node, f"{name} with named arguments")
    if emulation is not None:
        return by_threads(writer, node, called, emulation, naturals(writer, node, arguments))
    if isinstance(called, python_types.BuiltinFunctionType) and called.__module__ == "math":
        return counted(writer, name, value, scalars(writer, node, operations.math_form(name), arguments, vectors=True))
    if getattr(numba.cuda.libdevice, name, None) is called:
        return counted(writer, name, value, scalars(writer, node, getattr(LIBDEVICE, name), arguments))
    if (found := half_precision(called)) is not None:
        return scalars(writer, node, found, arguments)
    writer.refuse(node, f"the function {name}")


def by_threads(writer, node, called, emulation, operands):
    """The source of the call of an instruction that the simulator's threads execute (fibres.py)."""
    writer.by_threads = True
    return writer.at(node, "L.by_threads", writer.thing(emulation), repr(bool(getattr(called, "meets", False))), *operands)


def counted(writer, name, value, text):
    """The source of the result of a function of `math` or libdevice, which counts as float_operations.py says."""
    what, count = operations_of(name)
    return writer.operated(text, value.type, what, count)


def scalars(writer, node, function, arguments, vectors=False):
    """The source of the call of a function of numbers. vectors: whether it takes vectors too."""
    if not all(is_scalar(writer.kind(one).type) for one in node.args):
        writer.refuse(node, "a function of something that is not a number")
    arguments = naturals(writer, node, arguments)
    return f"{writer.thing(function)}({', '.join(arguments)})" if vectors else f"L.each({', '.join([writer.thing(function), *arguments])})"


def naturals(writer, node, arguments):
    """Arguments, those of type uint64 as numbers that are not negative."""
    kinds = [UNKNOWN if isinstance(one, ast.Starred) else writer.kind(one) for one in node.args]
    return [f"ops.natural({text})" if kind.type == types.uint64 else text for text, kind in zip(arguments, kinds)]


@form(numba.cuda.syncthreads)
def syncthreads(writer, node, value, arguments, named):
    """Write cuda.syncthreads()."""
    return "L.syncthreads()"


@form(numba.cuda.grid)
def grid(writer, node, value, arguments, named):
    """Write cuda.grid(n): a number, or a tuple."""
    count = writer.constant(node.args[0])
    axes = [f"L.blockIdx.{axis} * L.blockDim.{axis} + L.threadIdx.{axis}" for axis in "xyz"[:count]]
    return f"({axes[0]})" if count == 1 else f"({', '.join(axes)})"


@form(numba.cuda.gridsize)
def gridsize(writer, node, value, arguments, named):
    """Write cuda.gridsize(n): a number, or a tuple."""
    count = writer.constant(node.args[0])
    axes = [f"L.gridDim.{axis} * L.blockDim.{axis}" for axis in "xyz"[:count]]
    return f"({axes[0]})" if count == 1 else f"({', '.join(axes)})"


def dtype_argument(writer, node):
    """The source of the dtype of a new array."""
    given = node.args[1] if len(node.args) > 1 else next((one.value for one in node.keywords if one.arg == "dtype"), None)
    dtype = writer.constant(given)
    kind = writer.found.values[node].type
    if dtype is None or not isinstance(kind, types.Array) or not is_scalar(kind.dtype):
        writer.refuse(node, "an array of an unknown type")
    return writer.thing(dtype)


def shape_argument(writer, node):
    """The source of the shape of a new array."""
    return writer.expression(node.args[0] if node.args else next(one.value for one in node.keywords if one.arg == "shape"))


@form(numba.cuda.shared.array)
def shared_array(writer, node, value, arguments, named):
    """Write cuda.shared.array; its key is the place of the call."""
    key = writer.thing((writer.found.function.__code__, node.lineno, node.col_offset))
    aligned = node.args[2] if len(node.args) > 2 else next((one.value for one in node.keywords if one.arg == "alignment"), None)
    alignment = None if aligned is None else writer.constant(aligned)
    name = writer.assigned.get(node, "")
    return f"L.new_shared({key}, {shape_argument(writer, node)}, {dtype_argument(writer, node)}, {alignment}, {name!r})"


@form(numba.cuda.local.array)
def local_array(writer, node, value, arguments, named):
    """Write cuda.local.array."""
    return f"L.new_local({shape_argument(writer, node)}, {dtype_argument(writer, node)})"


@form(max, min)
def extremum(writer, node, value, arguments, named):
    """Write max or min of numbers of one type."""
    called, replaced = writer.constant(node.func), writer.found.calls.get(node)
    name = "max" if called is max else "min"
    if named or len(arguments) < 2 or types.uint64 in [writer.kind(one).type for one in node.args]:
        writer.refuse(node, f"{name} of one argument or of uint64")
    if is_integer(value.type):
        return f"ops.int_{name}({', '.join(arguments)})"
    if replaced in MAXIMA.values():
        return f"ops.extremum({', '.join([writer.thing(replaced), *arguments])})"
    return scalars(writer, node, called, arguments)


@form(abs)
def absolute(writer, node, value, arguments, named):
    """Write abs(x)."""
    if not is_scalar(value.type):
        writer.refuse(node, "abs of something that is not a number")
    if value.type == types.uint64:
        return arguments[0]
    text = f"abs({arguments[0]})"
    if writer.found.calls.get(node) is None:
        return text
    return writer.integer_cast(value.type, value.type, text, node in writer.carried.nodes)


@form(int)
def integer(writer, node, value, arguments, named):
    """Write int(x)."""
    kind = writer.kind(node.args[0])
    if writer.found.calls.get(node) is truncated:
        return scalars(writer, node, truncated, arguments)
    return arguments[0] if is_integer(kind.type) else f"{writer.cast(types.int64, kind.type)}({arguments[0]})"


@form(float)
def real(writer, node, value, arguments, named):
    """Write float(x)."""
    return f"{writer.cast(value.type, writer.kind(node.args[0]).type)}({arguments[0]})"


@form(bool)
def boolean(writer, node, value, arguments, named):
    """Write bool(x)."""
    return f"truth({arguments[0]})"


@form(round)
def rounded(writer, node, value, arguments, named):
    """Write round(x)."""
    replaced = writer.found.calls.get(node)
    function = replaced if isinstance(replaced, python_types.FunctionType) else round
    text = scalars(writer, node, function, arguments)
    return f"{writer.cast(replaced, value.type)}({text})" if isinstance(replaced, types.Type) else text


@form(len)
def length(writer, node, value, arguments, named):
    """Write len of an array or a tuple."""
    if isinstance(writer.found.values[node.args[0]].type, types.Array):
        return f"{arguments[0]}.shape[0]"
    return f"len({arguments[0]})"


@form(numba.cuda.fma)
def fma(writer, node, value, arguments, named):
    """Write cuda.fma."""
    return counted(writer, "fma", value, scalars(writer, node, CUDA.fma, arguments))


@form(numba.cuda.selp)
def selp(writer, node, value, arguments, named):
    """Write cuda.selp: of the two values each lane evaluates its own."""
    return f"L.select({arguments[0]}, lambda: {arguments[1]}, lambda: {arguments[2]})"


@form(*(getattr(numba.cuda, name) for name in BY_BITS), numba.cuda.cbrt)
def bits(writer, node, value, arguments, named):
    """Write cuda.popc, clz, ffs, brev or cbrt, in the argument's width."""
    called, width = writer.constant(node.func), writer.found.calls.get(node)
    function = getattr(CUDA, called.__name__)
    if isinstance(width, Width):
        function = functools.partial(function, bits=int(width))
    return scalars(writer, node, function, arguments)


@form(numba.cuda.threadfence, numba.cuda.threadfence_block)
def fence(writer, node, value, arguments, named):
    """Write cuda.threadfence or threadfence_block."""
    return "L.fence()"


def member_form(name, function):
    """Register an instruction of warps that takes the mask of its lanes first."""

    @form(getattr(numba.cuda, name))
    def write(writer, node, value, arguments, named):
        if named:
            writer.refuse(node, f"{name} with named arguments")
        return f"{writer.thing(function)}({', '.join(['L', *arguments])})"


for _name in ("shfl", "xor", "down", "up"):
    member_form("shfl_sync" if _name == "shfl" else f"shfl_{_name}_sync", warps.SHUFFLES[_name])
for _name, _function in dict(ballot_sync=warps.ballot, any_sync=warps.any_of, all_sync=warps.all_of, syncwarp=warps.syncwarp).items():
    member_form(_name, _function)


@form(numba.cuda.syncthreads_count)
def syncthreads_count(writer, node, value, arguments, named):
    """Write cuda.syncthreads_count."""
    return f"{writer.thing(warps.votes_of_block)}(L, {arguments[0]})"


@form(numba.cuda.syncthreads_or)
def syncthreads_or(writer, node, value, arguments, named):
    """Write cuda.syncthreads_or."""
    return f"{writer.cast(types.int64, types.boolean)}({writer.thing(warps.votes_of_block)}(L, {arguments[0]}) > 0)"


@form(numba.cuda.syncthreads_and)
def syncthreads_and(writer, node, value, arguments, named):
    """Write cuda.syncthreads_and."""
    return f"{writer.cast(types.int64, types.boolean)}({writer.thing(warps.votes_of_block)}(L, {arguments[0]}) == L.threads)"


def atomic_form(name):
    """Register an atomic."""
    change = getattr(CUDA.atomic, name)

    @form(getattr(numba.cuda.atomic, name))
    def atomic(writer, node, value, arguments, named):
        text = writer.at(node, "L.atomic", writer.thing(change), *naturals(writer, node, arguments))
        return writer.operated(text, writer.kind(node.args[0]).type.dtype, "add", name in ("add", "sub"))


for _name in ("add", "sub", "max", "min", "exch", "and_", "or_", "xor", "inc", "dec", "cas", "nanmax", "nanmin"):
    atomic_form(_name)


@form(*(getattr(numba.cuda, name) for name in LOADS if hasattr(numba.cuda, name)))
def hinted_load(writer, node, value, arguments, named):
    """Write a load with a cache hint as a plain load."""
    return writer.at(node, "L.load", arguments[0], f"*ops.position({arguments[1]})")


@form(*(getattr(numba.cuda, name) for name in STORES if hasattr(numba.cuda, name)))
def hinted_store(writer, node, value, arguments, named):
    """Write a store with a cache hint as a plain store."""
    return writer.at(node, "L.store", arguments[0], arguments[2], f"*ops.position({arguments[1]})")
