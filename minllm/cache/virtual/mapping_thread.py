"""A thread that maps pages in the background, so that steps do not wait."""

import queue
import threading
import weakref
from collections.abc import Hashable

from minllm.errors import DeviceError


class MappingThread:
    """Calls `policy.map_ahead(sequence)` for every requested sequence, in order, in the background.

    It has only a weak reference to the policy, so it ends when the policy is deleted, or with `close`. `wait` raises errors of the driver.
    """

    def __init__(self, policy):
        self._asked: queue.SimpleQueue = queue.SimpleQueue()
        self._idle = threading.Condition()
        self._pending = 0
        self._error: BaseException | None = None
        arguments = (weakref.ref(policy), policy.cache.pages.backend.start_thread)
        self._thread = threading.Thread(target=self._run, args=arguments, name="minllm-mapping", daemon=True)
        self._thread.start()
        weakref.finalize(policy, self._asked.put, None).atexit = False

    def ask(self, sequence: Hashable) -> None:
        """Request map_ahead for a sequence."""
        with self._idle:
            self._pending += 1
        self._asked.put(sequence)

    def wait(self, timeout: float = 60.0) -> None:
        """Wait until all requests are done.

        Raises the thread's error, if there was one, and DeviceError if the requests are not done within `timeout` seconds.
        """
        with self._idle:
            if not self._idle.wait_for(lambda: not self._pending, timeout):
                raise DeviceError(
                    f"pages of {self._pending} sequences are still not mapped after {timeout:g} s: the driver does not answer; "
                    "`minllm doctor` looks for what is wrong"
                )
            error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """End the thread after all requests."""
        self._asked.put(None)
        self._thread.join(60.0)

    def _run(self, policy, start) -> None:
        start()
        while (sequence := self._asked.get()) is not None:
            try:
                if (alive := policy()) is not None:
                    alive.map_ahead(sequence)
            except BaseException as error:  # the next `wait` raises it
                self._error = error
            finally:
                alive = None
                with self._idle:
                    self._pending -= 1
                    self._idle.notify_all()
