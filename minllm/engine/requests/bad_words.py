"""Texts that must not be generated, as token ids.

A word is tokenised as it stands and behind a space, because it may begin a text or follow another word. One of a single token is banned on
the device; of a longer one the last token is banned wherever the output ends with the others, which the host has to look for. Source: vLLM,
`SamplingParams.bad_words`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


def bad_word_tokens(words: Sequence[str], tokenizer) -> tuple[tuple[int, ...], ...]:
    """The token ids of each word, as it stands and behind a space, each once."""
    spellings = [text for word in words for text in (word.lstrip(), " " + word.lstrip())]
    found = (tuple(tokenizer.encode(text, add_special_tokens=False)) for text in spellings)
    return tuple(dict.fromkeys(token_ids for token_ids in found if token_ids))


@dataclass(frozen=True)
class BadWords:
    """A logits processor that bans the last token of every word of several tokens whose other tokens the output ends with."""

    words: tuple[tuple[int, ...], ...]

    def __call__(self, output_token_ids: list[int], logits: np.ndarray) -> np.ndarray:
        """The logits, float32 [vocab], with -inf where a word would be completed."""
        for *beginning, last in self.words:
            if beginning and output_token_ids[-len(beginning) :] == beginning:
                logits[last] = -np.inf
        return logits
