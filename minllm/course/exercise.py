"""An exercise: a marked part of one of the package's files, to be rewritten by a reader, and the ladder that checks it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import util
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Rung:
    """One named case of a ladder.

    name: the case. catches: the misconception that fails here, a sentence. run(entry): raises an exception that `checks.ladder` explains
    (Mismatch, SimulationError, anything else) if the reader's entry is wrong, and may return a remark. needs_gpu: skipped, with a
    reason, without one. look: the lines to suspect if it fails for an unknown cause.
    """

    name: str
    catches: str
    run: Callable[[Callable], str | None]
    needs_gpu: bool = False
    look: str = ""


@dataclass(frozen=True)
class Exercise:
    """A region between the markers `# exercise: NAME` and `# end exercise` of `module`.

    lesson: its number. title: a line for lists. task: what to write, for the hint that replaces the region. hints: further
    help, one step after the other. entry: the function that the rungs call, a name in `module` or "other.module:name" if the launcher
    lives in another file. stage: the engine's stage that a solution can be plugged into, if there is one; own_launcher: its launcher
    there, as "module:name", if that is not the entry; engine_options: what `minllm generate` needs beside --variant; most_rows: the
    most rows of x, or new tokens per sequence, that it supports; simulated_options: the launcher's keyword arguments in the simulator.
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
        """Its text."""
        return self.path.read_text(encoding="utf-8")

    @property
    def file_name(self) -> str:
        """The name of the reader's file."""
        return self.name.replace(".", "_") + ".py"

    @property
    def entry_place(self) -> tuple[str, str]:
        """(module, name) of the entry."""
        module, colon, name = self.entry.partition(":")
        return (module, name) if colon else (self.module, self.entry)

    @property
    def launcher(self) -> str:
        """"module:name" of what the engine calls."""
        return self.own_launcher or ":".join(self.entry_place)
