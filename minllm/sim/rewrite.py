"""Make a kernel runnable on the CPU: the same code with other globals.

In globals and closures, recursively, `cuda`, `math`, Numba's scalar types, device functions, and every function with an `.emulation` are
replaced by simulated twins. The kernel's own source is unchanged; its code gets additional casts if Numba's types differ from Python's
(minllm.sim.typing).
"""

import functools
import math
import types as python_types

import numba.cuda
import numpy as np

from minllm.machine.numba_cuda import _Intrinsic, from_dtype, types
from minllm.sim.arrays import CheckedArray, fail
from minllm.sim.cuda_math import SimulatedLibdevice, SimulatedMath
from minllm.sim.cuda_module import Indices, SimulatedCuda
from minllm.sim.half_precision import half_precision
from minllm.sim.numba_cuda_mlir import is_foreign, of_numba_cuda
from minllm.sim.scalars import simulated_type
from minllm.sim.typing.functions import Inference, infer_kernel
from minllm.sim.typing.source import edited_code, with_numba_constants
from minllm.sim.vectors import is_vector_stub, vector_type

CUDA, MATH, LIBDEVICE = SimulatedCuda(), SimulatedMath(), SimulatedLibdevice()
CUDA.twin_of_module = lambda module: swap(module, Twins(simulated_type))

# Names of numba.cuda that a kernel's module may have imported directly, as in `from numba.cuda import syncthreads`.
IMPORTED = {id(getattr(numba.cuda, name)): name for name in dir(SimulatedCuda) if not name.startswith("_") and hasattr(numba.cuda, name)}
captured_array = None  # in simulated launches, a function that returns the NumPy array of a device array in a kernel's globals
INDICES = {id(getattr(numba.cuda, name)): name for name in ("threadIdx", "blockIdx", "blockDim", "gridDim")}


def for_simulation(kernel, argument_types, scalar_type=simulated_type):
    """(simulated twin of a kernel for these argument types, its Twins). scalar_type: Numba type -> cast."""
    twins = Twins(scalar_type)
    return rewrite(kernel_inference(kernel, argument_types) or plain_function(kernel), twins), twins


def kernel_inference(kernel, argument_types):
    """The Inference of a kernel for these argument types, with contraction if its options allow it; None without its source."""
    options = {**getattr(kernel, "targetoptions", {}), **getattr(kernel, "options", {})}
    contract = options.get("contract", True) and not (options.get("debug") and not options.get("opt"))
    return infer_kernel(plain_function(kernel), argument_types, contract)


class Twins(dict):
    """{function: its twin} of the functions rewritten so far, which ends recursion. scalar_type: Numba type -> cast."""

    def __init__(self, scalar_type):
        super().__init__()
        self.scalar_type = scalar_type
        self.names = set()  # all names that the functions refer to


def plain_function(value):
    """The Python function of a Kernel or Numba dispatcher; any other value itself."""
    value = getattr(value, "function", value)
    return getattr(value, "py_func", value)


def rewrite(function, done):
    """The twin of a function, or of an Inference, with simulated globals and closure and added casts. done: the existing Twins."""
    if function in done:
        return done[function]
    inference = function if isinstance(function, Inference) else None
    known, injected = {}, {}
    if inference is not None:
        function, known = inference.function, inference.names
    code = function.__code__
    if inference is not None and inference.edited:
        code, injected = edited_code(inference)
    code = with_numba_constants(code, code.co_filename)
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
    closure = tuple(python_types.CellType() for _ in code.co_freevars)
    namespace = dict(function.__globals__)
    twin = python_types.FunctionType(code, namespace, function.__name__, swap(function.__defaults__, done), closure)
    twin.simulated_twin_of = function
    done[function if inference is None else inference] = twin
    names = names_used(code)
    done.names |= names
    for name in names:
        if name in namespace:
            namespace[name] = swap(known.get(name, namespace[name]), done, name)
    if "print" in names:
        namespace.setdefault("print", printed)
    for name, thing in injected.items():
        namespace[name] = rewrite(thing, done) if isinstance(thing, Inference) else swap(thing, done)
    for name, cell in zip(code.co_freevars, closure):
        cell.cell_contents = swap(known[name] if name in known else cells[name].cell_contents, done, name)
    return twin


def printed(*values):
    """Python's `print` in a kernel, in which a number of NumPy inside a tuple is printed as one outside it is."""
    print(*map(text_of, values))


def text_of(value):
    """The text of a number or a tuple that a kernel prints."""
    if not isinstance(value, tuple):
        return str(value)
    return f"({', '.join(map(text_of, value))}{',' * (len(value) == 1)})"


def names_used(code):
    """The global names that a code object and those nested in it refer to."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, python_types.CodeType):
            names |= names_used(constant)
    return names


def swap(value, done, name=""):
    """The simulated twin of a value that a kernel refers to as `name`; the value itself if it needs none."""
    value = of_numba_cuda(value)
    if value is numba.cuda:
        return CUDA
    if value is math:
        return MATH
    if value is getattr(numba.cuda, "libdevice", None):
        return LIBDEVICE
    if isinstance(value, python_types.BuiltinFunctionType) and value.__module__ == "math":
        return getattr(MATH, value.__name__)
    if id(value) in INDICES:
        return Indices(functools.partial(getattr, CUDA, INDICES[id(value)]))
    if id(value) in IMPORTED:
        return getattr(CUDA, IMPORTED[id(value)])
    if is_vector_stub(value):
        return vector_type(value.__name__)
    if (found := half_precision(value)) is not None:
        return found
    if isinstance(value, types.Type):
        return done.scalar_type(value)
    if isinstance(value, type) and issubclass(value, np.integer):
        return done.scalar_type(from_dtype(np.dtype(value)))
    if isinstance(value, (float, np.integer)):
        return np.float64(value) if isinstance(value, float) else int(value)
    if isinstance(value, np.ndarray):
        return CheckedArray(value, "constant", name=name)
    if captured_array is not None and hasattr(value, "__cuda_array_interface__"):
        return CheckedArray(captured_array(value), "global", name=name)
    if isinstance(value, python_types.ModuleType):
        return SimulatedModule(value, done)
    if isinstance(value, tuple):
        return swap_fields(value, done, name)
    if getattr(value, "emulation", None) is not None:
        return value.emulation
    if hasattr(value, "py_func"):
        return rewrite(value.py_func, done)
    if is_foreign(value):
        return unsupported(f"{value.__module__}.{getattr(value, '__name__', value)}")
    if isinstance(value, (_Intrinsic, types.ExternalFunction)) or type(value).__name__ == "ExternFunction":  # of declare_device
        return unsupported(getattr(value, "__name__", None) or value.name)
    return value


def swap_fields(value, done, name):
    """The twin of a tuple, such as a NamedTuple of device functions."""
    swapped = [swap(item, done, f"{name}[{number}]") for number, item in enumerate(value)]
    if all(new is old for new, old in zip(swapped, value)):
        return value
    return value._make(swapped) if hasattr(value, "_make") else type(value)(swapped)


def unsupported(name):
    """The twin of an intrinsic without emulation: raises SimulationError when it is called."""

    def refuse(*arguments):
        fail(f"{name} has no emulation: the simulator cannot run it (give it an attribute `emulation`, a Python function)")

    return refuse


class SimulatedModule:
    """A module inside a simulated kernel: each of its names is swapped at its first use."""

    def __init__(self, module, done):
        self._module, self._done = module, done

    def __getattr__(self, name):
        value = swap(getattr(self._module, name), self._done)
        setattr(self, name, value)
        return value
