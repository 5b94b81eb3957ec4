"""`simulate`: run a kernel, block after block, over NumPy arrays."""

import functools
import inspect
import random

import numpy as np

from minllm.sim.cluster import check_cluster, run_cluster
from minllm.sim.cooperative import COOPERATIVE_NAMES, run_cooperatively
from minllm.sim.detectors import detectors, is_detecting
from minllm.sim.machine import Block
from minllm.sim.monitor import Launch, combined
from minllm.sim.monitored_arrays import checked
from minllm.sim.processes import SharedArguments, check_spreading
from minllm.sim.progress import run_in_turn
from minllm.sim.rewrite import for_simulation, plain_function
from minllm.sim.scalars import simulated_type
from minllm.sim.thread import Dimensions

standing_monitors = []  # each is called at every launch and gives a Monitor that watches it


def simulate(kernel, grid, block, *arguments, shared_bytes=0, monitors=(), order=None, cluster=None, detect=None, processes=1):
    """Run `kernel` on the CPU as a GPU would: `grid` blocks of `block` threads, deterministically.

    kernel: a kernel of this package, a `@cuda.jit` dispatcher, or a plain function written for numba.cuda.
    arguments: NumPy arrays, C-contiguous or with gaps between rows, written in place, and scalars. shared_bytes: dynamic shared memory
    of a block.
    monitors: Monitors that watch. order: None runs the blocks in order; an integer seeds a shuffle, so that a kernel whose blocks
    depend on each other's order shows it. cluster: blocks of a cluster, along x, y and z; they run together.
    detect: run all detectors too (minllm.sim.detectors); None follows the context `detecting()`, which is off unless somebody entered it.
    processes: spread the blocks over so many processes, for kernels whose blocks do not speak to each other (minllm.sim.processes).
    A launch that will take more than about a minute says so on standard error and shows progress.
    Raises SimulationError for what a GPU forbids or leaves undefined: an access out of bounds or misaligned, threads that wait for
    others who never come; with detectors also what they find.
    """
    grid, block = dimensions(grid), dimensions(block)
    detect = is_detecting() if detect is None else detect
    watching = [*monitors, *(make() for make in standing_monitors)]
    monitor = combined([*(detectors() if detect else ()), *watching])
    function, names = for_simulation(kernel, monitor.scalar_type or simulated_type) if monitor else for_simulation(kernel)
    if processes > 1:
        check_spreading(watching, cluster, names)
        memory = SharedArguments(arguments)
        arguments = memory.arguments
    arrays = {}
    prepared = [prepare(argument, name, monitor, arrays) for argument, name in zip(arguments, argument_names(kernel, len(arguments)))]
    if monitor is not None:
        monitor.start(Launch(kernel, function, tuple(grid), tuple(block), shared_bytes, arrays))
    bounds = getattr(kernel, "options", {}).get("launch_bounds")
    resident = bounds[1] if isinstance(bounds, tuple) else 1
    make_block = functools.partial(Block, dimensions=block, grid=grid, shared_bytes=shared_bytes, monitor=monitor, resident=resident)
    steps = launch_steps(function, prepared, names, grid, order, cluster, make_block)
    if processes > 1:
        memory.run(steps, processes)
    else:
        run_in_turn(steps, function.__name__)
    if monitor is not None:
        monitor.end()


def launch_steps(function, arguments, names, grid, order, cluster, make_block):
    """The launch as functions to call in turn, each of which runs a block, a cluster or a cooperative grid to its end."""
    if cluster is not None:
        size = check_cluster(cluster, grid)
        firsts = block_indices(Dimensions(grid.x // size.x, grid.y // size.y, grid.z // size.z), order)
        places = (Dimensions(index.x * size.x, index.y * size.y, index.z * size.z) for index in firsts)
        return [functools.partial(run_cluster, first, size, make_block, function, arguments) for first in places]
    if names & COOPERATIVE_NAMES:
        return [functools.partial(run_cooperatively, block_indices(grid, order), make_block, function, arguments)]
    return [functools.partial(run_block, index, make_block, function, arguments) for index in block_indices(grid, order)]


def run_block(index, make_block, function, arguments):
    """Run one block."""
    make_block(index).run(function, arguments)


def block_indices(grid, order=None):
    """The index of every block: x fastest, or shuffled by the seed `order`."""
    indices = [Dimensions(x, y, z) for z in range(grid.z) for y in range(grid.y) for x in range(grid.x)]
    if order is not None:
        random.Random(order).shuffle(indices)
    return indices


def dimensions(size):
    """A grid or block given as an int or a tuple, as Dimensions."""
    return Dimensions(*(int(n) for n in size)) if isinstance(size, (tuple, list)) else Dimensions(int(size))


def argument_names(kernel, count):
    """The names of a kernel's parameters."""
    names = list(inspect.signature(plain_function(kernel)).parameters)
    return names + [""] * (count - len(names))


def prepare(argument, name="", monitor=None, arrays=None):
    """An argument as the kernel sees it: arrays checked, floats as float32, integers as they are."""
    if isinstance(argument, np.ndarray):
        seen = {} if arrays is None else arrays
        address = argument.__array_interface__["data"][0]
        # The same memory under two names is one root, so that monitors see it as one.
        root = next((a.root for a in seen.values() if monitor is not None and a.data.__array_interface__["data"][0] == address), None)
        seen[name] = checked(argument, "global", 0, name, monitor, root)
        return seen[name]
    if hasattr(argument, "with_array"):  # what holds an array, as a tensor map does
        return argument.with_array(lambda array: prepare(array, name, monitor, arrays))
    if isinstance(argument, float):
        return np.float32(argument)
    return int(argument) if isinstance(argument, np.integer) else argument
