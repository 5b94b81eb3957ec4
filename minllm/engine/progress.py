"""Progress of long tasks, as bars on standard error: loading, and the requests of a call."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from minllm.errors import InvalidOptionError, InvalidRequestError, shown

Progress = Callable[[str, int, int], None]  # (task, amount done, total amount)


def check_progress(progress: object) -> None:
    """Raises InvalidOptionError unless `progress` is None, a bool or a function."""
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise InvalidOptionError(f"progress={progress!r} is not allowed: it is True, False, or a function of (task, done, total).")


@contextmanager
def progress_bars(progress: bool | Progress) -> Iterator[Progress | None]:
    """The callback to report to inside the `with`.

    None for False, the caller's own function, or for True one bar per task, erased at the end.
    """
    if not isinstance(progress, bool):
        yield progress
        return
    if not progress:
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    with Bars(console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def report(task: str, done: int, total: int) -> None:
            if task not in tasks:
                tasks[task] = bars.add_task(task, total=total)
            bars.update(tasks[task], completed=done, total=total)

        yield report


@contextmanager
def request_bar(use_tqdm: object, total: int) -> Iterator[Callable[[int], None] | None]:
    """A function to call with the number of requests that have ended, for generate()'s use_tqdm; None if nobody looks.

    True draws a bar for several requests if standard error is a terminal, and erases it at the end. A function is called as tqdm is, with
    total and desc, and makes the bar: an object with update(more) and close(). Raises InvalidRequestError for anything else.
    """
    if callable(use_tqdm):
        bar, ended = use_tqdm(total=total, desc="Processed prompts"), 0

        def update(done: int) -> None:
            nonlocal ended
            if done > ended:
                bar.update(done - ended)
                ended = done

        try:
            yield update
        finally:
            bar.close()
        return
    if not isinstance(use_tqdm, bool):
        raise InvalidRequestError(f"use_tqdm={shown(use_tqdm)} is not allowed: it is True, False, or a function that makes a bar.")
    is_drawn = use_tqdm and total > 1 and sys.stderr is not None and sys.stderr.isatty()
    with progress_bars(is_drawn) as report:
        yield None if report is None else lambda done: report("Processed prompts", done, total)
