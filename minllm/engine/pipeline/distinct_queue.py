"""A queue that holds each item at most once, so it does not grow when its reader falls behind."""

from collections.abc import Hashable, Iterable
from threading import Condition
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class DistinctQueue(Generic[T]):
    """Items in the order in which they were first added, bounded by the number of different items."""

    def __init__(self):
        self._items: dict[T, None] = {}
        self._changed = Condition()
        self._is_closed = False

    def add(self, items: Iterable[T]) -> None:
        """Add the items that are not in the queue."""
        with self._changed:
            self._items.update(dict.fromkeys(items))
            self._changed.notify()

    def take(self) -> list[T] | None:
        """All items; blocks until there is one. None once the queue is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._is_closed)
            items, self._items = self._items, {}
            return list(items) or None

    def close(self) -> None:
        """Let `take` return None."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
