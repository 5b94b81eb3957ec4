"""structured_outputs: what the whole output must be. Names and meanings are vLLM's.

One of five descriptions is given, and each becomes a grammar in the Lark syntax of llguidance (grammar.py):

    json, json_object    start: %json {schema}
    regex                start: /expression/
    choice               start: CHOICE        CHOICE: "one" | "another"
    grammar              the grammar itself; GBNF is translated
"""

import json as json_module
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from minllm.engine.requests.parameter_checks import flag, refuse
from minllm.errors import InvalidRequestError, shown

LONGEST = 131_072  # characters of a description, which bounds the time and the stack that compiling it takes
LONGEST_EXPRESSION = 16_384  # characters of a regular expression: its time grows with their square, up to some tenths of a second
KINDS = ("json", "regex", "choice", "grammar", "json_object")
# The output's tokens are chosen by their bytes alone. By default llguidance would allow, where a grammar forces the next bytes, only the
# tokens into which a tokenizer splits them, and a model or its drafts may spell the same text in others.
ANY_SPELLING = '%llguidance {"no_forcing": true}\n'


@dataclass(frozen=True)
class StructuredOutputsParams:
    """What the output must be, checked here except for the syntax; InvalidRequestError names the first wrong value. Exactly one of the
    first five is given.

    json: a JSON schema, as a dictionary or as its text; the output is JSON that it allows.
    regex: a regular expression, in the syntax of Rust's regex crate; the whole output matches it.
    choice: the output is one of these strings.
    grammar: a context-free grammar, in the Lark syntax of llguidance or in GBNF, which derives the output.
    json_object: True allows any JSON object.
    disable_any_whitespace: JSON has no white space between its tokens. With it, a model that is unsure may write spaces until max_tokens.
    whitespace_pattern: a regular expression of the white space that may stand between the tokens of JSON.
    """

    json: str | dict[str, Any] | None = field(default=None, hash=False)
    regex: str | None = None
    choice: list[str] | tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        if self.json_object is not None:
            flag("json_object", self.json_object)
        flag("disable_any_whitespace", self.disable_any_whitespace)
        given = [name for name in KINDS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise InvalidRequestError(f"structured_outputs gives {' and '.join(given) or 'nothing'}: give one of {', '.join(KINDS)}.")
        for name, longest in (("regex", LONGEST_EXPRESSION), ("whitespace_pattern", LONGEST_EXPRESSION), ("grammar", LONGEST)):
            if getattr(self, name) is not None:
                _text(name, getattr(self, name), longest)
        if self.grammar is not None:
            _check_expressions("grammar", "a line", map(len, self.grammar.splitlines()))
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))
        if self.json is not None:
            object.__setattr__(self, "json", _schema(self.json))
        spaces = [name for name in ("whitespace_pattern", "disable_any_whitespace") if getattr(self, name) not in (None, False)]
        if spaces and self.kind not in ("json", "json_object"):
            raise InvalidRequestError(f"{' and '.join(spaces)} is for JSON, and {self.kind} is given: leave it out.")
        if len(spaces) > 1:
            raise InvalidRequestError(f"{' and '.join(spaces)} exclude each other: give one of them.")

    def __str__(self) -> str:
        return f"structured_outputs with {self.kind}={shown(getattr(self, self.kind))}"

    @property
    def kind(self) -> str:
        """The name of the description that is given."""
        return next(name for name in KINDS if getattr(self, name) not in (None, False))

    def as_lark(self) -> str:
        """The grammar in llguidance's syntax. Raises InvalidRequestError for GBNF that llguidance cannot translate."""
        from llguidance import regex_to_lark
        from llguidance.gbnf_to_lark import any_to_lark

        if self.grammar is not None:
            try:
                return ANY_SPELLING + any_to_lark(self.grammar)
            except Exception as error:
                raise InvalidRequestError(f"grammar={shown(self.grammar)} is not allowed: as GBNF, {error}.") from error
        if self.regex is not None:
            return f"{ANY_SPELLING}start: /{regex_to_lark(self.regex)}/"
        if self.choice is not None:
            return f"{ANY_SPELLING}start: CHOICE\nCHOICE: {' | '.join(map(json_module.dumps, self.choice))}"
        schema = {"type": "object"} if self.json is None else json_module.loads(str(self.json))  # text since __post_init__
        return f"{ANY_SPELLING}start: %json {json_module.dumps(schema | self._json_options())}"

    def _json_options(self) -> dict[str, Any]:
        """The entry of a schema in which llguidance reads its options; none leaves those of the schema's author."""
        if self.disable_any_whitespace:
            return {"x-guidance": {"whitespace_flexible": False}}
        return {} if self.whitespace_pattern is None else {"x-guidance": {"whitespace_pattern": self.whitespace_pattern}}


def _text(name: str, value: object, longest: int = LONGEST) -> str:
    """A string of valid Unicode that is not empty, and not too long."""
    if not isinstance(value, str) or not value:
        refuse(name, value, "a string that is not empty")
    if len(value) > longest:
        raise InvalidRequestError(f"{name} has {len(value)} characters, and at most {longest} are allowed: shorten it.")
    if re.search("[\ud800-\udfff]", value):
        refuse(name, value, "a string of valid Unicode")
    return value


def _check_expressions(name: str, part: str, lengths: Iterable[int]) -> None:
    """Raise InvalidRequestError if a part of a description, in which a regular expression may stand, is longer than one may be."""
    if (most := max(lengths, default=0)) > LONGEST_EXPRESSION:
        raise InvalidRequestError(f"{name} has {part} of {most} characters, and at most {LONGEST_EXPRESSION} are allowed: split it.")


def _choices(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not value or not all(isinstance(text, str) for text in value):
        refuse("choice", value, "a list of at least one string")
    _text("choice", "\n".join(value) or "\n")
    return tuple(dict.fromkeys(value))


def _schema(value: object) -> str:
    """The text of a JSON schema, given as a dictionary or as text."""
    allowed = "a JSON schema: a dictionary, or the text of a JSON object"
    try:
        text = value if isinstance(value, str) else json_module.dumps(value, allow_nan=False)
        is_object = isinstance(json_module.loads(_text("json", text)), dict)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, InvalidRequestError):
            raise
        refuse("json", value, allowed, str(error))
    if not is_object:
        refuse("json", value, allowed)
    _check_expressions("json", "a string", (len(found) - 2 for found in re.findall(r'"(?:[^"\\]|\\.)*"', text)))
    return text
