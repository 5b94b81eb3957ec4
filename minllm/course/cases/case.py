"""A detective case, and how it is investigated."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import minllm
from minllm.course.checks.mismatch import Mismatch
from minllm.errors import SimulationError
from minllm.sim import detecting

ROOT = Path(minllm.__file__).parent.parent


@dataclass(frozen=True)
class Case:
    """A bug.

    lesson: the lesson that shows it. title: its heading. story: the symptom on a GPU. hint: where to look, without the answer. broken,
    mended: kernels of one signature, or functions of the host. examine(kernel): runs one of them in the simulator, or on a simulated
    clock, and raises SimulationError or Mismatch if it is wrong. guilty: part of the line to blame, or of the line beside which something
    is missing. solution: the cause, why it shows this symptom, and the fix.
    """

    name: str
    lesson: int
    title: str
    story: str
    hint: str
    broken: Callable
    mended: Callable
    examine: Callable[[Callable], None]
    guilty: str
    solution: str

    @property
    def module_text(self) -> str:
        """The text of the case's file."""
        return inspect.getsource(sys.modules[self._function.__module__])

    @property
    def guilty_line(self) -> int:
        """The number of the line to blame, in the case's file."""
        lines, first = inspect.getsourcelines(self._function)
        return next(first + number for number, line in enumerate(lines) if self.guilty in line)

    @property
    def _function(self) -> Callable:
        """The broken one as a Python function."""
        return getattr(self.broken, "function", self.broken)


@dataclass(frozen=True)
class Finding:
    """The result of an investigation: message is the simulator's finding, "" if there is none."""

    case: Case
    message: str

    def __repr__(self) -> str:
        return self.message or "Nothing found: the results are right, and no detector complains."


def finding(case: Case, kernel: Callable) -> Finding:
    """Run a kernel as the case does, with all detectors on."""
    try:
        with detecting():
            case.examine(kernel)
    except SimulationError as error:
        return Finding(case, f"The simulator stopped the kernel: {error}".replace(f"{ROOT}/", ""))
    except Mismatch as error:
        return Finding(case, str(error))
    return Finding(case, "")
