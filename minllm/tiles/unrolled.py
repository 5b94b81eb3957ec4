"""Loops that are unrolled before compilation, so that arrays indexed by their counter stay in registers."""

from numba import cuda


def unrolled(body, count: int):
    """The device function that calls body(0, ...), body(1, ...) to body(count - 1, ...).

    The compiler does not unroll a loop with a long body, and arrays that are not indexed by constants cannot stay in registers.
    """
    last, before = count - 1, unrolled(body, count - 1) if count > 1 else None

    @cuda.jit(device=True, forceinline=True)
    def only(*arguments):
        body(0, *arguments)

    @cuda.jit(device=True, forceinline=True)
    def all_of_them(*arguments):
        before(*arguments)
        body(last, *arguments)

    return all_of_them if count > 1 else only
