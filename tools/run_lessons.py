"""Execute lessons from top to bottom as notebooks, and print how long each took.

    python tools/run_lessons.py             every lesson
    python tools/run_lessons.py 01 03       those that begin so

A lesson that fails shows its cell and error, the others still run, and the exit code is 1. Needs `pip install -e '.[lessons]'`.
"""

import os
import sys
import time
from pathlib import Path

import jupytext
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from minllm.bench.kernel_keys import share_keys
from minllm.course import load_record
from minllm.sim.progress import VARIABLE as PROGRESS

LESSONS = Path(__file__).parents[1] / "lessons"
CELL_SECONDS = 300
QUIET = "--IPKernelApp.log_level=ERROR"  # each kernel warns that it talks over TCP
BUDGET_SECONDS = 600


def chosen(prefixes: list[str]) -> list[Path]:
    """The lessons whose names begin with one of `prefixes`, or all."""
    found = sorted(LESSONS.glob("[0-9][0-9]*_*.py"))
    return [path for path in found if not prefixes or path.name.startswith(tuple(prefixes))]


def execute(notebook: NotebookNode, folder: Path | str) -> str:
    """Run a notebook in a fresh kernel that is started in a folder, and keep its outputs; "" or what went wrong.

    The outputs do not depend on how fast the machine is: no progress of the simulator, and each stream of a cell in one output.
    """
    options = {"timeout": CELL_SECONDS, "kernel_name": "python3", "extra_arguments": [QUIET], "coalesce_streams": True}
    client = NotebookClient(notebook, resources={"metadata": {"path": str(folder)}}, **options)
    try:
        client.execute(env={**os.environ, PROGRESS: "0"})
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        return str(error)
    return ""


def main(prefixes: list[str]) -> int:
    """Run the requested lessons; returns the exit code."""
    share_keys(load_record()["rows"])
    failures, total = {}, 0.0
    for lesson in chosen(prefixes):
        begin = time.perf_counter()
        failure = execute(jupytext.read(lesson), LESSONS.parent)
        seconds = time.perf_counter() - begin
        total += seconds
        print(f"{lesson.stem:<60} {seconds:6.1f} s  {'failed' if failure else 'ok'}", flush=True)
        if failure:
            failures[lesson.stem] = failure
    print(f"{'in all':<60} {total:6.1f} s  of {BUDGET_SECONDS}")
    for name, failure in failures.items():
        print(f"\n{name}\n{failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
