"""The decoder of a tokenizer.json: a chain of steps from token names to text, for tokens that arrive a few at a time.

A byte of text may be a token of its own, and a step may look at the next token before it decides. Every step therefore returns only the
output that later tokens cannot change, and holds the rest. A chain has three parts:

    token steps    take and return lists of token names: Replace, ByteFallback, Metaspace, Strip, WordPiece, CTC, BPEDecoder
    the join       ByteLevel and Fuse make one text of all names; without them, names are joined at the end
    text steps     the same kinds of steps after a join: they take a text that grows

The steps and their order of evaluation are those of the `tokenizers` library (tokenizers/src/decoders). Where the library fails, for
example if Strip meets a token shorter than what it strips, a step goes as far as it can.
"""

import codecs
import copy
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenizers import Regex, decoders

from minllm.errors import UnsupportedModelError, shown

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>")  # the library's number parser accepts a sign
REPLACEMENT_CHARACTER = "\ufffd"
# The library's clean-up after WordPiece and CTC; transformers' clean_up_tokenization_spaces has all but the ninth.
CLEAN_UP = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)
TOKENIZATION_SPACES = tuple(pair for pair in CLEAN_UP if pair[0] != " do not")


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


class DecoderChain:
    """The decoder entry of a tokenizer.json, as the steps of one text.

    The joined results of `push` and `finish` are the library's decoding of all tokens.
    """

    def __init__(self, decoder: Mapping[str, Any] | None, clean_up: Sequence[tuple[str, str]] = ()):
        """decoder: the entry, or None. clean_up: pairs (pattern, content) to replace in the text at the end."""
        self._token_steps: list[Any] = []
        self._join: Any = None
        self._text_steps: list[Any] = []
        self._surplus = 0  # characters of the prompt that text steps still hold
        for step in _flat(decoder) if decoder is not None else [{"type": "Spaces"}]:
            self._append(step)
        self._text_steps += [_replace_in_text(*pair) for pair in clean_up]
        self._join = self._join or _Fuse()

    def _append(self, step: Mapping[str, Any]) -> None:
        kind = step["type"]
        if kind not in TEXT_STEPS and kind not in TOKEN_STEPS:
            raise UnsupportedModelError(f"The tokenizer's decoder has a step {shown(kind)}; minllm has {', '.join(TEXT_STEPS)}.")
        if self._join is not None:
            self._text_steps += TEXT_STEPS[kind](step)
        elif kind in JOINS:
            self._join = JOINS[kind]()
        else:
            self._token_steps.append(TOKEN_STEPS[kind](step))

    def follow(self, tokens: list[str]) -> None:
        """Continue a text that ends with these tokens: their text is not returned, but for characters that are incomplete."""
        for step in self._token_steps:
            tokens = step.push(tokens) + step.settle()
        self._push_text(self._join.push(tokens))
        if any(step.held for step in (*self._token_steps, *self._text_steps)):
            self._surplus = len(copy.deepcopy(self).finish().rstrip(REPLACEMENT_CHARACTER))

    def push(self, tokens: list[str]) -> str:
        """The text that is certain after these tokens."""
        for step in self._token_steps:
            tokens = step.push(tokens)
        return self._new(self._push_text(self._join.push(tokens)))

    def finish(self) -> str:
        """The rest of the text."""
        tokens: list[str] = []
        for step in self._token_steps:
            tokens = step.push(tokens) + step.finish()
        text = self._join.push(tokens, final=True)
        for step in self._text_steps:
            text = step.push(text) + step.finish()
        return self._new(text)

    def bytes_of_each(self, tokens: Sequence[str]) -> list[bytes]:
        """What each token by itself adds to a text that has begun, as UTF-8, or as the bytes of an incomplete character."""
        to_bytes = byte_level_bytes if isinstance(self._join, _ByteLevel) else str.encode
        falls_back = any(isinstance(step, _ByteFallback) for step in self._token_steps)
        of_tokens = [step for step in self._token_steps if isinstance(step, _EachToken | _SuffixedWords)]
        for step in of_tokens:
            step.push([""])  # the first token of a text may be changed in another way
        changes = [*of_tokens, *(step for step in self._text_steps if isinstance(step, _ReplaceInText))]
        found = []
        for token in tokens:
            if falls_back and (byte := BYTE_TOKEN.fullmatch(token)):
                found.append(bytes([int(byte[1], 16)]))
            else:
                found.append(to_bytes(functools.reduce(lambda text, step: step.alone(text), changes, token)))
        return found

    def _push_text(self, text: str) -> str:
        for step in self._text_steps:
            text = step.push(text)
        return text

    def _new(self, text: str) -> str:
        if not self._surplus:
            return text
        dropped = min(self._surplus, len(text))
        self._surplus -= dropped
        return text[dropped:]


