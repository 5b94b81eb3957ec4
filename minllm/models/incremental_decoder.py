"""Decodes token ids that arrive one at a time, and never returns part of a character.

A token is a piece of a byte sequence, and a character may span up to four tokens. Ids are looked up as names, and the steps of the
tokenizer's decoder (decoder_steps.py) make text of them as soon as no later token can change it. The cost per token does not grow.
"""

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from minllm.errors import Contained
from minllm.models.decoder_steps import DecoderChain

LONGEST_CHARACTER = 4  # tokens: one per byte of UTF-8


class IncrementalDecoder:
    """Decodes one sequence.

    The returned pieces, joined, equal `tokenizer.decode` of all ids as a continuation of the prompt, also if its bytes are not UTF-8. A run
    of SentencePiece byte tokens is therefore returned at its end: if one byte of it is invalid, all of them become U+FFFD.
    """

    def __init__(self, tokenizer: Any, prompt_token_ids: Sequence[int] = (), skip_special_tokens: bool = True):
        """prompt_token_ids: the prompt that the text continues; if it holds words, the first token's leading space is kept."""
        self._tokenizer, self._prompt_token_ids = tokenizer, prompt_token_ids
        self._name = tokenizer.backend.id_to_token
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()

    @functools.cached_property
    def _chain(self) -> DecoderChain:
        """The decoder's steps, made for the first token so that a batch of new requests does not wait for all decoders."""
        chain = self._tokenizer.decoder_chain()
        words = (token_id for token_id in reversed(self._prompt_token_ids) if token_id not in self._skipped)
        before = list(itertools.islice(words, LONGEST_CHARACTER))  # the prompt may end within a character
        if before:
            chain.follow(self._names(reversed(before)))
        return chain

    def _names(self, token_ids: Iterable[int]) -> list[str]:
        """The names of tokens; ids without one, such as padding rows of the embedding, are left out."""
        names = (self._name(token_id) for token_id in token_ids if token_id not in self._skipped)
        return [name for name in names if name is not None]

    def push(self, token_id: int) -> str:
        """The text that this token completes; empty while a character is incomplete."""
        return self.push_all((token_id,))

    @Contained()
    def push_all(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete: the joined results of `push` for each."""
        names = self._names(token_ids)
        return self._chain.push(names) if names else ""

    @Contained()
    def finish(self) -> str:
        """The rest of the text after the last token: U+FFFD for an incomplete character, or nothing."""
        return self._chain.finish()
