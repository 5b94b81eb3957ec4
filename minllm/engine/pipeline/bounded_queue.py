"""A queue between two threads that holds a limited number of items: a thread that puts more waits until there is room."""

from collections import deque
from collections.abc import Callable
from threading import Condition, Event
from typing import Generic, TypeVar

T = TypeVar("T")


class BoundedQueue(Generic[T]):
    """A first-in, first-out queue; items that wait for room keep their order."""

    def __init__(self, limit: int):
        self.limit = limit
        self._items: deque[T] = deque()
        self._waiting: deque[tuple[T, Callable[[], None]]] = deque()  # (item that waits for room, callback)
        self._changed = Condition()
        self._is_awake = False
        self._is_closed = False

    def put_or_wait(self, item: T, callback: Callable[[], None]) -> bool:
        """Put an item. False if there is no room: then another thread calls `callback` once the item is in or the queue is closed."""
        with self._changed:
            if not self._is_closed and len(self._items) >= self.limit:
                self._waiting.append((item, callback))
                return False
            self._items.append(item)
            self._changed.notify()
            return True

    def put(self, item: T) -> None:
        """Put an item, and block until there is room for it or the queue is closed."""
        is_in = Event()
        if not self.put_or_wait(item, is_in.set):
            is_in.wait()

    def take(self, most: int, wait: bool = True) -> list[T]:
        """Up to `most` items. wait: block until there is an item, or `wake` or `close` is called."""
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._items or self._is_awake or self._is_closed)
            self._is_awake = False
            taken = [self._items.popleft() for _ in range(min(most, len(self._items)))]
            callbacks = self._let_in(self.limit - len(self._items))
        for callback in callbacks:
            callback()
        return taken

    def wake(self) -> None:
        """Let a blocked `take`, or the next one, return with the present items."""
        with self._changed:
            self._is_awake = True
            self._changed.notify()

    def close(self) -> None:
        """Let blocked calls, and all later ones, return."""
        with self._changed:
            self._is_closed = True
            callbacks = self._let_in(len(self._waiting))
            self._changed.notify_all()
        for callback in callbacks:
            callback()

    def _let_in(self, room: int) -> list[Callable[[], None]]:
        """Move waiting items into the queue; returns their callbacks."""
        entering = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
        self._items.extend(item for item, _ in entering)
        return [callback for _, callback in entering]