class _TokenStep:
    """A step before the join."""

    @property
    def held(self) -> bool:
        """Whether complete text waits for another token."""
        return False

    def push(self, tokens: list[str]) -> list[str]:
        """The names that become certain."""
        raise NotImplementedError

    def settle(self) -> list[str]:
        """What the step holds of a prompt, but for the bytes of an incomplete character."""
        return []

    def finish(self) -> list[str]:
        """What the step holds at the end of the text."""
        return []


class _EachToken(_TokenStep):
    """Changes each token by itself; the first token of a text may be changed in another way."""

    def __init__(self, change: Callable[[str], str], change_first: Callable[[str], str] | None = None):
        self._change, self._change_first = change, change_first

    def push(self, tokens: list[str]) -> list[str]:
        if self._change_first is None or not tokens:
            return list(map(self._change, tokens))
        first, self._change_first = self._change_first(tokens[0]), None
        return [first, *map(self._change, tokens[1:])]

    def alone(self, token: str) -> str:
        """A token within a text."""
        return self._change(token)


class _ByteFallback(_TokenStep):
    """Makes characters of runs of byte tokens such as <0x41>.

    A run that is not UTF-8 becomes one U+FFFD per byte, its valid characters too, so that nothing of a run is certain before its end.
    """

    def __init__(self) -> None:
        self._run = bytearray()

    def push(self, tokens: list[str]) -> list[str]:
        made = []
        for token in tokens:
            byte = BYTE_TOKEN.fullmatch(token)
            if byte:
                self._run.append(int(byte[1], 16))
            else:
                made += [*self.finish(), token] if self._run else [token]
        return made

    def settle(self) -> list[str]:
        utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        complete = utf8.decode(bytes(self._run))
        self._run = bytearray(utf8.getstate()[0])
        return [complete] if complete else []

    def finish(self) -> list[str]:
        run, self._run = bytes(self._run), bytearray()
        try:
            return [run.decode()] if run else []
        except UnicodeDecodeError:
            return [REPLACEMENT_CHARACTER] * len(run)


class _Ctc(_TokenStep):
    """Drops repetitions of a token, padding and empty names."""

    def __init__(self, change: Callable[[str], str]):
        self._change = change
        self._previous: str | None = None

    def push(self, tokens: list[str]) -> list[str]:
        made = []
        for token in tokens:
            if token != self._previous:
                made.append(self._change(token))
            self._previous = token
        return [name for name in made if name]


class _SuffixedWords(_TokenStep):
    """Replaces the suffix that ends a word with a space, but drops it from the last token."""

    def __init__(self, suffix: str):
        self._suffix = suffix
        self._last: str | None = None

    @property
    def held(self) -> bool:
        return self._last is not None

    def push(self, tokens: list[str]) -> list[str]:
        tokens = ([] if self._last is None else [self._last]) + tokens
        if not tokens:
            return []
        self._last = tokens[-1]
        return list(map(self.alone, tokens[:-1]))

    def alone(self, token: str) -> str:
        """A token within a text."""
        return token.replace(self._suffix, " ")

    def finish(self) -> list[str]:
        return [] if self._last is None else [self._last.replace(self._suffix, "")]


class _Fuse:
    """Joins names."""

    def push(self, tokens: list[str], final: bool = False) -> str:
        return "".join(tokens)


class _ByteLevel:
    """Joins the bytes of names, and makes characters of them: one U+FFFD for each broken sequence."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, tokens: list[str], final: bool = False) -> str:
        return self._utf8.decode(b"".join(map(byte_level_bytes, tokens)), final)


class _ReplaceInText:
    """Replaces a pattern, of at least one character, in a text that grows."""

    def __init__(self, pattern: str, content: str):
        self._pattern, self._content = pattern, content
        self.held = ""  # may be the beginning of the pattern

    def push(self, text: str) -> str:
        *before, rest = (self.held + text).split(self._pattern)
        longest = min(len(rest), len(self._pattern) - 1)
        size = next((n for n in range(longest, 0, -1) if rest.endswith(self._pattern[:n])), 0)
        self.held = rest[len(rest) - size :]
        return self._content.join([*before, rest[: len(rest) - size]])

    def alone(self, text: str) -> str:
        """A piece of a text, without regard to its neighbours."""
        return text.replace(self._pattern, self._content)

    def finish(self) -> str:
        return self.held


class _StripText:
    """Drops up to `start` characters at the beginning of a text, and up to `stop` at its end, if they are `content`."""

    def __init__(self, content: str, start: int, stop: int):
        self._content, self._start, self._stop = content, start, stop
        self.held = ""  # may be the end of the text

    def push(self, text: str) -> str:
        while self._start and text:
            if text[0] == self._content:
                text, self._start = text[1:], self._start - 1
            else:
                self._start = 0
        text = self.held + text
        kept = len(_without_end(text, self._content, self._stop))
        self.held = text[kept:]
        return text[:kept]

    def finish(self) -> str:
        return ""


class _WholeText:
    """A step that needs the whole text, such as a regular expression: nothing of its output is certain before the end."""

    def __init__(self, change: Callable[[str], str]):
        self._change, self.held = change, ""

    def push(self, text: str) -> str:
        self.held += text
        return ""

    def finish(self) -> str:
        return self._change(self.held)


def _flat(decoder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The steps of a decoder, those of nested Sequences in their place."""
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _flat(inner)]


