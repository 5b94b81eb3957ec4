"""`simulate_ranks` runs one kernel on several GPUs at once, each with its own memory and arguments.

    simulate_ranks(kernel, grid, block, [(x0, out0, (x0, x1)), (x1, out1, (x0, x1))])

An array that is passed to one rank only is that rank's own memory; an array that is passed to several ranks is peer memory. The blocks of
all ranks run at the same time, so a rank may wait for another. Fences and atomics of GPU scope and block barriers order only blocks of one
rank. Two ranks are ordered by a store with release and a load with acquire, both of system scope (system_scope.py). The detectors find
reads of a peer's data before its flag.
"""

from minllm.errors import SimulationError
from minllm.sim.cooperative import COOPERATIVE_NAMES
from minllm.sim.detectors import detectors, is_detecting
from minllm.sim.machine import Block, run_together
from minllm.sim.monitor import Launch, combined
from minllm.sim.rewrite import for_simulation
from minllm.sim.scalars import simulated_type
from minllm.sim.simulator import (
    BlockIndices,
    argument_names,
    check_arguments,
    check_launch,
    dimensions,
    launch_bounds,
    numba_argument_type,
    prepare,
    standing_monitors,
)
from minllm.sim.watchdog import watched


def simulate_ranks(kernel, grid, block, arguments, shared_bytes=0, monitors=(), order=None, detect=None):
    """Run `kernel` on len(arguments) GPUs at once: rank r gets arguments[r]. All ranks launch the same grid of the same blocks.

    The other parameters are those of `simulate`. A tuple of arrays is one argument, which passes a rank its peers' memory. Raises
    SimulationError as `simulate` does; the messages name the rank.
    """
    grid, block = dimensions(grid), dimensions(block)
    check_launch(grid, block, shared_bytes, launch_bounds(kernel))
    argument_types = types_of_all(kernel, arguments)
    detect = is_detecting() if detect is None else detect
    monitor = combined([*(detectors() if detect else ()), *monitors, *(make() for make in standing_monitors)])
    function, twins = for_simulation(kernel, argument_types, monitor and monitor.scalar_type or simulated_type)
    if twins.names & COOPERATIVE_NAMES:
        raise SimulationError("cuda.cg.this_grid() in a launch over several ranks, where the simulator has no barrier of a grid: use flags")
    arrays, prepared = {}, []
    for rank, own in enumerate(arguments):
        named = zip(own, argument_types, argument_names(kernel, len(own)))
        prepared.append([prepare(one, kind, f"rank {rank}'s {name}", monitor, arrays, twins) for one, kind, name in named])
    if monitor is not None:
        monitor.start(Launch(kernel, function, tuple(grid), tuple(block), shared_bytes, arrays))
    places = [(index, rank) for index in BlockIndices(grid, order) for rank in range(len(arguments))]
    blocks = [Block(index, block, grid, shared_bytes, monitor, launch_bounds(kernel)[1], gpu=rank) for index, rank in places]
    for other in blocks:
        other.runnable = blocks[0].runnable
    with watched():
        run_together(blocks, function, [prepared[rank] for _, rank in places])
    if monitor is not None:
        monitor.end()


def types_of_all(kernel, arguments):
    """The Numba types of the arguments, which are the same for all ranks. Raises SimulationError if they differ."""
    for own in arguments:
        check_arguments(kernel, own)
    types = {tuple(map(getattr(kernel, "argument_type", numba_argument_type), own)) for own in arguments}
    if len(types) != 1:
        raise SimulationError(f"the ranks of a launch take arguments of the same types, and are given {len(types)} kinds: {types}")
    return types.pop()
