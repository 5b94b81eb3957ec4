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
# At most 256 characters of a name are looked at for each new token; a call with a longer one is read as a whole at its end.
START = re.compile(r'\s*\{\s*"name"\s*:\s*"((?:[^"\\]|\\.){0,256})"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')


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
        self._unread = self._begin = ""  # begin: the marker of the newest call
        self._state = self._text
        self._arguments, self._end = JsonEnd(), CallEnd(form.end)
        self._has_text = self._follows_call = False  # follows_call: there has been no text since the last call
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
        if not self._follows_call or text.strip():
            self._has_text, self._follows_call = self._has_text or bool(text.strip()), False
            pieces.append(Piece(text))
        elif length is None:  # white space: nobody's text between two calls, or the beginning of a text
            return False
        self._unread = self._unread[len(text) :]
        if length is None:
            return False
        self._begin, self._unread = self._unread[:length], self._unread[length:]
        self._state, self._end = self._call_begins, CallEnd(self._form.end)
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
        may_begin = start == len(unread) or PYTHON_TAG.startswith(unread.replace(";", " ").lstrip())
        return (0, None) if may_begin and not is_last else (None, None)

    def _call_begins(self, pieces: list[Piece], is_last: bool) -> bool:
        """Read a call up to its arguments, or all of it if it has another form."""
        if start := START.match(self._unread):
            self._call(pieces, json_text(start[1]))
            self._unread, self._arguments, self._state = self._unread[start.end() :], JsonEnd(), self._pass_arguments
            return True
        end = self._end.find(self._unread, is_last)
        if end is None:
            return False
        raw, self._unread, self._state = self._unread[: end[0]], self._unread[end[1] :], self._text
        call = parsed_call(raw)
        if call is None:
            self._has_text, self._follows_call = True, False
            pieces.append(Piece(self._begin + raw + self._form.end * (end[1] > end[0])))
        else:
            self._call(pieces, call[0])
            self._argue(pieces, call[1])
        return True

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
        self.num_calls, self._follows_call = self.num_calls + 1, True
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


class CallEnd:
    """Finds the end of a call that is read as a whole, in text that grows. Each character is read once."""

    def __init__(self, marker: str):
        """marker: the text after a call; "": the call ends with its JSON."""
        self._marker, self._json, self._num_read = marker, JsonEnd(), 0
        self._first: int | None = None  # where the first marker begins
        self._searched = 0  # no further marker begins before

    def find(self, text: str, is_last: bool) -> tuple[int, int] | None:
        """(where the call ends, where its end marker ends); None while that is not known. text: the text of before, and more."""
        end = self._end_by_marker(text) if self._marker else self._end_of_json(text)
        if end is None and not is_last:
            return None
        if self._first is not None and (end is None or end > self._first and parsed_call(text[:end]) is None):
            end = self._first  # not JSON, so what looked like a string was none
        return (len(text), len(text)) if end is None else (end, end + len(self._marker))

    def _end_of_json(self, text: str) -> int | None:
        before, self._num_read = self._num_read, len(text)
        end = self._json.feed(text[before:])
        return None if end is None else before + end

    def _end_by_marker(self, text: str) -> int | None:
        """Where the first marker begins that is not text of an argument."""
        while (at := text.find(self._marker, self._searched)) >= 0:
            self._json.feed(text[self._num_read : at])
            self._first = at if self._first is None else self._first
            self._num_read, self._searched = at, at + 1
            if not self._json.in_string:
                return at
        self._searched = max(self._searched, len(text) - len(self._marker) + 1)
        return None


def held_back(text: str, marker: str) -> int:
    """The length of the end of `text` with which `marker` may begin."""
    return next((size for size in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:size])), 0)


def json_text(inside: str) -> str:
    """The text of a JSON string, without its quotes."""
    try:
        return unicode(json.loads(f'"{inside}"'))
    except ValueError:
        return inside


def unicode(text: str) -> str:
    """The text with U+FFFD for each half of a character that a JSON escape alone stands for: UTF-8 has none."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def parsed_call(raw: str) -> tuple[str, str] | None:
    """(name, arguments as JSON) of a whole call; None if it is none."""
    try:
        call = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    arguments = call.get("arguments", call.get("parameters", {})) if isinstance(call, dict) else None
    if not isinstance(arguments, dict | str) or not isinstance(call.get("name"), str):
        return None
    return unicode(call["name"]), unicode(arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False))
