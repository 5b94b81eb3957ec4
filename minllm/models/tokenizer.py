"""A model's tokenizer: text to token ids and back, and conversations to prompts.

The `tokenizers` library encodes, with the model's own tokenizer.json and the tokens that other files add to it (tokenizer_files.py).
Decoding is ours (decoder_steps.py), for ids that arrive one at a time or all at once.
"""

import functools
import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models

from minllm.errors import Contained, InvalidRequestError, shown
from minllm.models.decoder_steps import TOKENIZATION_SPACES, DecoderChain
from minllm.models.incremental_decoder import IncrementalDecoder
from minllm.models.json_files import read_json
from minllm.models.named_templates import ChatTemplates, find_templates
from minllm.models.token_length import most_chars_per_token
from minllm.models.token_texts import TokenTexts
from minllm.models.tokenizer_files import read_backend

LONG_TEXT = 1000  # characters: encoding them takes about a millisecond, during which other threads may want the GIL


class Tokenizer:
    """Encodes and decodes text, and applies the chat template if the model has one."""

    def __init__(
        self, backend: tokenizers.Tokenizer, config: Mapping[str, Any] | None = None, chat_templates: Mapping[str, str] | None = None
    ):
        """backend: the library's tokenizer. config: the content of tokenizer_config.json.

        chat_templates: Jinja source by name.
        """
        self.backend = backend
        self.backend.no_truncation()  # some files contain the limits of the training run
        self.backend.no_padding()
        self.backend.encode_special_tokens = (config or {}).get("split_special_tokens") is True
        self.config = dict(config or {})
        self.decoder: dict[str, Any] | None = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else None
        self._clean_up = TOKENIZATION_SPACES if self._cleans_up() else ()
        added = backend.get_added_tokens_decoder()
        special = {token.content for token in added.values() if token.special}
        # A token that is matched in normalised text has a normalised name, which the library does not take for special.
        self.special_token_ids = frozenset(token_id for token_id in added if backend.id_to_token(token_id) in special)
        self._special_tokens = {key: text for key in self.config if key.endswith("_token") and (text := _token_text(self.config[key]))}
        self._templates = ChatTemplates(chat_templates or {}, self._special_tokens)
        self._added = self._explicitly_added()
        self._texts: dict[int, str] = {}

    @classmethod
    def from_directory(cls, directory: Path | str) -> "Tokenizer":
        """The tokenizer of a Hugging Face model directory.

        Raises CheckpointError if tokenizer.json is missing or damaged.
        """
        directory = Path(directory)
        path = directory / "tokenizer_config.json"
        config = read_json(path) if path.exists() else {}
        backend, config = read_backend(directory, config)
        return cls(backend, config, find_templates(directory, config))

    @property
    def vocab_size(self) -> int:
        """The number of tokens, added ones included. Ids may have gaps, so that the largest id can exceed it."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    @functools.cached_property
    def most_chars_per_token(self) -> int | None:
        """The largest number of characters of a text that one token can represent; None if there is no bound."""
        return most_chars_per_token(self.backend)

    @functools.cached_property
    def token_texts(self) -> TokenTexts:
        """The text of every token; takes some tenths of a second for 128,000 tokens."""
        names = {token_id: name for name, token_id in self.backend.get_vocab(with_added_tokens=True).items()}
        texts = self.decoder_chain().bytes_of_each([names.get(token_id, "") for token_id in range(max(names) + 1)])
        return TokenTexts([text if token_id in names else b"" for token_id, text in enumerate(texts)])

    @property
    def bos_token_id(self) -> int | None:
        """The id of the token that begins a text; None if the files name none."""
        return self._id_of("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        """The id of the token that ends a text; None if the files name none."""
        return self._id_of("eos_token")

    @property
    def pad_token_id(self) -> int | None:
        """The id of the token that fills up short texts of a batch; None if the files name none."""
        return self._id_of("pad_token")

    @property
    def unk_token_id(self) -> int | None:
        """The id of the token for what the vocabulary lacks; None if the files name none."""
        return self._id_of("unk_token")

    @Contained()
    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text. Raises InvalidRequestError if it is not valid Unicode, or if a part of it has no token.

        add_special_tokens: add the tokens that the model expects around a prompt, such as BOS.
        """
        if not isinstance(text, str):
            raise InvalidRequestError(f"A text to encode must be a str, not {type(text).__name__}.")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(f"The text is not valid Unicode ({error.reason} at character {error.start}).") from error
        if self._added is None:
            return self._encoded(text, add_special_tokens)
        ids = self._encoded(text, add_special_tokens=False)
        before, after = self._added if add_special_tokens else ([], [])
        return before + ids + after

    def _encoded(self, text: str, add_special_tokens: bool) -> list[int]:
        """The library's token ids. Its encode() holds the GIL, and its batches do not; one text of a batch stays in this thread."""
        try:
            if len(text) < LONG_TEXT:
                return self.backend.encode(text, add_special_tokens=add_special_tokens).ids
            return self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        except Exception as error:  # no subclass: the vocabulary has neither a token for a word nor an unknown one
            raise InvalidRequestError(
                f"The model's tokenizer cannot encode this text: {error}. Give token ids, or another text."
            ) from error

    @Contained()
    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids; ids without a token are ignored. Raises InvalidRequestError for what is no list of ids."""
        try:
            ids = [operator.index(token_id) for token_id in token_ids]
        except TypeError:
            ids = [-1]
        if any(not 0 <= token_id < 2**32 for token_id in ids):
            raise InvalidRequestError(f"{shown(token_ids)} cannot be decoded: give a list of whole numbers from 0 to 2**32 - 1.")
        decoder = self.incremental_decoder((), skip_special_tokens)
        return decoder.push_all(ids) + decoder.finish()

    def text_of(self, token_id: int) -> str:
        """The text of one token of the model by itself, special ones included: it is decoded once."""
        text = self._texts.get(token_id)
        if text is None:
            text = self._texts[token_id] = self.decode([token_id], skip_special_tokens=False)
        return text

    def decoder_chain(self) -> DecoderChain:
        """The steps that make one text of token names."""
        return DecoderChain(self.decoder, self._clean_up)

    def incremental_decoder(self, prompt_token_ids: Sequence[int] = (), skip_special_tokens: bool = True) -> IncrementalDecoder:
        """A decoder for ids that arrive one at a time and continue a prompt."""
        return IncrementalDecoder(self, prompt_token_ids, skip_special_tokens)

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be turned into prompts."""
        return bool(self._templates.names)

    @property
    def chat_templates(self) -> Mapping[str, str]:
        """The source of the chat templates, by name."""
        return self._templates.sources

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, chat_template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None, **options: Any,
    ) -> str:  # fmt: skip
        """The prompt of a conversation, as text. options: those of ChatTemplate.render.

        chat_template: the name of one of the model's, or a template in place of them. Raises InvalidRequestError if there is no such
        template, or if it refuses the messages.
        """
        return self._templates.choose(chat_template, tools).render(messages, add_generation_prompt, tools=tools, **options)

    def _cleans_up(self) -> bool:
        """Whether spaces before punctuation are dropped, which transformers does unless the model is BPE."""
        forced = self.config.get("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output") is True
        return self.config.get("clean_up_tokenization_spaces") is True and (forced or not isinstance(self.backend.model, models.BPE))

    def _id_of(self, name: str) -> int | None:
        text = self._special_tokens.get(name)
        return None if text is None else self.backend.token_to_id(text)

    def _explicitly_added(self) -> tuple[list[int], list[int]] | None:
        """Token ids before and after a text by add_bos_token and add_eos_token; None if neither is set.

        A side that it does not set gets the tokens of tokenizer.json.
        """
        wanted = [self.config.get("add_bos_token"), self.config.get("add_eos_token")]
        if not any(isinstance(flag, bool) for flag in wanted):
            return None
        ids = [self.bos_token_id, self.eos_token_id]
        explicit = [[i] if flag is True and i is not None else [] for flag, i in zip(wanted, ids, strict=True)]
        sides = zip(wanted, explicit, self._put_around(), strict=True)
        before, after = (tokens if isinstance(flag, bool) else own for flag, tokens, own in sides)
        return before, after

    def _put_around(self) -> tuple[list[int], list[int]]:
        """The token ids that tokenizer.json's post-processor adds before and after a text."""
        encoding = self.backend.encode("a", add_special_tokens=True)
        ids, added = encoding.ids, encoding.special_tokens_mask
        first = added.index(0) if 0 in added else len(added)
        last = len(added) - added[::-1].index(0) if 0 in added else len(added)
        return ids[:first], ids[last:]


def _token_text(value: object) -> str | None:
    """The text of a special token, which the file gives as a string or as an object with "content"."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) and content else None
