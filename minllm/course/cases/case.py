"""A detective case, and its investigation in the simulator."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import minllm
from minllm.course.checks.mismatch import Mismatch
from minllm.errors import SimulationError
from minllm.runtime.kernel import Kernel
from minllm.sim import detecting

ROOT = Path(minllm.__file__).parent.parent


@dataclass(frozen=True)
class Case:
    """A bug.

    lesson: the lesson that shows it. title: its heading. story: the symptom on a GPU. hint: where to look, without the answer. broken,
    mended: kernels with the same signature, or functions or classes of the host. examine(broken): runs it in the simulator, or on a
    simulated clock, and raises SimulationError or Mismatch if it is wrong. guilty: part of the line with the bug, or of the line next to
    which something is missing. solution: the cause, the reason for the symptom, and the fix.
    """

    name: str
    lesson: int
    title: str
    story: str
    hint: str
    broken: Kernel | Callable
    mended: Kernel | Callable
    examine: Callable[[Any], None]
    guilty: str
    solution: str

    @property
    def module_text(self) -> str:
        """The text of the case's file."""
        return inspect.getsource(sys.modules[self._code.__module__])

    @property
    def kind(self) -> str:
        """The kind of the broken code: "kernel", "function" or "class"."""
        return "kernel" if isinstance(self.broken, Kernel) else "class" if inspect.isclass(self.broken) else "function"

    @property
    def guilty_line(self) -> int:
        """The number of the line with the bug, in the case's file."""
        lines, first = inspect.getsourcelines(self._code)
        return next(first + number for number, line in enumerate(lines) if self.guilty in line)

    @property
    def _code(self) -> Callable:
        return self.broken.function if isinstance(self.broken, Kernel) else self.broken


@dataclass(frozen=True)
class Finding:
    """The result of an investigation: message is the simulator's finding, "" if there is none."""

    case: Case
    message: str

    def __repr__(self) -> str:
        return self.message or "Nothing found: the results are right, and no detector complains."


def finding(case: Case, suspect: object) -> Finding:
    """Run a kernel, function or class with the case's `examine`, with all detectors on."""
    try:
        with detecting():
            case.examine(suspect)
    except SimulationError as error:
        return Finding(case, f"The simulator stopped the kernel: {error}".replace(f"{ROOT}/", ""))
    except Mismatch as error:
        return Finding(case, str(error))
    return Finding(case, "")
