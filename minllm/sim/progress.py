"""Progress of launches that take a long time."""

import sys
import time

LONG_SECONDS = 60


def run_in_turn(steps, name, now=time.monotonic, long_seconds=LONG_SECONDS):
    """Call all steps of a launch in order, with a progress bar if it will take more than `long_seconds`.

    name: the kernel's name; now: a clock in seconds.
    """
    started = now()
    for done, step in enumerate(steps, 1):
        step()
        estimate = (now() - started) / done * len(steps)
        if estimate > long_seconds and done < len(steps):
            print(
                f"simulating {len(steps)} blocks of {name} will take about {estimate / 60:.0f} minutes; "
                "a smaller grid, or simulate(..., processes=2), takes less",
                file=sys.stderr,
            )
            run_with_bar(steps[done:], name, done)
            return


def run_with_bar(steps, name, done):
    """Call the remaining steps with a progress bar; done: the number of steps called before."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("blocks, left:"), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(name, total=done + len(steps), completed=done)
        for step in steps:
            step()
            progress.advance(task)
