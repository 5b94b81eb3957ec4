"""Threads that wait for others in a loop: `while cuda.atomic.cas(lock, 0, 0, 1): pass`, or with cuda.nanosleep.

A simulated thread runs until it meets others, so a polling thread has to yield to those that it waits for. If only polling threads run for
a long time, the kernel hangs, and a SimulationError names the line.
"""

from minllm.errors import SimulationError
from minllm.sim.place import describe, kernel_frame

POLLS = 16  # consecutive atomics of a thread that change nothing, after which it yields
ROUNDS = 2000  # consecutive switches of polling threads, per living thread, after which the kernel counts as hanging


class Poll:
    """The value of Thread.waiting_for of a polling thread, for messages."""

    def __str__(self):
        return "polling"


POLL = Poll()


def give_way(thread):
    """Suspend the running thread until the other runnable threads have run."""
    runnable = thread.block.runnable
    runnable.append(thread)
    runnable.polls += 1
    thread.waiting_for = POLL
    thread.worker.parent.switch()  # to machine.run_all, which checks the number of polls


def count_poll(thread, changed):
    """Count an atomic of a thread, and let it yield after POLLS in a row that changed nothing."""
    thread.polls = 0 if changed else thread.polls + 1
    if thread.polls >= POLLS:
        thread.polls = 0
        give_way(thread)


def check_progress(rounds, blocks):
    """Raise SimulationError if `rounds`, the consecutive switches of polling threads, exceeds ROUNDS per living thread."""
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
