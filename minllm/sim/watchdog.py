"""The watchdog ends a simulation in which one thread spins on memory that only another thread could change.

A simulated thread runs until it meets others, so `while flag[0] == 0: pass` never ends. (On a GPU it may not end either: the compiler may
load the flag once.) A background thread samples the running kernel. If its frames and all their variables have stayed the same for SECONDS,
its loop cannot end, and a SimulationError is raised at its current line. A loop that computes changes a variable; atomics and
cuda.nanosleep let other threads run (polling.py).
"""

import contextlib
import ctypes
import sys
import threading
import time
import traceback

from minllm.errors import SimulationError
from minllm.sim.place import file_of, is_own, kernel_frame

SECONDS = 5.0
LOOKS = 10  # samples per SECONDS
NOT_IN_A_KERNEL = {"bdb", "pdb", "minllm.sim.simulator"}  # modules that are not on a kernel's stack, which begins at its function

_started = threading.Event()
_watched = []  # identifiers of the Python threads that simulate, the newest last; they end in any order


class Spin(Exception):
    """Raised in a simulated thread that spins."""


def spinning(spin, thread):
    """The SimulationError, with the line, for a Spin of a thread."""
    frames = [frame for frame in traceback.walk_tb(spin.__traceback__) if not is_own(frame[0].f_code.co_filename)]
    frame, line = frames[-1]
    return SimulationError(
        "this thread spins: it reads again and again what only another thread could change. Poll by an atomic, or sleep in the loop with "
        f"cuda.nanosleep, so that the others run ({file_of(frame.f_code)}:{line} in {frame.f_code.co_name}, "
        f"{thread.block}, thread {tuple(thread.index)})"
    )


@contextlib.contextmanager
def watched():
    """Within this context the running simulation is watched, and Spin is raised in a thread that spins."""
    if not _watched and not any(thread.name == "minllm watchdog" for thread in threading.enumerate()):
        threading.Thread(target=watch, name="minllm watchdog", daemon=True).start()
    own = threading.get_ident()
    _watched.append(own)
    _started.set()
    try:
        yield
    finally:
        _watched.remove(own)
        if not _watched:
            _started.clear()
            if _watched:  # another thread has begun between these two lines
                _started.set()


def watch():
    """Sample the running simulation in an endless loop: the watchdog's thread."""
    seen, since = None, 0.0
    while True:
        _started.wait()
        time.sleep(SECONDS / LOOKS)
        identifier = newest()
        try:
            now = standing(sys._current_frames().get(identifier)) if identifier is not None else None
        except AttributeError:  # the thread ran on during the look: a frame that ended meanwhile is no frame any more
            now = None
        if now is None or now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > SECONDS:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(identifier), ctypes.py_object(Spin))
            seen = None


def newest():
    """The identifier of the newest thread that simulates, or None. The simulation may end meanwhile, so the list is read only once."""
    last = _watched[-1:]
    return last[0] if last else None


def standing(frame):
    """The kernel's frames with their variables, for comparison; None outside of a kernel or under a debugger."""
    found, caller = [], frame
    while caller is not None:
        if caller.f_globals.get("__name__") in NOT_IN_A_KERNEL:
            return None
        caller = caller.f_back
    frame = kernel_frame(frame)
    while frame is not None:
        variables = tuple((name, value if isinstance(value, (int, float)) else id(value)) for name, value in frame.f_locals.items())
        found.append((id(frame), variables))
        frame = kernel_frame(frame.f_back)
    return found or None
