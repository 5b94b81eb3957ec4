"""Run a launch in both engines of the simulator and compare the bits that they leave in memory, and their traces."""

import contextlib

import numpy as np

from minllm.errors import SimulationError
from minllm.sim import simulate, tracing
from minllm.sim.engines import launches


def run_in(engine, kernel, grid, block, arguments, traced=False, **options):
    """(arrays after a launch, the simulator's complaint or None, traces)."""
    copies = [one.copy() if isinstance(one, np.ndarray) else one for one in arguments]
    complaint = None
    with tracing() if traced else contextlib.nullcontext() as traces:
        try:
            simulate(kernel, grid, block, *copies, engine=engine, **options)
        except SimulationError as error:
            complaint = str(error)
    return [one for one in copies if isinstance(one, np.ndarray)], complaint, traces


def compare(kernel, grid, block, *arguments, **options):
    """Run both engines, check that they agree, and return why the lanes left the launch to the threads (None: they ran it)."""
    expected, complaint, traces = run_in("threads", kernel, grid, block, arguments, **options)
    launches.clear()
    found, said, counted = run_in("lanes", kernel, grid, block, arguments, **options)
    assert said == complaint, (said, complaint)
    assert counted == traces
    for one, other in zip(found, expected):
        assert one.tobytes() == other.tobytes(), (one, other)
    ((_, why),) = launches
    return why
