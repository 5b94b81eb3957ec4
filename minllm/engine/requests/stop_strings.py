"""Find stop strings in a text that arrives piece by piece, across token boundaries.

Text may be shown only if no stop string can begin in it. So the longest tail of the text that is a proper prefix of a stop string is held
back, at most max(len(stop)) - 1 characters, and released once it cannot become a stop string.
"""

from collections.abc import Sequence


class StopStringMatcher:
    """Releases text up to the first stop string that is completed.

    If two are completed at the same character, the longer one counts. `text` is all text released so far, and final once `stop` is
    set: it ends before the stop string, or after it with `include_stop`.
    """

    def __init__(self, stop_strings: Sequence[str] = (), include_stop: bool = False):
        self.stop: str | None = None
        self.text = ""
        self._held = ""  # seen, not released
        self._recent = ""  # the last characters seen, enough to find the longest stop string that ends in the next piece
        self._stop_strings = tuple(sorted(stop_strings, key=len, reverse=True))
        self._include_stop = include_stop
        self._longest = len(self._stop_strings[0]) if self._stop_strings else 0

    def push(self, piece: str, may_stop: bool = True) -> str:
        """Take the next piece of text and return the text to show now.

        With `may_stop` false, stop strings that end in this piece are ordinary text.
        """
        if not self._stop_strings:
            self.text += piece
            return piece
        if self.stop is not None or not piece:
            return ""
        seen = self._held + piece
        found = self._first_completed(piece) if may_stop else None
        if found is not None:
            self.stop, excess = found
            end = len(seen) - excess if self._include_stop else len(seen) - excess - len(self.stop)
            return self._release(seen, end)
        if self._longest > 1:
            self._recent = (self._recent + piece)[1 - self._longest :]
        return self._release(seen, len(seen) - self._undecided(seen))

    def flush(self) -> str:
        """Return the held-back text at the end of the input."""
        return self._release(self._held, len(self._held)) if self.stop is None else ""

    def _release(self, seen: str, end: int) -> str:
        released, self._held = seen[:end], seen[end:]
        self.text += released
        return released

    def _first_completed(self, piece: str) -> tuple[str, int] | None:
        """The stop string that ends first in `piece`, and the number of characters after it."""
        seen = self._recent + piece
        first = None
        for stop in self._stop_strings:
            start = seen.find(stop, max(0, len(self._recent) - len(stop) + 1))  # stop strings that end before `piece` were found earlier
            if start >= 0 and (first is None or start + len(stop) < first[1]):
                first = (stop, start + len(stop))
        return None if first is None else (first[0], len(seen) - first[1])

    def _undecided(self, seen: str) -> int:
        """Length of the longest tail of `seen` that is the beginning of a stop string."""
        for length in range(min(self._longest - 1, len(seen)), 0, -1):
            tail = seen[-length:]
            if any(len(stop) > length and stop.startswith(tail) for stop in self._stop_strings):
                return length
        return 0
