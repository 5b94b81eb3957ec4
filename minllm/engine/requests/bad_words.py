"""bad_words: texts that the output never contains, however its tokens spell them.

A token is banned if the text would contain a word with it: because the token holds the word, or because it begins with the rest of a word
of which the text so far ends with the beginning. Texts are compared as bytes of UTF-8, because a character may be split over tokens.

vLLM instead bans the last token of the tokenizer's own spelling of a word, at the beginning of a text and after a space; the word still
comes out in any other spelling, inside a longer token or in other pieces.
"""

from bisect import bisect_left
from collections.abc import Iterable

import numpy as np

from minllm.models.token_texts import SEPARATOR, TokenTexts


class BadWords:
    """A logits processor that bans every token that would complete a word. hidden: ids whose text is not part of the output's text."""

    def __init__(self, words: Iterable[str], texts: TokenTexts, hidden: frozenset[int] = frozenset()):
        """words: white space before a word is ignored."""
        self._words = sorted({word.lstrip().encode() for word in words})
        self._texts, self._hidden = texts, hidden
        self._longest = max(map(len, self._words), default=0)

    def always_banned(self, vocab_size: int) -> tuple[int, ...]:
        """The ids below vocab_size that hold a word; a hidden one only if it is the word, such as "<|im_end|>"."""
        found = {
            token_id for word in self._words for token_id in self._texts.holding(word)
            if token_id not in self._hidden or self._texts.texts[token_id] == word
        }  # fmt: skip
        return tuple(token_id for token_id in sorted(found) if token_id < vocab_size)

    def banned_next(self, output_token_ids: list[int]) -> list[int]:
        """The ids that would complete a word of which this output ends with the beginning."""
        end = self._end_of(output_token_ids)
        rests = {rest for size in range(1, len(end) + 1) for rest in self._rests_behind(end[-size:])}
        return [token_id for rest in rests for token_id in self._texts.beginning_with(rest) if token_id not in self._hidden]

    def _rests_behind(self, beginning: bytes) -> list[bytes]:
        """What is missing of the words with this beginning."""
        first, last = bisect_left(self._words, beginning), bisect_left(self._words, beginning + SEPARATOR)
        return [word[len(beginning) :] for word in self._words[first:last] if word != beginning]

    def __call__(self, output_token_ids: list[int], logits: np.ndarray) -> np.ndarray:
        """The logits, float32 [vocab], with -inf for the tokens of banned_next; always_banned ones are left to the sampler."""
        banned = np.array(self.banned_next(output_token_ids), np.int64)
        logits[banned[banned < len(logits)]] = -np.inf
        return logits

    def _end_of(self, output_token_ids: list[int]) -> bytes:
        """The end of the output's text, with room for all of a word but its last byte."""
        end = b""
        for token_id in reversed(output_token_ids):
            if len(end) >= self._longest - 1:
                break
            if token_id not in self._hidden and token_id < len(self._texts.texts):
                end = self._texts.texts[token_id] + end
        return end
