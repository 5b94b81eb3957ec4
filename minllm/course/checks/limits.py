"""An end for code that may have none: after so many seconds of computing, an exception is raised wherever it is."""

import ctypes
import threading
import time
from contextlib import contextmanager

LOOK_EVERY = 0.05  # seconds
WAITING_FACTOR = 10  # seconds on the clock for each second of computing: a loop may sleep, and others may use the machine


class StillRunning(BaseException):
    """Raised inside code that has used up its time; no `except Exception` of a reader's stops it."""


@contextmanager
def limited(seconds: float):
    """What runs inside has so many seconds of processor time, and ten times as many on the clock; then StillRunning is raised in it."""
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
