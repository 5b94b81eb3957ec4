"""Finds calls of tools in a text that comes in pieces, and passes their arguments on as they come.

Arguments are passed on as the model wrote them, valid JSON or not. A call with another form than {"name": ..., "arguments": ...} is
read as a whole at its end; what is no call stays text.
"""

import json
import re
from typing import NamedTuple

from minllm.server.tool_calls.formats import Format

PYTHON_TAG = "<|python_tag|>"
MARK = re.compile(r"[\s;]*(?:<\|python_tag\|>)?\s*")  # what may stand before a call that has no marker, or between two
START = re.compile(r'\s*\{\s*"name"\s*:\s*"((?:[^"\\]|\\.)*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')


class Piece(NamedTuple):
    """A part of an answer: of its text if `call` is None, or else of the arguments of that call. name: with a call's first piece."""

    text: str
    call: int | None = None
    name: str | None = None


class ToolStream:
    """The pieces of one completion: text, then a call up to its arguments, the arguments, and the rest up to the call's end."""

    def __init__(self, form: Format, most_calls: int | None = None):
        """most_calls: further calls are dropped."""
        self._form, self._most = form, most_calls
        self._unread = ""
        self._state = self._text
        self._arguments = JsonEnd()
        self._has_text = False
        self.num_calls = 0

    def feed(self, text: str, is_last: bool = False) -> list[Piece]:
        """The pieces that are certain after `text`; after the last text, all."""
        self._unread += text
        pieces: list[Piece] = []
        while self._state(pieces, is_last):
            pass
        return [piece for piece in pieces if piece.text or piece.name is not None]

    def _text(self, pieces: list[Piece], is_last: bool) -> bool:
        """Pass text on up to the beginning of a call. Returns whether the next state can go on at once, as all states do."""
        at, length = self._beginning(is_last)
        text = self._unread[: len(self._unread) if at is None else at]
        if not self.num_calls or text.strip():  # the white space between calls is nobody's text
            self._has_text = self._has_text or bool(text.strip())
            pieces.append(Piece(text))
        self._unread = self._unread[len(text) + (length or 0) :]
        if length is None:
            return False
        self._state = self._call_begins
        return True

    def _beginning(self, is_last: bool) -> tuple[int | None, int | None]:
        """(where the text ends, characters of the marker there); None: it does not end, no call begins."""
        unread, begin = self._unread, self._form.begin
        if begin:
            at = unread.find(begin)
            return (at, len(begin)) if at >= 0 else (None if is_last else len(unread) - held_back(unread, begin), None)
        if self._has_text:
            return None, None
        start = MARK.match(unread).end()
        if unread[start:].startswith("{"):
            return 0, start
        return (0, None) if not is_last and (start == len(unread) or PYTHON_TAG.startswith(unread.lstrip())) else (None, None)

    def _call_begins(self, pieces: list[Piece], is_last: bool) -> bool:
        """Read a call up to its arguments, or all of it if it has another form."""
        if start := START.match(self._unread):
            self._call(pieces, json_text(start[1]))
            self._unread, self._arguments, self._state = self._unread[start.end() :], JsonEnd(), self._pass_arguments
            return True
        end = self._end_of_call(is_last)
        if end is None:
            return False
        raw, self._unread, self._state = self._unread[: end[0]], self._unread[end[1] :], self._text
        call = parsed_call(raw)
        if call is None:
            self._has_text = True
            pieces.append(Piece(self._form.begin + raw + self._form.end * (end[1] > end[0])))
        else:
            self._call(pieces, call[0])
            self._argue(pieces, call[1])
        return True

    def _end_of_call(self, is_last: bool) -> tuple[int, int] | None:
        """(where the call ends, where its end marker ends); None while that is not known."""
        whole, marker = len(self._unread), self._form.end
        if not marker:
            at = JsonEnd().feed(self._unread)
            return (at, at) if at is not None else (whole, whole) if is_last else None
        first = at = self._unread.find(marker)
        json_end, read = JsonEnd(), 0
        while at >= 0:
            json_end.feed(self._unread[read:at])
            if not json_end.in_string:
                break
            read, at = at, self._unread.find(marker, at + 1)  # this marker is text of an argument
        if at < 0 and not is_last:
            return None
        if at < 0 or at > first and parsed_call(self._unread[:at]) is None:  # not JSON, so what looked like a string was none
            at = first
        return (at, at + len(marker)) if at >= 0 else (whole, whole)

    def _pass_arguments(self, pieces: list[Piece], is_last: bool) -> bool:
        end = self._arguments.feed(self._unread)
        self._argue(pieces, self._unread[:end])
        self._unread = "" if end is None else self._unread[end:]
        if end is not None:
            self._state = self._after_arguments
        return end is not None

    def _after_arguments(self, pieces: list[Piece], is_last: bool) -> bool:
        """Drop the rest of a call: its closing brace, and its end marker."""
        end = self._form.end or "}"
        at = self._unread.find(end)
        if at < 0:
            self._unread = "" if is_last else self._unread[len(self._unread) - held_back(self._unread, end) :]
            return False
        self._unread, self._state = self._unread[at + len(end) :], self._text
        return True

    def _call(self, pieces: list[Piece], name: str) -> None:
        self.num_calls += 1
        if self._is_wanted:
            pieces.append(Piece("", self.num_calls - 1, name))

    def _argue(self, pieces: list[Piece], text: str) -> None:
        if text and self._is_wanted:
            pieces.append(Piece(text, self.num_calls - 1))

    @property
    def _is_wanted(self) -> bool:
        return self._most is None or self.num_calls <= self._most


class JsonEnd:
    """Finds the end of a JSON object or list in text that comes in pieces. in_string: whether the text so far ends within a string."""

    def __init__(self):
        self._depth, self.in_string, self._is_escaped = 0, False, False

    def feed(self, text: str) -> int | None:
        """The index after the value's last character; None if it goes on."""
        for at, char in enumerate(text):
            if self.in_string:
                self.in_string = char != '"' or self._is_escaped
                self._is_escaped = char == "\\" and not self._is_escaped
            elif char == '"':
                self.in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return at + 1
        return None


def held_back(text: str, marker: str) -> int:
    """The length of the end of `text` with which `marker` may begin."""
    return next((size for size in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:size])), 0)


def json_text(inside: str) -> str:
    """The text of a JSON string, without its quotes."""
    try:
        return json.loads(f'"{inside}"')
    except ValueError:
        return inside


def parsed_call(raw: str) -> tuple[str, str] | None:
    """(name, arguments as JSON) of a whole call; None if it is none."""
    try:
        call = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    arguments = call.get("arguments", call.get("parameters", {})) if isinstance(call, dict) else None
    if not isinstance(arguments, dict | str) or not isinstance(call.get("name"), str):
        return None
    return call["name"], arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
