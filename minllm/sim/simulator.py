"""`simulate` runs a kernel over NumPy arrays, block after block."""

import copy
import functools
import inspect
import numbers
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from minllm.errors import SimulationError
from minllm.machine.call_frames import with_room
from minllm.machine.numba_cuda import types
from minllm.sim.array_bytes import offset_of_first
from minllm.sim.cluster import check_cluster, run_cluster
from minllm.sim.cooperative import COOPERATIVE_NAMES, run_cooperatively
from minllm.sim.detectors import detectors, is_detecting
from minllm.sim.engines import chosen_engine, launches
from minllm.sim.lanes.engine import SUSPICION, UNFORESEEN, disagree, run_in_lanes, was_in_vain
from minllm.sim.machine import SHARED_MEMORY_BYTES, Block
from minllm.sim.monitor import Launch, combined, hears
from minllm.sim.monitored_arrays import checked
from minllm.sim.place import item_names
from minllm.sim.processes import check_spreading, spread
from minllm.sim.progress import shown
from minllm.sim.records import Record
from minllm.sim.rewrite import for_simulation, plain_function, swap
from minllm.sim.scalars import simulated_type
from minllm.sim.signatures import signature_for
from minllm.sim.thread import Dimensions
from minllm.sim.trace_timeline import Timeline
from minllm.sim.typing.rules import argument_type as numba_argument_type
from minllm.sim.typing.rules import element_type
from minllm.sim.watchdog import watched

LARGEST_BLOCK, LARGEST_BLOCK_Z = 1024, 64  # threads
LARGEST_GRID_X, LARGEST_GRID_Y = 2**31 - 1, 65_535  # blocks; the second along y or z
HOST_OF_DLPACK = 1  # kDLCPU in dlpack.h
standing_monitors = []  # functions that are called at every launch and return a Monitor for it


def simulate(
    kernel,
    grid,
    block,
    *arguments,
    shared_bytes=0,
    monitors=(),
    order=None,
    cluster=None,
    detect=None,
    processes=1,
    types=None,
    engine=None,
):
    """Run `kernel` on the CPU as a GPU would: `grid` blocks of `block` threads, deterministically.

    kernel: a minllm kernel, a `@cuda.jit` dispatcher, or a plain function written for numba.cuda.
    arguments: scalars and NumPy arrays, C-contiguous or with gaps between rows, or tensors on the host with a `__dlpack__`, as PyTorch's;
    the kernel writes to them in place.
    shared_bytes: dynamic shared memory per block.
    monitors: Monitors of this launch. order: None runs the blocks in order; an integer seeds a shuffle, which exposes a kernel that
    depends on the order of its blocks. cluster: blocks per cluster along x, y and z; they run together.
    detect: whether all detectors run too (minllm.sim.detectors); None: only inside the context `detecting()`.
    processes: the number of processes that share the blocks, if blocks do not communicate (minllm.sim.processes). Detectors then check
    each block, but find no race between blocks.
    types: the declared Numba types of the arguments; None: those of the kernel's eager signature, else the types that Numba infers.
    engine: "lanes" or "threads"; None: that of the context or the environment (minllm.sim.engines). The results are the same.
    A launch that will take more than about a minute reports this on standard error and shows its progress.
    Raises SimulationError for what a GPU forbids or leaves undefined, such as an access out of bounds or misaligned, or a deadlock; with
    detectors also for what they find.
    """
    grid, block, arguments = dimensions(grid), dimensions(block), tuple(map(host_tensor, arguments))
    detect = is_detecting() if detect is None else detect
    watching = [*monitors, *(make() for make in standing_monitors)]
    types = types or signature_for(kernel, arguments)
    argument_types = types or tuple(map(getattr(kernel, "argument_type", numba_argument_type), arguments))
    check_launch(grid, block, shared_bytes, launch_bounds(kernel))
    check_arguments(kernel, arguments)
    how = How(kernel, grid, block, argument_types, shared_bytes, order, cluster)
    if processes > 1:
        check_spreading(watching, cluster, for_simulation(kernel, argument_types)[1].names)
        processes = min(processes, grid.x * grid.y * grid.z)
        spread(functools.partial(run_share, how, detect, processes), arguments, processes)
        return
    in_lanes = chosen_engine(engine) == "lanes" and all(hears(monitor, "traced") for monitor in watching)
    why = why_in_threads(how, arguments, detect, watching) if in_lanes else ""
    if why is None:
        return
    monitor = combined([*(detectors() if detect else ()), *watching])
    run(how, arguments, monitor)
    if monitor is not None:
        monitor.end()
    if why.startswith(SUSPICION):
        was_in_vain(how, detect)
    elif why.startswith(UNFORESEEN):
        disagree(how, why)


class How(NamedTuple):
    """The parameters of a launch besides its arguments; see `simulate`."""

    kernel: Any
    grid: Dimensions
    block: Dimensions
    types: tuple
    shared_bytes: int
    order: int | None
    cluster: Any


