"""Rank 0's watchdog: ends all ranks if the results of a step do not arrive, because ranks wait for each other on their GPUs.

Kernels between peers give up after some seconds and record the peer (parallel/peer_communicator.py). NCCL's operations wait for ever, and
the host waits for them: only another thread can detect that a rank has launched something else, or has stopped.
"""

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator


class Watchdog:
    """Calls act() once, in its own thread, if a watched context takes longer than `seconds`."""

    def __init__(self, act: Callable[[], None], seconds: float):
        self._act, self._seconds = act, seconds
        self._since: float | None = None
        self._ended = threading.Event()
        weakref.finalize(self, self._ended.set)
        self.thread = threading.Thread(target=_watch, args=(weakref.ref(self), self._ended, seconds / 10), daemon=True)
        self.thread.start()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """A watched context; only one thread at a time may use it."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = None

    def close(self) -> None:
        """Stop watching."""
        self._ended.set()

    def look(self) -> None:
        """Call act() and stop watching if the time limit has passed."""
        since = self._since
        if since is not None and time.monotonic() - since > self._seconds:
            self._ended.set()
            self._act()


def _watch(found: weakref.ref, ended: threading.Event, period: float) -> None:
    """Call look() every `period` seconds until the watchdog has ended; holds only a weak reference between calls."""
    while not ended.wait(period):
        watchdog = found()
        if watchdog is not None:
            watchdog.look()
        del watchdog
