"""A time limit for code that may not terminate: after a number of CPU seconds, an exception is raised in it."""

import ctypes
import threading
import time
from contextlib import contextmanager

LOOK_EVERY = 0.05  # seconds
WAITING_FACTOR = 10  # wall-clock seconds allowed per CPU second, as a loop may sleep and the machine may be busy


class StillRunning(KeyboardInterrupt):
    """Raised in code that exceeds its time limit; a reader's `except Exception` does not catch it, and neither does the engine."""


@contextmanager
def limited(seconds: float):
    """A context limited to `seconds` of CPU time, and ten times as much wall-clock time; beyond, StillRunning is raised in it."""
    ended, target, lock = threading.Event(), threading.get_ident(), threading.Lock()
    computing, clock = time.process_time(), time.monotonic()

    def watch():
        while not ended.wait(LOOK_EVERY):
            if time.process_time() - computing > seconds or time.monotonic() - clock > WAITING_FACTOR * seconds:
                with lock:
                    if not ended.is_set():
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(target), ctypes.py_object(StillRunning))
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        with lock:
            ended.set()
        watcher.join()
