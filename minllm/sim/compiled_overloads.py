"""`kernel.overloads` of a simulated program, and with it `kernel.inspect_asm()` and the like.

A simulated launch compiles nothing, but records the types of its arguments. A kernel is compiled for them when its code is first read: for
compute capability 9.0, without a GPU, if a compiler is installed.
"""

import contextlib
import functools
import math

import numpy as np
from numba.cuda import dispatcher

from minllm.sim.host import ATTRIBUTES

noted = []  # dispatchers with a CompiledOnDemand
COMPILING = {name: vars(dispatcher.CUDADispatcher)[name] for name in ("compile", "compile_device")}  # replaced by simulated launches


class CompiledOnDemand:
    """A stand-in for the compiled kernel of one signature, which compiles it when an attribute is first read."""

    objectmode, entry_point = False, None  # Numba reads these attributes of every overload

    def __init__(self, kernel, types):
        self.dispatcher, self.types = kernel, types

    @functools.cached_property
    def compiled(self):
        """Numba's own object for a compiled kernel."""
        with numba_compiles():
            return dispatcher._Kernel(self.dispatcher.py_func, self.types, **self.dispatcher.targetoptions)

    def max_cooperative_grid_blocks(self, blockdim, dynsmemsize=0):
        """The blocks of a cooperative grid on an H100 as far as threads and dynamic shared memory limit them; registers may allow fewer."""
        warps = -(-math.prod(np.atleast_1d(blockdim).tolist()) // ATTRIBUTES["WARP_SIZE"])
        of_threads = ATTRIBUTES["MAX_THREADS_PER_MULTI_PROCESSOR"] // (ATTRIBUTES["WARP_SIZE"] * warps)
        of_memory = ATTRIBUTES["MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"] // (ATTRIBUTES["RESERVED_SHARED_MEMORY_PER_BLOCK"] + dynsmemsize)
        return ATTRIBUTES["MULTIPROCESSOR_COUNT"] * min(of_threads, of_memory, ATTRIBUTES["MAX_BLOCKS_PER_MULTIPROCESSOR"])

    def __getattr__(self, name):
        return getattr(self.compiled, name)


@contextlib.contextmanager
def numba_compiles():
    """Within this context Numba's own compile methods are in place, so that device functions are compiled too."""
    replaced = {name: getattr(dispatcher.CUDADispatcher, name) for name in COMPILING}
    try:
        for name, method in COMPILING.items():
            setattr(dispatcher.CUDADispatcher, name, method)
        yield
    finally:
        for name, method in replaced.items():
            setattr(dispatcher.CUDADispatcher, name, method)


def note(kernel, types):
    """Record a launch of a dispatcher with arguments of these types."""
    is_kernel = isinstance(kernel, dispatcher.CUDADispatcher) and not kernel.targetoptions.get("device")
    if is_kernel and None not in types and types not in kernel.overloads:
        kernel.overloads[types] = CompiledOnDemand(kernel, types)
        noted.append(kernel)


def forget():
    """Remove all CompiledOnDemand from the dispatchers, so that Numba's own launches do not find them."""
    while noted:
        overloads = noted.pop().overloads
        for types in [types for types, made in overloads.items() if isinstance(made, CompiledOnDemand)]:
            del overloads[types]
