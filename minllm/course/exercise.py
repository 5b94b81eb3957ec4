"""An exercise: a marked part of a file of the package for a reader to rewrite, and the ladder that checks it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import util
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Rung:
    """One named case of a ladder.

    name: the case. catches: a sentence about the misconception that fails here. run(entry): raises an exception (Mismatch, SimulationError,
    or any other), which `checks.ladder` explains, if the reader's entry is wrong, and may return a remark. needs_gpu: whether the case is
    skipped, with a reason, without a GPU. look: the lines to suspect if it fails for an unknown cause.
    """

    name: str
    catches: str
    run: Callable[[Callable], str | None]
    needs_gpu: bool = False
    look: str = ""


@dataclass(frozen=True)
class Exercise:
    """A region between the markers `# exercise: NAME` and `# end exercise` of `module`.

    lesson: its number. title: a line for lists. task: what to write, for the hint that replaces the region. hints: further help, step by
    step. entry: the function that the rungs call, a name in `module`, or "other.module:name" if the launcher is in another file. stage: the
    stage of the engine that can use a solution, if any. own_launcher: the launcher for that, as "module:name", if it is not the entry.
    engine_options: options of `minllm generate` that it needs besides --variant. most_rows: the largest number of rows of x, or of new
    tokens per sequence, that it supports. simulated_options: the launcher's keyword arguments in the simulator.
    """

    name: str
    lesson: int
    title: str
    module: str
    entry: str
    task: str
    rungs: tuple[Rung, ...]
    hints: tuple[str, ...] = ()
    stage: str | None = None
    engine_options: str = ""
    own_launcher: str | None = None
    most_rows: int | None = None
    simulated_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The file of the package that holds the solution."""
        return Path(util.find_spec(self.module).origin)

    @property
    def source(self) -> str:
        """The text of the file with the solution."""
        return self.path.read_text(encoding="utf-8")

    @property
    def file_name(self) -> str:
        """The name of the reader's file."""
        return file_name_of(self.name)

    @property
    def entry_place(self) -> tuple[str, str]:
        """(module, name) of the entry."""
        module, colon, name = self.entry.partition(":")
        return (module, name) if colon else (self.module, self.entry)

    @property
    def launcher(self) -> str:
        """"module:name" of the function that the engine calls."""  # fmt: skip
        return self.own_launcher or ":".join(self.entry_place)


def file_name_of(exercise: str) -> str:
    """The name of the reader's file of the exercise of this name."""
    return exercise.replace(".", "_") + ".py"
