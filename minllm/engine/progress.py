"""Progress of what takes seconds before the first token, as bars on standard error."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]  # (what is being done, how much is done, how much there is)


@contextmanager
def progress_bars(progress: bool | Progress) -> Iterator[Progress | None]:
    """What to report to inside the `with`: None for False, the caller's own function, or for True a bar for each task, gone at the end."""
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
