"""Kernels written for numba-cuda-mlir, `from numba_cuda_mlir import cuda`.

The package has the names of numba-cuda, and copies of its types, stubs and intrinsics. The simulator knows numba-cuda's, so every name that
a kernel refers to is looked up there, by the module and the name of what it stands for. What numba-cuda-mlir alone has, such as
`cuda.inline_ptx` or types of four bits, has no emulation.
"""

import importlib
import importlib.util
import types as python_types

import numba.cuda

from minllm.errors import SimulationError
from minllm.machine.numba_cuda import types

PACKAGE = "numba_cuda_mlir"
HOMES = (f"{PACKAGE}.numba_cuda", f"{PACKAGE}.cuda", PACKAGE)  # what stands in them, stands in numba.cuda
HOST_NAMES = ("In", "Out", "InOut", "guvectorize")  # simulated programs take numba-cuda's


def home_of(value):
    """The name of the module that a value is, or that it comes from; "" if it has none."""
    home = value.__name__ if isinstance(value, python_types.ModuleType) else getattr(value, "__module__", None)
    return home if isinstance(home, str) else ""


def is_foreign(value):
    """Whether a value belongs to numba-cuda-mlir; a function that it compiles does not."""
    return home_of(value).partition(".")[0] == PACKAGE and not hasattr(value, "py_func")


def of_numba_cuda(value):
    """What stands in numba-cuda for a value of numba-cuda-mlir; the value itself if nothing does, or if it belongs to neither."""
    if not is_foreign(value):
        return value
    home = home_of(value)
    above = next(one for one in HOMES if home == one or home.startswith(f"{one}."))
    path = home.removeprefix(above).split(".")[1:]
    if not isinstance(value, python_types.ModuleType):
        name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
        if not isinstance(name, str):  # an object, such as a type
            return numba_type(value) or getattr(numba.cuda, str(value), value)
        path += name.split(".")
    return named(path) or named(path[-1:]) or value


def named(path):
    """What a path of names leads to from numba.cuda, through attributes and modules; None if it ends."""
    found = numba.cuda
    for number, name in enumerate(path, 1):
        try:
            found = getattr(found, name, None) or importlib.import_module(".".join(("numba.cuda", *path[:number])))
        except ImportError:
            return None
    return found


def numba_type(kind):
    """The numba-cuda type of a scalar type or type of arrays of numba-cuda-mlir, None for other objects."""
    if type(kind).__name__ == "Array":
        return types.Array(numba_type(kind.dtype), kind.ndim, kind.layout, readonly=not kind.mutable)
    found = getattr(types, str(kind), None)
    return found if isinstance(found, types.Type) else None


def signature_of_numba_cuda(signature):
    """The types of the arguments of an eager signature. Raises SimulationError for a type that numba-cuda lacks."""
    found = tuple(map(numba_type, signature))
    if None in found:
        raise SimulationError(f"a kernel is declared for {signature[found.index(None)]}, a type that numba-cuda does not have")
    return found


def host_side():
    """(modules with the names of numba.cuda, the module of dispatchers) of the package; None if it cannot be imported."""
    if importlib.util.find_spec(PACKAGE) is None:
        return None
    try:
        cuda, below, descriptor = (importlib.import_module(f"{PACKAGE}.{name}") for name in ("cuda", "numba_cuda", "descriptor"))
    except (ImportError, OSError):  # its libraries do not load here: a program that needs them will say so
        return None
    importlib.import_module("numba.cuda.random")  # the other package's cuda.random needs no import
    return (cuda, below), descriptor
