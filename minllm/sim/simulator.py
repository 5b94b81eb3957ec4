"""`simulate`: run a kernel, block after block, over NumPy arrays."""

import numpy as np

from minllm.sim.arrays import CheckedArray
from minllm.sim.machine import Block, Dimensions
from minllm.sim.rewrite import for_simulation


def simulate(kernel, grid, block, *arguments, shared_bytes=0):
    """Run `kernel` on the CPU as a GPU would: `grid` blocks of `block` threads, in order, deterministically.

    kernel: a kernel of this package, a `@cuda.jit` dispatcher, or a plain function written for numba.cuda.
    arguments: C-contiguous NumPy arrays, written in place, and scalars. shared_bytes: dynamic shared memory of a block.
    Raises SimulationError for what a GPU forbids or leaves undefined: an access out of bounds or misaligned, threads that wait for
    others who never come.
    """
    function = for_simulation(kernel)
    grid, block = dimensions(grid), dimensions(block)
    prepared = [prepare(argument) for argument in arguments]
    for z in range(grid.z):
        for y in range(grid.y):
            for x in range(grid.x):
                Block(Dimensions(x, y, z), block, grid, shared_bytes).run(function, prepared)


def dimensions(size):
    """A grid or block given as an int or a tuple, as Dimensions."""
    return Dimensions(*(int(n) for n in size)) if isinstance(size, (tuple, list)) else Dimensions(int(size))


def prepare(argument):
    """An argument as the kernel sees it: arrays checked, floats as float32, integers as they are."""
    if isinstance(argument, np.ndarray):
        return CheckedArray(argument)
    if isinstance(argument, float):
        return np.float32(argument)
    return int(argument) if isinstance(argument, np.integer) else argument
