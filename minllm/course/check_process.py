"""`minllm check` in a process of its own: a file that ends its process has not passed.

A reader's file is a program, and it may call sys.exit, os._exit, or crash the interpreter. So the check runs in a child that shares the
terminal, so that print and pdb work, and that writes its report to a file of the parent's when it has come to its end. Only that report
says that the exercise is passed; the child's exit code says nothing.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from minllm.errors import ExerciseError

INTERRUPTED = 130


@dataclass(frozen=True)
class CheckedFile:
    """What the child reported."""

    passed: bool
    text: str


def check_in_a_process(path: Path, name: str | None) -> CheckedFile:
    """The report on a reader's file; name: its exercise, overriding its markers. ExerciseError if there is none, or no exercise."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        command = [sys.executable, "-P", "-m", "minllm.course.check_process", str(report), str(path), *([name] if name else [])]
        with _interrupts_left_to_the_child():
            code = subprocess.run(command, env=_environment()).returncode
        if report.exists():
            values = json.loads(report.read_text(encoding="utf-8"))
            if "error" in values:
                raise ExerciseError(values["error"])
            return CheckedFile(values["passed"] is True, values["text"])
    if code in (INTERRUPTED, -signal.SIGINT):
        raise KeyboardInterrupt
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    raise ExerciseError(
        f"{path} has not passed: the check {how} before it could report. The file ends the process: remove os._exit and the like, and run "
        "it in the simulator under a debugger if it crashes."
    )


def _environment() -> dict[str, str]:
    """This process's environment, by which the child finds modules where this process does."""
    return dict(os.environ, PYTHONPATH=os.pathsep.join(path or os.getcwd() for path in sys.path))


@contextmanager
def _interrupts_left_to_the_child() -> Iterator[None]:
    """Ctrl-C reaches both processes of a terminal; the child, which may be in a debugger, decides what it means."""
    try:
        before = signal.signal(signal.SIGINT, lambda number, frame: None)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def main(report: str, path: str, name: str | None = None) -> None:
    """The child: check, and report at the very end."""
    from minllm.course.checks import check_file

    try:
        checked = check_file(path, name)
        values = dict(passed=checked.passed, text=str(checked))
    except ExerciseError as error:
        values = dict(error=str(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    Path(report).write_text(json.dumps(values), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
