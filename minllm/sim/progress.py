"""Progress of launches that take a long time, on standard error. MINLLM_SIM_PROGRESS=0 in the environment leaves it out."""

import os
import sys
import time

LONG_SECONDS = 60
VARIABLE = "MINLLM_SIM_PROGRESS"
SECONDS_BETWEEN = 0.1  # two updates of the line


def run_in_turn(steps, name, now=time.monotonic, long_seconds=LONG_SECONDS):
    """Call all steps of a launch in order, and show their progress if it will take more than `long_seconds`.

    name: the kernel's name; now: a clock in seconds.
    """
    started, shows = now(), os.environ.get(VARIABLE) != "0"
    for done, step in enumerate(steps, 1):
        step()
        estimate = (now() - started) / done * len(steps)
        if shows and estimate > long_seconds and done < len(steps):
            print(
                f"simulating {len(steps)} blocks of {name} will take about {estimate / 60:.0f} minutes; "
                "a smaller grid, or simulate(..., processes=2), takes less",
                file=sys.stderr,
            )
            run_with_line(steps[done:], name, done, started, now)
            return


def run_with_line(steps, name, done, started, now):
    """Call the remaining steps, and keep a line of the terminal up to date; done: the number of steps called before."""
    total, shown, is_terminal = done + len(steps), started, sys.stderr.isatty()
    for number, step in enumerate(steps, done + 1):
        step()
        if is_terminal and (now() - shown > SECONDS_BETWEEN or number == total):
            shown = now()
            left = (shown - started) / number * (total - number)
            end = "\n" if number == total else ""
            print(f"\r{name}: {number} of {total} blocks, {left:.0f} s left    ", end=end, file=sys.stderr, flush=True)
