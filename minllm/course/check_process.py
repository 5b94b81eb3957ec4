"""Runs `minllm check` in a child process, so that a file cannot pass by ending it or writing the report.

A reader's file is a program, and may call sys.exit or os._exit, or crash the interpreter. So the check runs in a child process. It shares
the terminal, so that print and pdb work, and writes its report to a file of the parent at its very end; its exit code proves nothing. The
report alone proves nothing either, because the file's code could have written it. It contains the results that the checks saw
(`checks/evidence.py`), and the parent, which never runs the file, compares them with the expected ones.
"""

import json
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minllm.course.checks import check_file
from minllm.course.checks.doors import exercise_of_file
from minllm.course.checks.evidence import Note, collecting, plain, restored
from minllm.course.checks.mismatch import differing
from minllm.course.child import Child, started
from minllm.course.exercise import Exercise
from minllm.errors import ExerciseError
from minllm.sim.typing.rules import context

INTERRUPTED = 130
context()  # what every check of a kernel needs: a fork has it, and a Python of its own makes one while this process does


@dataclass(frozen=True)
class CheckedFile:
    """The report of the child: whether the file passed, and the text to print."""

    passed: bool
    text: str


def check_in_a_process(path: Path, name: str | None) -> CheckedFile:
    """The report on a reader's file; name: its exercise, which overrides its markers. Raises as `report_of` does."""
    with started(path, name) as child:
        return report_of(child)


def report_of(child: Child) -> CheckedFile:
    """The report of a child, once it has ended.

    Raises ExerciseError if there is no report, or if the file belongs to no exercise.
    """
    exercise = exercise_of_file(child.path, child.name)
    code = child.process.wait()
    if child.report.exists():
        return judged(child.report, child.path, exercise)
    if code in (INTERRUPTED, -signal.SIGINT):
        raise KeyboardInterrupt
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    raise ExerciseError(
        f"{child.path} has not passed: the check {how} before it could report. The file ends the process: remove os._exit and the like, "
        "and run it in the simulator under a debugger if it crashes."
    )


def judged(report: Path, path: Path, exercise: Exercise) -> CheckedFile:
    """The child's report on `path`, with a pass accepted only if its results are right.

    Raises ExerciseError for a report of an error, an unreadable report, or wrong results.
    """
    try:
        values = json.loads(report.read_text(encoding="utf-8"))
        if "error" in values:
            raise ExerciseError(str(values["error"]))
        checked = CheckedFile(values["passed"] is True, str(values["text"]))
        results = values["results"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ExerciseError(f"{path} has not passed: its process left no report that can be read") from None
    if not checked.passed:
        return checked
    with collecting() as right:
        own = check_file(exercise.path, exercise.name)
    if not own.passed:
        raise ExerciseError(f"the package's own {exercise.name} does not pass its check, so no file can be judged:\n{own}")
    if (doubtful := first_doubt(results, right)) is not None:
        raise ExerciseError(
            f"{path} has not passed: its process reported a pass, but its result for {doubtful!r} is missing or wrong. Code in the file "
            "changes the check or its report."
        )
    return checked


def first_doubt(reported: object, right: list[Note]) -> str | None:
    """The name of the first result that is missing or wrong in `reported`, [(name, plain value)]; None if all are right."""
    reported = reported if isinstance(reported, list) else []
    for number, one in enumerate(right):
        try:
            name, value = reported[number]
            got, solution = restored(value), restored(plain(one.got))
            expected = solution if one.expected is None else np.asarray(one.expected)
            if isinstance(solution, str) or one.expected is None:
                agrees = type(got) is type(solution) and np.array_equal(got, solution)
            else:
                agrees = got.shape == expected.shape and not differing(got, expected, one.tolerance).any()
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            return one.name
        if name != one.name or not agrees:
            return one.name
    return None


def announce(name: str, done: int, total: int) -> None:
    """Show the name of the running case, in a line that the next one overwrites."""
    _write_over(f"  case {done + 1} of {total}: {name}")


def _write_over(line: str) -> None:
    print(f"\r{line:<79.79}", end="\r", file=sys.stderr, flush=True)


def main(report: str, path: str, name: str | None = None) -> None:
    """The code of the child: checks, and writes the report at the very end."""
    try:
        with collecting() as notes:
            checked = check_file(path, name, progress=announce if sys.stderr.isatty() else None)
        if sys.stderr.isatty():
            _write_over("")
        values = dict(passed=checked.passed, text=str(checked), results=[(one.name, plain(one.got)) for one in notes])
    except ExerciseError as error:
        values = dict(error=str(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    Path(report).write_text(json.dumps(values), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
