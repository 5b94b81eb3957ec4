"""bad_words: texts that are never generated. The last token of each is banned after the others, as in vLLM."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from minllm.errors import InvalidRequestError


def bad_word_token_ids(words: Iterable[str], encode: Callable[[str], list[int]]) -> tuple[tuple[int, ...], ...]:
    """The token sequences that spell each word at the beginning of a text and after a space.

    The form after a space counts only if it has its own first token and the same length: otherwise the space is a token by itself, and
    the plain form bans the word there too. `encode` adds no special tokens. Raises InvalidRequestError for a word without tokens.
    """
    found: list[tuple[int, ...]] = []
    for word in words:
        plain, spaced = (tuple(encode(prefix + word.lstrip())) for prefix in ("", " "))
        if not plain:
            raise InvalidRequestError(f"bad_words holds {word!r}, which has no token in this model's vocabulary: drop it.")
        found.append(plain)
        if len(spaced) == len(plain) and spaced[0] != plain[0]:
            found.append(spaced)
    return tuple(dict.fromkeys(found))


def banned_next(bad_words: Iterable[Sequence[int]], output_token_ids: Sequence[int]) -> list[int]:
    """The tokens that would complete a bad word after this output."""
    banned = []
    for *before, last in bad_words:
        if len(before) <= len(output_token_ids) and list(output_token_ids[len(output_token_ids) - len(before) :]) == before:
            banned.append(last)
    return banned


class BadWords:
    """A logits processor that bans every token that would complete one of these words, tuples of token ids."""

    def __init__(self, words: Iterable[Sequence[int]]):
        self.words = tuple(words)

    def __call__(self, output_token_ids: list[int], logits: np.ndarray) -> np.ndarray:
        """The logits, float32 [vocab], with -inf for the banned tokens."""
        logits[banned_next(self.words, output_token_ids)] = -np.inf
        return logits
