"""What numba-cuda does not compile, by its own tables: functions, types of arguments, fields of packed records; and parts of Python.

A kernel that Python runs and the compiler refuses would work in the simulator alone.
"""

import ast
import functools

import numpy as np
from numba import config
from numba.cuda import stubs
from numba.cuda.descriptor import cuda_target

from minllm.machine.numba_cuda import HAS_NUMBA_CUDA, _Intrinsic
from minllm.sim.typing.rules import context

CONSTRUCTS = {
    ast.Try: "try",
    ast.TryStar: "try",
    ast.With: "with",
    ast.Delete: "del",
    ast.Global: "global",
    ast.Nonlocal: "nonlocal",
    ast.Yield: "yield",
    ast.YieldFrom: "yield",
    ast.GeneratorExp: "a generator",
    ast.List: "a list",
    ast.ListComp: "a list",
    ast.Dict: "a dict",
    ast.DictComp: "a dict",
    ast.Set: "a set",
    ast.SetComp: "a set",
}
ALLOCATING = [np.array, np.zeros, np.empty, np.ones, np.full, np.arange, np.linspace]
ALLOCATING += [np.zeros_like, np.empty_like, np.ones_like, np.full_like]
INSTEAD = {
    "a list": ": take a tuple, or cuda.local.array",
    "try": ": test for the condition before",
}


def refused_construct(node):
    """Why numba-cuda does not compile a part of Python, or None."""
    name = CONSTRUCTS.get(type(node))
    return name and f"numba-cuda does not compile {name} in a kernel{INSTEAD.get(name, '')}"


def refused_number(node):
    """Why numba-cuda does not compile arithmetic of literals, which Python computes at compile time, or None."""
    if not all(isinstance(part, (ast.BinOp, ast.UnaryOp, ast.Constant, ast.operator, ast.unaryop)) for part in ast.walk(node)):
        return None
    number = compile(ast.fix_missing_locations(ast.Expression(node)), "", "eval").co_consts[0]
    too_large = type(number) is int and not -(2**63) <= number < 2**64
    return f"{ast.unparse(node)} is {number}, which no integer type of numba-cuda holds" if too_large else None


def refused_call(called, kinds, signature):
    """Why numba-cuda does not compile a call with arguments of these types, or None.

    kinds: None for a type that is unknown. signature: found by numba-cuda's typing rules, or None.
    """
    if not HAS_NUMBA_CUDA or (signature is not None and is_lowered(called, signature)):  # Numba's own, older tables lack functions
        return None
    if is_builtin(called) and not is_typed(called):
        return f"numba-cuda does not know {called.__name__}"
    if None in kinds or not (is_builtin(called) or belongs_to_numba(called)):
        return None
    name = called.__qualname__ if isinstance(called, type) else called.__name__
    return f"numba-cuda has no {'np.' * isinstance(called, np.ufunc)}{name} for {', '.join(map(str, kinds))}"


def refused_allocation(called):
    """Why numba-cuda does not compile a call of a function of NumPy that allocates an array, or None."""
    allocates = any(called is one for one in ALLOCATING)
    if not allocates or not HAS_NUMBA_CUDA or getattr(config, "CUDA_ENABLE_NRT", False):
        return None
    return f"numba-cuda allocates no array in a kernel, as np.{called.__name__} does: take cuda.local.array or cuda.shared.array"


def is_builtin(called):
    """Whether a function is one of Python's builtins."""
    return getattr(called, "__module__", None) == "builtins"


def belongs_to_numba(called):
    """Whether numba-cuda's tables decide about a function: one of its stubs or intrinsics, or a ufunc."""
    if isinstance(called, _Intrinsic):
        return called._defn.__module__.startswith("numba.cuda.")
    return isinstance(called, np.ufunc) or (isinstance(called, type) and issubclass(called, stubs.Stub))


@functools.cache
def is_typed(thing):
    """Whether numba-cuda has a type for an object, such as a builtin."""
    try:
        return context().resolve_value_type(thing) is not None
    except Exception:  # a typing function may raise anything
        return False


@functools.cache
def is_lowered(called, signature):
    """Whether numba-cuda has code for a function whose types it accepts."""
    target = cuda_target.target_context
    target.refresh()
    try:
        if isinstance(called, np.ufunc):
            target.get_ufunc_info(called)
        elif not isinstance(called, _Intrinsic):
            target.get_function(called, signature)
    except (KeyError, NotImplementedError):
        return False
    return True


@functools.cache
def refused_field(record, name):
    """Why numba-cuda does not access a field of a record, or None."""
    context()
    try:
        cuda_target.target_context.sentry_record_alignment(record, name)
    except Exception:  # an error of typing
        return f"the field {name!r} of a packed record is not aligned, and numba-cuda refuses it: make the dtype with align=True"
    return None
