"""Progress of launches that take longer than two seconds, on standard error. MINLLM_SIM_PROGRESS=0 in the environment leaves it out.

A background thread looks at the running launch, and so tells of it while its first block still runs. On a terminal it keeps a line up to
date; elsewhere it prints a line after two seconds, and others at longer and longer intervals.
"""

import contextlib
import os
import sys
import threading
import time

SECONDS = 2.0
LONG_SECONDS = 60
LOOK = 0.25  # seconds between two looks at the running launch
IDLE = 20  # looks without a launch after which the background thread sleeps until the next one
VARIABLE = "MINLLM_SIM_PROGRESS"
DEBUGGERS = {"bdb", "cmd", "pdb"}

_running = []  # Progress of the launches that run, the newest last
_watchers = []  # the background thread
_begun, _printing = threading.Event(), threading.Lock()


class Progress:
    """How far a launch is. done: blocks that have run, of `total`; where: the Python thread that runs it."""

    def __init__(self, name, total):
        self.name, self.total, self.done, self.where = name, total, 0, threading.get_ident()
        self.started, self.next, self.is_line_open = time.monotonic(), SECONDS, False

    def __str__(self):
        seconds = time.monotonic() - self.started
        if not self.done:
            return f"simulating {self.name}: none of {self.total} blocks is done after {seconds:.0f} s"
        left = seconds / self.done * (self.total - self.done)
        advice = "; a smaller grid, or simulate(..., processes=2), takes less" if left > LONG_SECONDS else ""
        return f"simulating {self.name}: {self.done} of {self.total} blocks, about {left:.0f} s left{advice}"

    def look(self):
        """Print a line if it is time for one."""
        seconds = time.monotonic() - self.started
        if seconds < self.next or self.done == self.total:
            return
        with _printing:
            if self not in _running:
                return
            self.is_line_open = sys.stderr.isatty()
            self.next = seconds if self.is_line_open else 3 * seconds
            print(*(("\r", str(self), "  ") if self.is_line_open else (str(self), "\n")), sep="", end="", file=sys.stderr, flush=True)

    def end(self):
        """The launch is over."""
        with _printing:
            _running.remove(self)
            if self.is_line_open:
                print(file=sys.stderr, flush=True)


@contextlib.contextmanager
def shown(name, total):
    """Within this context a launch runs, and sets the `done` of the Progress. name: the kernel's; total: the number of blocks."""
    progress = Progress(name, total)
    if os.environ.get(VARIABLE) == "0":
        yield progress
        return
    if not _watchers or not _watchers[0].is_alive():  # in a process that was forked it is not
        _watchers[:] = [threading.Thread(target=watch, name="minllm progress", daemon=True)]
        _watchers[0].start()
    _running.append(progress)
    if not _begun.is_set():
        _begun.set()
    try:
        yield progress
    finally:
        progress.end()


def watch():
    """Look at the newest launch again and again: the background thread. To wake it takes longer than a short launch, so it sleeps late."""
    idle = 0
    while True:
        idle = 0 if _running else idle + 1
        if idle > IDLE:
            _begun.clear()
            if not _running:
                _begun.wait()
        time.sleep(LOOK)
        for progress in _running[-1:]:
            if in_debugger(sys._current_frames().get(progress.where)):
                progress.next = float("inf")  # the time does not count, and the terminal is the debugger's
            with contextlib.suppress(Exception):  # standard error may be closed
                progress.look()


def in_debugger(frame):
    """Whether a debugger has stopped at a frame."""
    while frame is not None:
        if frame.f_globals.get("__name__") in DEBUGGERS:
            return True
        frame = frame.f_back
    return False
