"""The command `minllm check`. It imports what it needs after the child has started that runs the file (child.py)."""

from pathlib import Path

from minllm.course.child import PROJECT, started


def check(first: Path, second: Path | None) -> bool:
    """Check `FILE`, `NAME FILE`, or `project FOLDER`; returns whether it passed."""
    if second is not None and str(first) == PROJECT:
        from minllm.course.project.check import check_project

        checked = check_project(second)
        print(checked.text, flush=True)
        return checked.passed
    name, path = (None, first) if second is None else (str(first), second)
    with started(path, name) as child:
        from minllm.course.check_process import report_of

        report = report_of(child)
    try:
        print(report.text, flush=True)
    except BrokenPipeError:
        if report.passed:
            raise  # a closed output pipe is no failure, as in all commands
    return report.passed