def _without_end(text: str, content: str, most: int) -> str:
    while most and text.endswith(content):
        text, most = text[: -len(content)], most - 1
    return text


def _strip(step: Mapping[str, Any], token: str) -> str:
    chain = _StripText(step["content"], step["start"], step["stop"])
    return chain.push(token)


def _replace(step: Mapping[str, Any], token: str) -> str:
    """A pattern in a token or a text; the library's regular expressions are not Python's."""
    pattern = step["pattern"]
    if "Regex" in pattern:
        return decoders.Replace(Regex(pattern["Regex"]), step["content"]).decode([token])
    return token.replace(pattern["String"], step["content"]) if token else ""


def _metaspace(step: Mapping[str, Any]) -> _EachToken:
    mark = step["replacement"]
    first = None if step["prepend_scheme"] == "never" else lambda token: token.replace(mark, "")
    return _EachToken(lambda token: token.replace(mark, " "), first)


def _word_piece(step: Mapping[str, Any]) -> _EachToken:
    prefix, cleaned = step["prefix"], functools.partial(_cleaned, step)
    return _EachToken(lambda token: cleaned(token[len(prefix) :] if token.startswith(prefix) else " " + token), cleaned)


def _cleaned(step: Mapping[str, Any], text: str) -> str:
    for pattern, content in CLEAN_UP if step["cleanup"] else ():
        text = text.replace(pattern, content)
    return text


def _ctc(step: Mapping[str, Any], text: str) -> str:
    text = _cleaned(step, text.replace(step["pad_token"], ""))
    return text.replace(step["word_delimiter_token"], " ") if step["cleanup"] else text


def _replace_in_text(pattern: str, content: str) -> _ReplaceInText | _WholeText:
    return _ReplaceInText(pattern, content) if pattern else _WholeText(lambda text: text.replace("", content))


def _clean_up_text(step: Mapping[str, Any]) -> list[Any]:
    return [_ReplaceInText(*pair) for pair in CLEAN_UP] if step["cleanup"] else []


def _ctc_text(step: Mapping[str, Any]) -> list[Any]:
    delimiters = [_replace_in_text(step["word_delimiter_token"], " ")] if step["cleanup"] else []
    return [_replace_in_text(step["pad_token"], ""), *_clean_up_text(step), *delimiters]


def _replace_text(step: Mapping[str, Any]) -> list[Any]:
    pattern = step["pattern"].get("String")
    return [_ReplaceInText(pattern, step["content"]) if pattern else _WholeText(functools.partial(_replace, step))]


JOINS: dict[str, Callable[[], Any]] = {"Fuse": _Fuse, "ByteLevel": _ByteLevel}
TOKEN_STEPS: dict[str, Callable[[Mapping[str, Any]], _TokenStep]] = {
    "Replace": lambda step: _EachToken(functools.partial(_replace, step)),
    "ByteFallback": lambda step: _ByteFallback(),
    "Metaspace": _metaspace,
    "Strip": lambda step: _EachToken(functools.partial(_strip, step)),
    "WordPiece": _word_piece,
    "CTC": lambda step: _Ctc(functools.partial(_ctc, step)),
    "BPEDecoder": lambda step: _SuffixedWords(step["suffix"]),
    "Spaces": lambda step: _EachToken(lambda token: " " + token, lambda token: token),  # a tokenizer without a decoder
}
# After a join the whole text is the first token, and the last.
TEXT_STEPS: dict[str, Callable[[Mapping[str, Any]], list[Any]]] = {
    "Fuse": lambda step: [],
    "ByteLevel": lambda step: [_WholeText(lambda text: decoders.ByteLevel().decode([text]))],
    "ByteFallback": lambda step: [_WholeText(lambda text: decoders.ByteFallback().decode([text]))],
    "Replace": _replace_text,
    "Metaspace": lambda step: [_ReplaceInText(step["replacement"], " " if step["prepend_scheme"] == "never" else "")],
    "Strip": lambda step: [_StripText(step["content"], step["start"], step["stop"])],
    "WordPiece": _clean_up_text,
    "CTC": _ctc_text,
    "BPEDecoder": lambda step: [_replace_in_text(step["suffix"], "")],
}