@with_room
def why_in_threads(how, arguments, detect, tracers):
    """Run a launch in lanes and return None; or why the threads must run it, with all arrays unchanged. tracers: monitors of its Trace."""
    names, indices = argument_names(how.kernel, len(arguments)), BlockIndices(how.grid, how.order)
    timeline = functools.partial(run_for_timeline, how, arguments) if tracers else None
    why, trace = run_in_lanes(how, names, arguments, indices, detect, launch_bounds(how.kernel)[1], timeline)
    for number, tracer in enumerate(tracers if trace is not None else ()):
        tracer.traced(copy.deepcopy(trace) if number else trace)
    launches[plain_function(how.kernel).__name__, why] += 1
    return why


def run_for_timeline(how, arguments, steps):
    """The Timeline of the first blocks or clusters of a launch, run in threads."""
    timeline = Timeline()
    run(how, arguments, combined([timeline]), slice(steps))
    return timeline


def run_share(how, detect, processes, arguments, number):
    """Run every `processes`-th block from block `number` on, in one of the processes of a launch."""
    run(how, arguments, combined(detectors() if detect else ()), slice(number, None, processes))


@with_room
def run(how, arguments, monitor, share=slice(None)):
    """Run the blocks of a launch. share: a slice of the launch's steps, by default all."""
    function, twins = for_simulation(how.kernel, how.types, monitor and monitor.scalar_type or simulated_type)
    arrays = {}
    named = zip(arguments, how.types, argument_names(how.kernel, len(arguments)))
    prepared = [prepare(argument, kind, name, monitor, arrays, twins) for argument, kind, name in named]
    if monitor is not None:
        monitor.start(Launch(how.kernel, function, tuple(how.grid), tuple(how.block), how.shared_bytes, arrays))
    _, resident = launch_bounds(how.kernel)
    make_block = functools.partial(
        Block, dimensions=how.block, grid=how.grid, shared_bytes=how.shared_bytes, monitor=monitor, resident=resident
    )
    step, places = launch_steps(twins.names, how.grid, how.order, how.cluster)
    try:
        with watched(), shown(function.__name__, len(places[share])) as progress:
            for place in places[share]:
                step(place, make_block, function, prepared)
                progress.done += 1
    except Exception as error:
        if monitor is not None:
            monitor.stopped(error)
        raise


