"""Progress of long tasks before the first token, as bars on standard error."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from minllm.errors import InvalidOptionError

Progress = Callable[[str, int, int], None]  # (task, amount done, total amount)


def check_progress(progress: Any) -> None:
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

    with Bars(console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, int] = {}

        def report(task: str, done: int, total: int) -> None:
            if task not in tasks:
                tasks[task] = bars.add_task(task, total=total)
            bars.update(tasks[task], completed=done, total=total)

        yield report
