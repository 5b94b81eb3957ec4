"""`minllm check project FOLDER`: the checks of the five parts, then of the learner's engine, and a certificate if all pass.

As in `check_process`, the engine runs in a child process that is not trusted: it reports tokens, keys and the numbers of calls, and the
parent, in which no code of the folder runs, compares them with those of the package's NumPy engine. While the engine runs, the package's
own functions refuse to be called from the folder's files.
"""

import contextlib
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minllm.course.check_process import check_in_a_process
from minllm.course.checks.evidence import plain, restored
from minllm.course.checks.ladder import complaint
from minllm.course.checks.learner import read
from minllm.course.checks.mismatch import Mismatch, differing
from minllm.course.checks.own_functions import guarded
from minllm.course.child import process_of
from minllm.course.project.certificate import certificate
from minllm.course.project.own_engine import PROMPTS, Run, run
from minllm.course.project.parts import APPEND, MERGE, PARTS, SAMPLE, SCHEDULE, SPLIT, files_of, modules_of
from minllm.errors import ExerciseError

SECONDS = 120  # CPU time for the engine; the reference solutions take 10
CERTIFICATE = "certificate.html"
LIKELY = {  # {wrong part of a run: what to suspect first}
    "keys": f"{APPEND.exercise_name}: keys of a step do not lie in their slots once other requests' tokens are in the same step.",
    "first tokens": f"{SAMPLE.exercise_name}, or {SCHEDULE.exercise_name}: a request's first token follows from its prompt alone.",
    "later tokens": f"{SPLIT.exercise_name} or {MERGE.exercise_name}: decode steps differ, and prompts do not.",
}


@dataclass(frozen=True)
class ProjectReport:
    """The result as text, and the path of the certificate, None if the project has not passed."""

    text: str
    certificate: Path | None = None

    @property
    def passed(self) -> bool:
        """Whether all five parts and the engine passed."""
        return self.certificate is not None


def check_project(folder: Path) -> ProjectReport:
    """Check a folder. An old certificate is removed unless the check passes, so that a certificate belongs to the present files.

    Raises ExerciseError for files that are missing, end their process, or change while they are checked.
    """
    report = None
    try:
        report = _checked(folder)
        return report
    finally:
        if report is None or not report.passed:  # even one that the files' code has written
            (folder / CERTIFICATE).unlink(missing_ok=True)


def _checked(folder: Path) -> ProjectReport:
    files, page, lines = files_of(folder), folder / CERTIFICATE, []
    before = {path: read(path) for path in files.values()}
    for part, path in files.items():
        checked = check_in_a_process(path, part.exercise_name)
        if not checked.passed:
            return ProjectReport("\n".join([*lines, f"  {'FAILED':<9}{part.task} ({path.name})", "", checked.text]))
        lines.append(f"  {'passed':<9}{part.task} ({path.name})")
    found, expected = engine_in_a_process(folder), run()
    if (wrong := disagreement(found, expected)) is not None:
        return ProjectReport("\n".join([*lines, f"  {'FAILED':<9}your engine", "", wrong]))
    if changed := [path.name for path, text in before.items() if not path.is_file() or read(path) != text]:
        raise ExerciseError(f"{', '.join(changed)} changed during the check: leave the files alone until it has ended, and check again")
    page.write_text(certificate(files, expected, found.calls), encoding="utf-8")
    lines += [f"  {'passed':<9}your engine", "", "It printed:", ""]
    lines += [f"  {prompt + text!r}" for prompt, text in zip(PROMPTS, expected.texts, strict=True)]
    return ProjectReport("\n".join([*lines, "", f"All five parts are yours. Your certificate: {page}"]), page)


def engine_in_a_process(folder: Path) -> Run:
    """The Run of the folder's engine in a child process. Raises ExerciseError if it fails there."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        with process_of("minllm.course.project.check", str(report), str(folder)) as process:
            code = process.wait()
        if not report.exists():
            raise ExerciseError(f"{folder} has not passed: its engine ended with exit code {code} before it could report")
        try:
            values = json.loads(report.read_text(encoding="utf-8"))
            if "error" in values:
                raise ExerciseError(f"All five parts pass alone, but not together: {values['error']}")
            calls = {str(name): int(count) for name, count in values["calls"].items()}
            tokens = [[int(token) for token in one] for one in values["tokens"]]
            return Run(tokens, [], restored(values["keys"]), calls)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ExerciseError(f"{folder} has not passed: its engine left no report that can be read") from None


def disagreement(found: Run, expected: Run) -> str | None:
    """The first error of a run as text, with the part to suspect; None if there is none."""
    if unused := [part.exercise_name for part in PARTS if not found.calls.get(part.exercise_name)]:
        return f"The engine never called {', '.join(unused)}: the parts are called by the names that they have in the skeletons."
    for number, (tokens, wanted) in enumerate(zip(found.tokens, expected.tokens, strict=False)):
        if tokens != wanted:
            shared = min(len(tokens), len(wanted))
            at = next((i for i in range(shared) if tokens[i] != wanted[i]), shared)
            cause = LIKELY["later tokens" if at else "first tokens"]
            return f"Request {number}: expected tokens {wanted}, got {tokens}; they part at token {at}.\nLikely cause: {cause}"
    if len(found.tokens) != len(expected.tokens):
        return f"{len(found.tokens)} of {len(expected.tokens)} requests were answered.\nLikely cause: {SCHEDULE.exercise_name}."
    if found.keys.shape != expected.keys.shape or differing(found.keys, expected.keys, 1e-3).any():
        return f"The tokens are right, but the keys of the last layer are not.\nLikely cause: {LIKELY['keys']}"
    return None


def main(report: str, folder: str) -> None:
    """The code of the child: runs the folder's engine, and writes the report at the very end."""
    made: list[Run] = []

    def engine() -> None:
        files = files_of(Path(folder))
        with contextlib.ExitStack() as guards:
            modules = modules_of(Path(folder))
            for part, path in files.items():
                guards.enter_context(guarded(part.exercise, str(path)))
            made.append(run(modules))
        if not np.isfinite(made[0].keys).all():
            raise Mismatch(f"keys of the last layer are not finite.\nLikely cause: {LIKELY['keys']}")

    message = complaint(engine, folder, SECONDS, detect=False)
    values: dict[str, Any] = dict(error=message)
    if message is None:
        values = dict(tokens=made[0].tokens, keys=plain(made[0].keys), calls=made[0].calls)
    Path(report).write_text(json.dumps(values), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
