"""The last rung: the speed of a reader's kernel on the reader's GPU, relative to the package's kernel and the machine's ceiling.

Both run on the same arrays, one after the other, and are timed as in `minllm bench kernels`. The share of the machine's ceiling is
reported; the rung requires half of the package's speed in the same run, so that it means the same on every GPU.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

from minllm.bench.timing import CudaClock, median_seconds
from minllm.catalogue.noise import Noise
from minllm.course.checks.mismatch import Mismatch, expect
from minllm.course.exercise import Rung
from minllm.runtime.array_protocol import Array
from minllm.weights.formats import plain_linear

ASKED = 0.5  # required speed relative to the package's
ROWS = 16  # number of rows of the result that are compared
TOLERANCE = 3e-2  # relative to the largest number: two orders of summation in bfloat16
PRODUCT = 4096  # rows, columns and depth of the GEMM that measures the tensor cores


@dataclass(frozen=True)
class Problem:
    """Allocated arrays; launcher(*arguments, **options) writes `out`. work: bytes, or FLOPs if `counts_flops`."""

    arguments: tuple
    out: Array
    work: int
    counts_flops: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


class Machine:
    """The GPU of this machine: memory for arrays, the clock, and the ceilings."""

    def __init__(self):
        from minllm.ops.cuda_ops import CudaOps

        self.ops, self.clock = CudaOps(), CudaClock()

    def poison(self, array) -> None:
        """Fill an array with NaN, which remains in every element that the next kernel does not write."""
        array.fill_bytes(0xFF)

    @functools.cached_property
    def copy_tb_s(self) -> float:
        """TB/s of a large copy, read plus written."""
        from minllm.bench.ceilings import copy_tb_s

        return copy_tb_s(2**29)

    @functools.cached_property
    def tensor_core_tflops(self) -> float:
        """TFLOP/s of the package's fastest large GEMM in bfloat16."""
        noise = Noise()
        x, weight = (self.ops.array(noise.array((PRODUCT, PRODUCT), self.ops.dtype)) for _ in range(2))
        return 2 * PRODUCT**3 / median_seconds([lambda: self.ops.linear(x, plain_linear(weight))], self.clock) / 1e12

    def speed_in_words(self, problem: Problem, seconds: float) -> str:
        """The speed of a launch as text: a rate and a share of the ceiling."""
        rate = problem.work / seconds / 1e12
        if problem.counts_flops:
            return f"{rate:.3g} TFLOP/s, {100 * rate / self.tensor_core_tflops:.2g} % of the package's tensor-core product"
        return f"{rate:.3g} TB/s, {100 * rate / self.copy_tb_s:.0f} % of a copy"


@functools.cache
def this_machine() -> Machine:
    """The GPU of this process."""
    return Machine()


def rung(place: str, prepare: Callable[[Any, Noise], Problem], advice: str) -> Rung:
    """The rung for a launcher. place: the package's, as "module:name". prepare(ops, noise) -> Problem.

    advice: the usual cause.
    """
    return Rung(
        "share of the roofline",
        "right is not yet fast: on your GPU, at least half of the speed of the package's own kernel in the same run.",
        functools.partial(fast_enough, place=place, prepare=prepare, advice=advice),
        needs_gpu=True,
    )


def fast_enough(entry: Callable, place: str, prepare: Callable[[Any, Noise], Problem], advice: str) -> str:
    """The speed as text. Raises Mismatch for a wrong result, or for less than half of the package's speed."""
    machine, (module, name) = this_machine(), place.split(":")
    problem = prepare(machine.ops, Noise())
    own_result, own_seconds = run(machine, getattr(import_module(module), name), problem)
    result, seconds = run(machine, entry, problem)
    expect("out", result, own_result.astype(np.float64), tolerance=TOLERANCE)
    report = f"{machine.speed_in_words(problem, seconds)}; the package's own kernel: {machine.speed_in_words(problem, own_seconds)}"
    if own_seconds < ASKED * seconds:
        raise Mismatch(f"{report}.\nIt has to reach at least half of the package's own speed.\nLikely cause: {advice}")
    return report


def run(machine: Machine, launcher: Callable, problem: Problem) -> tuple[np.ndarray, float]:
    """(the first rows of the result, seconds per launch)."""

    def launch():
        launcher(*problem.arguments, **problem.options, stream=machine.ops.stream)

    machine.poison(problem.out)
    launch()
    result = machine.ops.to_host(problem.out[: min(ROWS, len(problem.out))])
    return result, median_seconds([launch], machine.clock)
