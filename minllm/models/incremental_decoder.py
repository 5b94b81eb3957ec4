"""Decodes token ids that arrive one at a time, and never returns part of a character.

A token is a piece of a byte sequence, and a character may span up to four tokens. Ids are therefore converted to bytes first, and bytes to
characters once these are complete. The bytes follow from the token's name, which tokenizers write in one of two ways:

    byte-level BPE   each byte is written as one printable character (GPT-2's table); Llama 3, Qwen, GPT-2
    SentencePiece    a space is written as U+2581, and bytes outside the vocabulary as <0x41>; Llama 2, Mistral

Both cost O(1) per token. Any other kind of tokenizer is decoded by the stream of the tokenizers library.
"""

import codecs
import functools
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

from tokenizers.decoders import DecodeStream

SPACE_MARK = "\u2581"
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
LONGEST_CHARACTER = 4  # bytes of UTF-8


@functools.cache
def byte_of_character() -> dict[str, int]:
    """{character: byte} of GPT-2: printable Latin-1 characters are their own byte, U+0100 and up the others."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def byte_level_bytes(token: str) -> bytes:
    """The bytes of a byte-level token.

    A token with a character outside the table (an added token) is encoded as UTF-8.
    """
    table = byte_of_character()
    try:
        return bytes([table[character] for character in token])
    except KeyError:
        return token.encode()


def sentencepiece_bytes(token: str) -> bytes:
    """The bytes of a SentencePiece token."""
    byte = BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(SPACE_MARK, " ").encode()


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error("minllm_replace_each_byte", _replace_each_byte)  # SentencePiece replaces each byte; byte-level BPE a whole broken run


class IncrementalDecoder:
    """Decodes one sequence.

    The returned pieces, joined, equal `tokenizer.decode` of all ids as a continuation of the prompt. One exception: for invalid UTF-8 a
    SentencePiece tokenizer's decode replaces a whole run of bytes, valid characters included. Here the valid characters were returned
    already, and only the invalid bytes become U+FFFD.
    """

    def __init__(self, tokenizer: Any, prompt_token_ids: Sequence[int] = (), skip_special_tokens: bool = True):
        """prompt_token_ids: the prompt that the text continues; if it holds words, the first token's leading space is kept."""
        self._tokenizer, self._prompt_token_ids, self._skips = tokenizer, prompt_token_ids, skip_special_tokens
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()

    @functools.cached_property
    def _stream(self) -> "_ByteStream | _LibraryStream":
        """The stream, made for the first token so that a batch of new requests does not wait for all decoders."""
        stream = _make_stream(self._tokenizer, self._skips)
        words = (token_id for token_id in reversed(self._prompt_token_ids) if token_id not in self._skipped)
        before = list(itertools.islice(words, LONGEST_CHARACTER))
        for token_id in reversed(before):  # the prompt may end within a character
            stream.push(token_id)
        if before:
            stream.at_start = False
        return stream

    def push(self, token_id: int) -> str:
        """The text that this token completes; empty while a character is incomplete."""
        return "" if token_id in self._skipped else self._stream.push(token_id)

    def push_all(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete: the joined results of `push` for each."""
        return self._stream.push_all([token_id for token_id in token_ids if token_id not in self._skipped])

    def finish(self) -> str:
        """The rest of the text after the last token: U+FFFD for an incomplete character, or nothing."""
        return self._stream.finish()


class _ByteStream:
    """Turns the bytes of tokens into complete characters; strips a space added before the text's first word."""

    def __init__(self, id_to_token: Callable[[int], str | None], token_bytes: Callable[[str], bytes], strip: int | None, errors: str):
        self._id_to_token, self._token_bytes = id_to_token, token_bytes
        self._strip = strip  # number of leading spaces to drop; None drops every space of the first token
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors)
        self.at_start = True

    def push(self, token_id: int) -> str:
        token = self._id_to_token(token_id)
        if token is None:  # the tokenizer has no token for this row of the embedding
            return ""
        if self.at_start and self._strip is None:
            self.at_start = False
            token = token.replace(SPACE_MARK, "")
        return self._stripped(self._utf8.decode(self._token_bytes(token)))

    def push_all(self, token_ids: Sequence[int]) -> str:
        if self.at_start:  # the first tokens are stripped one by one
            return "".join(map(self.push, token_ids))
        return self._utf8.decode(b"".join(map(self._bytes_of, token_ids)))

    def _bytes_of(self, token_id: int) -> bytes:
        token = self._id_to_token(token_id)
        return b"" if token is None else self._token_bytes(token)

    def finish(self) -> str:
        return self._stripped(self._utf8.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        if not self.at_start or not text:
            return text
        self.at_start = False
        dropped = 0
        while dropped < (self._strip or 0) and text.startswith(" ", dropped):
            dropped += 1
        return text[dropped:]


class _LibraryStream:
    """The stream of the tokenizers library, for all other kinds of decoders."""

    def __init__(self, backend: Any, skip_special_tokens: bool):
        self._backend, self._skip = backend, skip_special_tokens
        self._stream = DecodeStream(skip_special_tokens=skip_special_tokens)
        self._pending: list[int] = []
        self.at_start = True

    def push(self, token_id: int) -> str:
        self._pending.append(token_id)
        text = self._stream.step(self._backend, token_id)
        if text is None:
            return ""
        self._pending.clear()
        return text

    def push_all(self, token_ids: Sequence[int]) -> str:
        return "".join(map(self.push, token_ids))

    def finish(self) -> str:
        text, self._pending = self._backend.decode(self._pending, skip_special_tokens=self._skip), []
        return text


def _make_stream(tokenizer: Any, skip_special_tokens: bool) -> "_ByteStream | _LibraryStream":
    """The stream for the "decoder" entry of a tokenizer.json."""
    decoder = tokenizer.decoder or {}
    id_to_token = tokenizer.backend.id_to_token
    if decoder.get("type") == "ByteLevel":
        return _ByteStream(id_to_token, byte_level_bytes, 0, "replace")
    if decoder.get("type") == "Metaspace" and decoder.get("replacement") == SPACE_MARK:
        strip = 0 if decoder.get("prepend_scheme") == "never" else None
        return _ByteStream(id_to_token, lambda token: token.replace(SPACE_MARK, " ").encode(), strip, "replace")
    steps = decoder.get("decoders", []) if decoder.get("type") == "Sequence" else []
    kinds = [step.get("type") for step in steps]
    if kinds in (["Replace", "ByteFallback", "Fuse"], ["Replace", "ByteFallback", "Fuse", "Strip"]):
        replaces = steps[0].get("pattern") == {"String": SPACE_MARK} and steps[0].get("content") == " "
        strips = len(steps) == 3 or (steps[3].get("content") == " " and steps[3].get("stop") == 0)
        if replaces and strips:
            return _ByteStream(id_to_token, sentencepiece_bytes, steps[3]["start"] if len(steps) == 4 else 0, "minllm_replace_each_byte")
    return _LibraryStream(tokenizer.backend, skip_special_tokens)
