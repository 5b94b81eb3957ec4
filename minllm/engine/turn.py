"""Whose turn it is to use an engine: one thread's at a time, in the process that made it. Everybody else is told so at once.

A thread whose requests have all ended returns its turn soon, after a step that it launched ahead: for that one others wait.

Two threads in a scheduler, or two in the runner's arrays, would mix their tokens without an error. A forked process has neither the
engine's threads nor its GPU, and a copy shares the memory in which the original writes.
"""

import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from minllm.errors import EngineBusyError

GRACE = 10.0  # seconds to wait for a thread whose requests have all ended; a step that it launched ahead may still run
ADVICE = "one thread can use it at a time: wait until it is done, or make an AsyncLLM, which any number of threads can use"


class Turn:
    """A context in which this thread uses the engine, and which it may enter again. Raises EngineBusyError if it cannot."""

    def __init__(self):
        self._lock, self._process, self._holder = threading.RLock(), os.getpid(), ""
        self._readers: WeakKeyDictionary[Any, threading.Thread] = WeakKeyDictionary()  # open stream -> the thread that reads it
        self.depth = 0  # contexts in which this engine is used, one in the other
        self.is_stepping = self._is_closed = False
        self.ends_soon = False  # whether the thread that uses the engine has no request left

    @property
    def is_here(self) -> bool:
        """Whether this is the process that made the engine."""
        return os.getpid() == self._process

    def check_process(self) -> None:
        """Raise EngineBusyError in a process that was forked from the engine's."""
        if not self.is_here:
            raise EngineBusyError(
                f"This engine belongs to process {self._process}, and process {os.getpid()} was forked from it, without its threads and "
                "its GPU: make an LLM in this process, or start it by multiprocessing's spawn method."
            )

    def __enter__(self) -> "Turn":
        self.check_process()
        if not self._lock.acquire(timeout=GRACE if self.ends_soon else 0):
            raise EngineBusyError(f"Thread {self._holder!r} is using this engine, and {ADVICE}.")
        if self.is_stepping or self._is_closed:
            self._lock.release()
            if self._is_closed:
                raise EngineBusyError("This LLM was closed: make a new one.")
            raise EngineBusyError("A function that a step calls, such as a logits processor, cannot use the engine of this step.")
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        self._lock.release()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Wait until nobody uses the engine, then use it."""
        self._lock.acquire()
        self._begin()
        try:
            yield
        finally:
            self.__exit__()

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """A context for a step, within a turn."""
        with self:
            self.is_stepping = True
            try:
                yield
            finally:
                self.is_stepping = False

    def begin_call(self, stream: Any = None) -> None:
        """Raise EngineBusyError if another thread reads a stream, within a turn. stream: what this thread reads from now on."""
        here = threading.current_thread()
        for other, reader in list(self._readers.items()):
            if other is not stream and reader is not here and reader.is_alive():
                raise EngineBusyError(f"Thread {reader.name!r} is reading a stream of this engine, and {ADVICE}, or close the stream.")
        if stream is not None:
            self._readers[stream] = here

    def end_reading(self, stream: Any) -> None:
        """Forget a stream that has ended or was closed."""
        self._readers.pop(stream, None)

    def close(self) -> None:
        """Let nobody in any more."""
        self._is_closed = True

    def _begin(self) -> None:
        if not self.depth:
            self.ends_soon = False
        self.depth += 1
        self._holder = threading.current_thread().name


def in_turn(method: Callable) -> Callable:
    """Decorate a method of LLM that uses its engine. Raises EngineBusyError if another thread does, or after close()."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        self.engine  # noqa: B018 - raises if it was closed
        with self.llm_engine.core.turn as turn:
            turn.begin_call()
            return method(self, *arguments, **named)

    return call


class NotCopied:
    """An object with an engine, which copy.copy, copy.deepcopy and pickle refuse."""

    def __reduce_ex__(self, protocol: object) -> Any:
        raise EngineBusyError(
            f"A {type(self).__name__} cannot be copied or pickled, because both would use the same threads and memory: share it, or make "
            "another one with the same options."
        )
