"""The text of every token of a vocabulary, and which tokens hold a given text or begin with it."""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

SEPARATOR = b"\xff"  # a byte that UTF-8 never has


class TokenTexts:
    """Searches the texts of tokens. texts: what each id adds to a text that has begun, as bytes; empty for an id without a token."""

    def __init__(self, texts: Sequence[bytes]):
        self.texts = texts
        self._joined = SEPARATOR.join(texts)
        self._starts = np.cumsum([0] + [len(text) + 1 for text in texts[:-1]])  # where each token begins in the joined texts
        self._order = np.argsort(np.array(texts, object), kind="stable")
        self._sorted = [texts[i] for i in self._order]

    def holding(self, text: bytes) -> list[int]:
        """The ids of the tokens that hold a text of at least one byte of UTF-8, in ascending order."""
        places, at = [], self._joined.find(text)
        while at >= 0:
            places.append(at)
            at = self._joined.find(text, at + 1)
        return np.unique(np.searchsorted(self._starts, places, side="right") - 1).tolist()

    def beginning_with(self, text: bytes) -> list[int]:
        """The ids of the tokens that begin with a text of at least one byte of UTF-8."""
        after = text[:-1] + bytes([text[-1] + 1])
        return self._order[bisect_left(self._sorted, text) : bisect_left(self._sorted, after)].tolist()
