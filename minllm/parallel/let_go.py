"""Ends a rank's waits for its peers when a rank has failed, within a time limit.

Kernels between GPUs are told to give up, and other ranks are killed; but a driver call, or NCCL while it connects, cannot be interrupted. A
process that stood in it for ever would never show why the ranks have ended, and would keep its GPU; so after the limit it prints the reason
and where it stands, and ends itself.
"""

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

LIMIT_S = 10.0
EXIT_CODE = 1


def let_go(functions: Iterable[Callable[[], Any]], reason: str, limit_s: float = LIMIT_S) -> None:
    """Call the functions in their order; if they take longer than limit_s, print the reason, and end this process with EXIT_CODE.

    An error of one of them is printed, and the next is called.
    """
    thread = threading.Thread(target=_call_all, args=(list(functions),), daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        main = threading.main_thread()
        waiting = thread if threading.current_thread() is main else main
        print(
            f"{reason}\nThis rank has not stopped waiting for the others within {limit_s:g} s, so its process ends and gives back its GPU. "
            f"It stands in {place_of(waiting)}.",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        os._exit(EXIT_CODE)


def place_of(thread: threading.Thread) -> str:
    """The function in which a thread stands, and its line."""
    assert thread.ident is not None
    frame = traceback.extract_stack(sys._current_frames()[thread.ident])[-1]
    return f"{frame.name}, {frame.filename}:{frame.lineno}"


@contextlib.contextmanager
def left_at_failure(at_failure: list[Callable[[], Any]]) -> Iterator[None]:
    """A context that must be left soon after a rank has failed, or let_go, which is given the list `at_failure`, ends this process."""
    left = threading.Event()
    at_failure.append(left.wait)
    try:
        yield
    finally:
        left.set()


def _call_all(functions: list[Callable[[], Any]]) -> None:
    for function in functions:
        try:
            function()
        except Exception:  # noqa: BLE001 - the ranks end in any case, and the first error is the one that is raised
            traceback.print_exc()
