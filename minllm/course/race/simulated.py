"""The part of a race that needs no GPU: the reader's function is checked and traced in the simulator."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numba import cuda

from minllm.catalogue.noise import Noise
from minllm.course.checks.ladder import SECONDS, Result, climbed
from minllm.course.exercise import Rung
from minllm.course.race.contest import Arrays, Case, Contest
from minllm.course.race.file import function_of
from minllm.engine.progress import Progress
from minllm.errors import ExerciseError
from minllm.figures.bars import Bar, bars
from minllm.figures.figure import Figure
from minllm.ops.cuda_ops import CudaOps
from minllm.sim import detecting, numba_launches, tracing
from minllm.sim.trace_numbers import Trace, Traffic

NOISE = 65_521  # different random numbers; a prime
COLUMNS = "{:<22} {:>9} {:>16} {:>17} {:>16} {:>15}"


def check(path: Path, contest: Contest, dtype: np.dtype, seconds: float = SECONDS, progress: Progress | None = None) -> tuple[Result, ...]:
    """The results of all cases, up to the first that fails, under all detectors. seconds: limit of CPU time per case."""
    rungs = [Rung(case.name, case.catches, partial(run_case, contest, case, dtype)) for case in contest.cases]
    with numba_launches.simulated_launches():
        return climbed(rungs, lambda: function_of(path, contest), str(path), seconds, progress)


def run_case(contest: Contest, case: Case, dtype: np.dtype, function: Callable[..., None]) -> None:
    """Raise Mismatch, ExerciseError or SimulationError if the function is wrong at one size."""
    inputs = contest.inputs(case.size, dtype, Noise(length=NOISE), case.spread)
    contest.expect(call(contest, function, inputs), inputs)


def call(contest: Contest, function: Callable[..., None], inputs: Arrays) -> np.ndarray:
    """The output of a simulated call, in which bytes that nobody wrote are 0xFF.

    Raises ExerciseError if the function launches no kernel, returns a value, or changes an input.
    """
    out = unwritten(contest.out_shape(inputs), next(iter(inputs.values())).dtype)
    on_device = [cuda.to_device(array) for array in (*inputs.values(), out)]
    launched = []
    numba_launches.launches.append(launched.append)
    try:
        returned = function(*on_device)
    finally:
        numba_launches.launches.remove(launched.append)
    if returned is not None:
        raise ExerciseError(f"{contest.name} returned a {type(returned).__name__}: write the result into out, and return nothing")
    if not launched:
        raise ExerciseError(f"{contest.name} launched no kernel: a race is between kernels, launched as kernel[grid, block](...)")
    for (name, array), device in zip(inputs.items(), on_device):
        if not np.array_equal(array, device.copy_to_host()):
            raise ExerciseError(f"{contest.name} has changed {name}, which is an input: the next launch reads it again")
    return on_device[-1].copy_to_host()


def unwritten(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array of bytes 0xFF, which are NaN."""
    return np.full((*shape, dtype.itemsize), 0xFF, np.uint8).view(dtype).reshape(shape)


@dataclass(frozen=True)
class Lane:
    """The traces of one contender's launches."""

    name: str
    traces: Sequence[Trace]

    @property
    def traffic(self) -> Traffic:
        """Traffic to global memory of all launches."""
        return sum((trace.total for trace in self.traces), Traffic())

    @property
    def bank_conflicts(self) -> int:
        """Bank conflicts of all launches."""
        return sum(trace.bank_conflicts for trace in self.traces)


def trace(path: Path, contest: Contest, dtype: np.dtype) -> tuple[list[Lane], int]:
    """(traces of the reader's function and of its rivals, bytes that a launch must move at least), at the contest's traced size."""
    inputs = contest.inputs(contest.traced_size, dtype, Noise(length=NOISE), 1.0)
    with numba_launches.simulated_launches(detect=False), detecting(False), tracing() as traces:
        call(contest, function_of(path, contest), inputs)
    lanes = [Lane(path.name, list(traces))]
    ops, arrays = CudaOps(simulated=True), dict(inputs, out=unwritten(contest.out_shape(inputs), dtype))
    for name in contest.runners(contest.traced_size, dtype):
        launch = contest.launcher(name, arrays, ops)
        with detecting(False), tracing() as traces:
            launch()
        lanes.append(Lane(name, list(traces)))
    return lanes, contest.least_bytes(arrays)


def table(lanes: Sequence[Lane], least: int) -> list[str]:
    """One line per contender: launches, bytes, and how many times the minimum they move."""
    lines = [COLUMNS.format("", "launches", "bytes requested", "bytes in sectors", "over the minimum", "bank conflicts")]
    for lane in lanes:
        moved = lane.traffic.sector_bytes
        counts = (f"{count:,}" for count in (len(lane.traces), lane.traffic.bytes, moved))
        lines.append(COLUMNS.format(lane.name, *counts, f"{moved / least:.1f}x", f"{lane.bank_conflicts:,}"))
    return lines


def picture(contest: Contest, lanes: Sequence[Lane], least: int, caption: str) -> Figure:
    """Bars of the bytes in sectors over the minimum."""
    return bars(
        [Bar(lane.name, round(lane.traffic.sector_bytes / least, 2), colour=int(not at)) for at, lane in enumerate(lanes)],
        unit="x",
        title=f"{contest.name}: bytes in sectors over the bytes that must move",
        limit=1.0,
        limit_name="minimum:",
        caption=caption,
    )
