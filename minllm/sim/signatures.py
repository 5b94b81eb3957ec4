"""Eager signatures, `@cuda.jit("void(float32[:], int32)")`, of kernels that are simulated.

Numba compiles such a kernel where it is defined. Without a driver that is impossible; once this module is imported, the signature is noted
instead, and a simulation converts the arguments to it.
"""

import functools

from numba.cuda import dispatcher
from numba.cuda.cudadrv.error import CudaSupportError

from minllm.machine.numba_cuda import normalize_signature, types
from minllm.sim.typing.rules import argument_type, best_signature, context


def remember_signature(kernel, signature, result=None):
    """Record an eager signature of a kernel or device function without compiling it; returns the types of its arguments.

    result: the declared type of a device function's result, None if the signature has none.
    """
    arguments = tuple(normalize_signature(signature)[0])
    kernel.__dict__.setdefault("simulated_signatures", {}).setdefault(arguments, result)
    return arguments


def signature_for(kernel, arguments):
    """The types of the eager signature that fits the arguments best; None without signatures. Raises TypeError if none fits."""
    signatures = tuple(getattr(kernel, "simulated_signatures", ()))
    if not signatures:
        return None
    given = [argument_type(argument) for argument in arguments]
    found = best_signature(signatures, given)
    if found is None and len(signatures) == 1 and len(given) == len(signatures[0]):
        found = signatures[0] if all(map(same_integers, given, signatures[0])) else None
    if found is None:
        listed = ", ".join(str(tuple(one)) for one in signatures)
        raise TypeError(f"No matching definition for argument type(s) {', '.join(map(str, given))}: the kernel is declared for {listed}")
    return found


def same_integers(given, wanted):
    """Whether a type converts to another, or both are arrays of integers of one size, which a GPU launch does not check."""
    if fits(given, wanted):
        return True
    arrays = isinstance(given, types.Array) and isinstance(wanted, types.Array) and given.ndim == wanted.ndim
    return arrays and all(isinstance(one.dtype, types.Integer) for one in (given, wanted)) and given.dtype.bitwidth == wanted.dtype.bitwidth


def fits(given, wanted):
    """Whether Numba converts an argument of one type to another."""
    return given is None or context().can_convert(given, wanted) is not None


def noted_without_driver(method):
    """A dispatcher's method that compiles; without a driver it notes the signature."""

    @functools.wraps(method)
    def compile(kernel, signature, *rest):
        try:
            return method(kernel, signature, *rest)
        except CudaSupportError as error:
            kernel.without_driver = error
            return remember_signature(kernel, signature, *rest)

    return compile


def forbidden_without_driver(method):
    """`kernel[grid, block]`, which raises the driver's error if the kernel could not be compiled where it is defined."""

    @functools.wraps(method)
    def configure(kernel, *how, **named):
        if hasattr(kernel, "without_driver"):
            raise kernel.without_driver
        return method(kernel, *how, **named)

    return configure


def skipped_without_driver(method):
    """A dispatcher's method that does nothing if the kernel could not be compiled."""
    return functools.wraps(method)(lambda kernel, *given: None if hasattr(kernel, "without_driver") else method(kernel, *given))


CHANGED = {
    "compile": noted_without_driver,
    "compile_device": noted_without_driver,
    "disable_compile": skipped_without_driver,
    "configure": forbidden_without_driver,
}
for _name, _change in CHANGED.items():
    setattr(dispatcher.CUDADispatcher, _name, _change(getattr(dispatcher.CUDADispatcher, _name)))