def launch_steps(names, grid, order, cluster):
    """The launch as (function, places): the function runs one block, cluster or cooperative grid to its end, given its place."""
    if cluster is not None:
        size = check_cluster(cluster, grid)
        firsts = BlockIndices(Dimensions(grid.x // size.x, grid.y // size.y, grid.z // size.z), order)
        places = [Dimensions(index.x * size.x, index.y * size.y, index.z * size.z) for index in firsts]
        return functools.partial(run_cluster, dimensions=size), places
    if names & COOPERATIVE_NAMES:
        return run_cooperatively, [BlockIndices(grid, order)]
    return run_block, BlockIndices(grid, order)


def run_block(index, make_block, function, arguments):
    """Run one block."""
    make_block(index).run(function, arguments)


class BlockIndices(Sequence):
    """The index of every block: x fastest, or shuffled by the seed `order`. Each is made when it is asked for: grids have millions."""

    def __init__(self, grid, order=None):
        self.grid, self.numbers = grid, range(grid.x * grid.y * grid.z)
        if order is not None:
            self.numbers = list(self.numbers)
            random.Random(order).shuffle(self.numbers)

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, place):
        if isinstance(place, slice):
            part = copy.copy(self)
            part.numbers = self.numbers[place]
            return part
        row, x = divmod(self.numbers[place], self.grid.x)
        z, y = divmod(row, self.grid.y)
        return Dimensions(x, y, z)


def dimensions(size):
    """A grid or block given as an int or a tuple, as Dimensions. Raises SimulationError for anything else, such as the float n / 32."""
    sizes = size if isinstance(size, (tuple, list)) else (size,)
    if not (1 <= len(sizes) <= 3 and all(isinstance(one, numbers.Integral) for one in sizes)):
        raise SimulationError(f"{size!r} is not the size of a grid or of a block: give one to three integers, such as (n + 31) // 32")
    return Dimensions(*map(int, sizes))


def argument_names(kernel, count):
    """The names of a kernel's parameters."""
    names = list(inspect.signature(plain_function(kernel)).parameters)
    return names + [""] * (count - len(names))


def launch_bounds(kernel):
    """A kernel's launch bounds: (most threads per block, blocks per SM); (None, 1) without bounds."""
    bounds = {**getattr(kernel, "targetoptions", {}), **getattr(kernel, "options", {})}.get("launch_bounds")
    most, *blocks = bounds if isinstance(bounds, tuple) else (bounds,)
    return most, blocks[0] if blocks else 1


def check_launch(grid, block, shared_bytes, bounds):
    """Raise SimulationError for a grid, block or dynamic shared memory beyond a GPU's limits, or a block beyond the kernel's launch bounds.

    Source of the limits: CUDA C++ Programming Guide, "Compute Capabilities".
    """
    if min(*grid, *block) < 1:
        raise SimulationError(f"a grid of {tuple(grid)} blocks of {tuple(block)} threads; a GPU takes at least 1 along each axis")
    if grid.x > LARGEST_GRID_X or grid.y > LARGEST_GRID_Y or grid.z > LARGEST_GRID_Y:
        raise SimulationError(f"a grid of {tuple(grid)} blocks; a GPU takes {LARGEST_GRID_Y} along y and along z, {LARGEST_GRID_X} along x")
    if block.x * block.y * block.z > LARGEST_BLOCK or block.z > LARGEST_BLOCK_Z:
        raise SimulationError(f"a block of {tuple(block)} threads; a GPU takes {LARGEST_BLOCK} in all, and {LARGEST_BLOCK_Z} along z")
    if not (isinstance(shared_bytes, numbers.Integral) and 0 <= shared_bytes <= SHARED_MEMORY_BYTES):
        raise SimulationError(f"{shared_bytes!r} bytes of dynamic shared memory; a GPU takes an integer from 0 to {SHARED_MEMORY_BYTES}")
    threads, (most, _) = block.x * block.y * block.z, bounds
    if most is not None and threads > most:
        raise SimulationError(f"a block of {threads} threads; the kernel's launch_bounds allow {most}")


def check_arguments(kernel, arguments):
    """Raise SimulationError for a wrong number of arguments, or an argument that Numba does not accept."""
    function = plain_function(kernel)
    try:
        names = list(inspect.signature(function).bind(*arguments).arguments)
    except TypeError as error:
        takes = ", ".join(inspect.signature(function).parameters)
        raise SimulationError(f"{function.__name__}({takes}) is launched with {len(arguments)} arguments: {error}") from None
    for name, argument in zip(names, arguments):
        if what := refused(argument):
            raise SimulationError(
                f"argument {name} of {function.__name__} is {what}, which no kernel takes: pass an array of numbers in NumPy's byte order, "
                "or a number of at most 64 bits"
            )


def refused(argument):
    """What an argument is that Numba does not accept, or None. Arrays of ml_dtypes, for which it has no types, may be viewed as bytes."""
    if isinstance(argument, (list, dict, set, np.ma.MaskedArray)):
        return f"a {type(argument).__name__}"
    if isinstance(argument, np.ndarray):
        of_numpy = argument.dtype.type.__module__ == "numpy"
        kind = "Python objects" if argument.dtype.hasobject else argument.dtype
        return f"an array of {kind}" if argument.dtype.hasobject or (of_numpy and element_type(argument.dtype) is None) else None
    return str(argument) if isinstance(argument, int) and not -(2**63) <= argument < 2**64 else None


def host_tensor(argument):
    """A tensor on the host as a NumPy array of the same memory, as numba-cuda takes it; other arguments unchanged."""
    is_tensor = hasattr(argument, "__dlpack_device__") and not isinstance(argument, np.ndarray)
    return np.from_dlpack(argument) if is_tensor and argument.__dlpack_device__()[0] == HOST_OF_DLPACK else argument


def prepare(argument, kind=None, name="", monitor=None, arrays=None, twins=None):
    """An argument as the kernel gets it: CheckedArrays for arrays, numbers cast to the Numba type `kind`."""
    if isinstance(argument, np.ndarray):
        seen = {} if arrays is None else arrays
        address = argument.__array_interface__["data"][0]
        # An array that is passed under two names has one root, so that monitors see a single memory.
        root = next((a.root for a in seen.values() if monitor is not None and a.data.__array_interface__["data"][0] == address), None)
        base = offset_of_first(argument) if root is None else root.base
        seen[name] = checked(argument, "global", base, name, monitor, root)
        return seen[name]
    if isinstance(argument, np.void) and argument.dtype.names is not None:
        return Record(prepare(np.asarray(argument).reshape(1), None, name, monitor, arrays), 0)
    if isinstance(argument, tuple):
        kinds = tuple(kind) if isinstance(kind, types.BaseTuple) else (None,) * len(argument)
        items = zip(argument, kinds, item_names(argument, name))
        made = [prepare(one, inner, item, monitor, arrays, twins) for one, inner, item in items]
        return type(argument)._make(made) if hasattr(argument, "_make") else tuple(made)
    if hasattr(argument, "with_array"):  # an object that holds an array: a tensor map
        return argument.with_array(lambda array: prepare(array, None, name, monitor, arrays))
    if twins is not None and hasattr(argument, "py_func"):  # a device function
        return swap(argument, twins)
    if isinstance(kind, (types.Number, types.Boolean)) and isinstance(argument, (int, float, np.number, np.bool_)):
        number = simulated_type(kind)(argument)
        return number if monitor is None or monitor.scalar_argument is None else monitor.scalar_argument(number)
    return argument
