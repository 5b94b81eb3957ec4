"""Run a launch in both engines of the simulator and compare the bits that they leave in memory."""

import numpy as np

from minllm.errors import SimulationError
from minllm.sim import simulate
from minllm.sim.engines import launches


def run_in(engine, kernel, grid, block, arguments, **options):
    """(arrays after a launch, the simulator's complaint or None)."""
    copies = [one.copy() if isinstance(one, np.ndarray) else one for one in arguments]
    complaint = None
    try:
        simulate(kernel, grid, block, *copies, engine=engine, **options)
    except SimulationError as error:
        complaint = str(error)
    return [one for one in copies if isinstance(one, np.ndarray)], complaint


def compare(kernel, grid, block, *arguments, **options):
    """Run both engines, check that they agree, and return why the lanes left the launch to the threads (None: they ran it)."""
    expected, complaint = run_in("threads", kernel, grid, block, arguments, **options)
    launches.clear()
    found, said = run_in("lanes", kernel, grid, block, arguments, **options)
    assert said == complaint, (said, complaint)
    for one, other in zip(found, expected):
        assert one.tobytes() == other.tobytes(), (one, other)
    ((_, why),) = launches
    return why
