"""Threads that wait for others in a loop: `while cuda.atomic.cas(lock, 0, 0, 1): pass`, or with cuda.nanosleep.

A simulated thread runs until it meets others, so one that polls has to give way to those that it waits for. If nobody but such threads runs
for a long time, the kernel hangs: then SimulationError names the line.
"""

from minllm.errors import SimulationError
from minllm.sim.place import describe, kernel_frame

POLLS = 16  # atomics in a row that change nothing, after which their thread gives way
ROUNDS = 2000  # switches of threads that only poll, per thread that lives, after which the kernel counts as hanging


class Poll:
    """What a polling thread waits for, in messages."""

    def __str__(self):
        return "polling"


POLL = Poll()


def give_way(thread):
    """Let the other threads run first."""
    runnable = thread.block.runnable
    runnable.append(thread)
    runnable.polls += 1
    thread.waiting_for = POLL
    thread.worker.parent.switch()  # to the loop of all threads, which looks at the polls


def count_poll(thread, changed):
    """Count an atomic of a thread; one that polls gives way."""
    thread.polls = 0 if changed else thread.polls + 1
    if thread.polls >= POLLS:
        thread.polls = 0
        give_way(thread)


def check_progress(rounds, blocks):
    """Fail after `rounds` switches in which only polling threads ran."""
    threads = [thread for block in blocks for thread in block.threads if not thread.dead]
    if rounds > ROUNDS * len(threads):
        thread = next(thread for thread in threads if thread.waiting_for is POLL)
        where = f"{thread.block}, thread {tuple(thread.index)}"
        alone = "; other blocks run before or after this one, unless the kernel takes cuda.cg.this_grid()"
        others = "" if thread.block.cooperative or thread.block.gpu is not None else alone
        raise SimulationError(
            f"the kernel hangs: {len(threads)} threads poll or wait, and none changes what this one polls{others} "
            f"({describe(kernel_frame(thread.frame))}, {where})"
        )
