"""The rules of Numba's typing context: types of arguments, calls and attributes, and the common type of two."""

import functools

import numpy as np
from numba.cuda.descriptor import cuda_target

from minllm.machine.numba_cuda import Purpose, from_dtype, numba_target_override, typeof, types

BFLOAT16 = "bfloat16"  # the name of the dtype


@functools.cache
def context():
    """Numba's typing context for CUDA, with all its registries loaded."""
    cuda_target.typing_context.refresh()
    return cuda_target.typing_context


def argument_type(value):
    """The type of an argument of a `@cuda.jit` kernel: int64 for an int, float64 for a float; None if Numba has no type for it."""
    if hasattr(value, "numba_type"):  # an object that states its own type: a tensor map
        return value.numba_type
    if isinstance(value, np.ndarray):
        element = types.bfloat16 if value.dtype.name == BFLOAT16 else element_type(value.dtype)
        return element and types.Array(element, value.ndim, layout_of(value))
    try:
        return typeof(value, Purpose.argument)
    except Exception:  # a typing function may raise anything
        return None


def layout_of(array):
    """Numba's layout letter of an array: "C", "F" or "A"."""
    return "C" if array.flags.c_contiguous else "F" if array.flags.f_contiguous else "A"


@functools.cache
def element_type(dtype):
    """The Numba type of a NumPy dtype, or None."""
    try:
        return types.bfloat16 if np.dtype(dtype).name == BFLOAT16 else from_dtype(np.dtype(dtype))
    except Exception:  # a typing function may raise anything
        return None


@functools.cache
def call_signature(function, arguments):
    """The Numba signature of a call, or None. function: an operator, a builtin, a function of math, libdevice or numba.cuda."""
    try:
        with numba_target_override():
            return context().resolve_function_type(function, arguments, {})
    except Exception:  # a typing function may raise anything
        return None


@functools.cache
def attribute_type(owner, name):
    """The type of an attribute of a value of type `owner`, or None."""
    try:
        return context().resolve_getattr(owner, name)
    except Exception:  # a typing function may raise anything
        return None


@functools.cache
def common_type(first, second):
    """The type of a variable to which values of both types are assigned, or None."""
    return context().unify_types(first, second)


@functools.cache
def intrinsic_signature(intrinsic, arguments, literals):
    """The signature of a call of a Numba intrinsic, or None. literals: the argument types with IntegerLiteral for known integers."""
    for candidates in (arguments, literals):
        try:
            found = intrinsic._defn(context(), *candidates)
        except Exception:  # a typing function may raise anything
            continue
        if found is not None:
            return found[0]
    return None


def is_generic(template):
    """Whether an overload is for all targets; overloads for CUDA have priority."""
    return getattr(template, "metadata", {}).get("target", "generic") == "generic"


def overload_of(function, arguments, literals, named):
    """The implementation that `@overload` registered for a Python function and these argument types, or None.

    literals: the argument types with IntegerLiteral for known integers. named: {name: type} of keyword arguments.
    """
    context().refresh()  # loads overloads that were registered in the meantime
    try:
        templates = context().resolve_value_type(function).templates
    except Exception:  # a typing function may raise anything
        return None
    for template in sorted(templates, key=is_generic):
        found = implementation(template, arguments, literals, named)
        if found is not None:
            return found
    return None


def method_overload_of(owner, name, arguments, literals, named):
    """The implementation that `@overload_method` registered for a type, or None; its first argument is the owner."""
    context().refresh()
    try:
        template = context().resolve_getattr(owner, name).template
    except Exception:  # a typing function may raise anything
        return None
    return implementation(template, (owner, *arguments), (owner, *literals), named)


def implementation(template, arguments, literals, named):
    """The implementation that an overload returns for argument types, tried with literal types first if it prefers them."""
    implement = getattr(template, "_overload_func", None)
    preferred = (literals, arguments) if getattr(template, "prefer_literal", False) else (arguments, literals)
    for candidates in preferred if implement is not None else ():
        try:
            found = implement(*candidates, **named)
        except Exception:  # a typing function may raise anything
            continue
        if found is not None:
            return found
    return None


def best_signature(signatures, given):
    """The tuple of argument types to which Numba converts the given ones with the least loss; None if there is none."""
    rated = []
    for number, wanted in enumerate(signatures):
        if len(wanted) == len(given):
            steps = [0 if one is None else context().can_convert(one, other) for one, other in zip(given, wanted)]
            if None not in steps:
                rated.append((sorted(map(int, steps), reverse=True), number))
    return signatures[min(rated)[1]] if rated else None
