"""The child process of `minllm check`: on Linux a fork, which has all that this process has imported.

Elsewhere libraries may break in a fork: there it is a Python of its own, started before this process imports what judges its report, so
that both import at once. Imports nothing heavy. What the child does, and why there is one: check_process.py.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from minllm.course.fork import Fork

MODULE = "minllm.course.check_process"
FORKS = sys.platform == "linux"
PROJECT = "project"  # in place of an exercise's name: all of the final project


@dataclass(frozen=True)
class Child:
    """A running check of a reader's file. name: its exercise, which overrides its markers; report: the file that it writes at its end."""

    path: Path
    name: str | None
    report: Path
    process: subprocess.Popen | Fork


@contextmanager
def started(path: Path, name: str | None) -> Iterator[Child]:
    """A context in which a child checks a file.

    It ignores Ctrl-C, which the child also receives and handles, as it may be in a debugger. An error in the context ends the child.
    """
    with tempfile.TemporaryDirectory() as directory, _interrupts_left_to_the_child():
        report = Path(directory) / "report.json"
        with process_of(MODULE, str(report), str(path), *([name] if name else [])) as process:
            try:
                yield Child(path, name, report, process)
            except BaseException:
                process.kill()
                raise


def process_of(module: str, *arguments: str) -> subprocess.Popen | Fork:
    """A child process that runs main(*arguments) of a module. It has this process's sys.path, so that it finds the same modules."""
    if FORKS:
        return Fork(module, *arguments)
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path or os.getcwd() for path in sys.path))
    return subprocess.Popen([sys.executable, "-P", "-m", module, *arguments], env=environment)


@contextmanager
def _interrupts_left_to_the_child() -> Iterator[None]:
    try:
        before = signal.signal(signal.SIGINT, lambda number, frame: None)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
