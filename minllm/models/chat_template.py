"""A model's chat template: Jinja text from the model directory that turns a conversation into the prompt that the model was trained on.

A template is a program that came with somebody's files, so it runs in Jinja's immutable sandbox, within bounds of time and size
(template_sandbox.py), with the few functions that templates are written for (those of transformers' documentation, "Writing a chat
template"): raise_exception, strftime_now, and a tojson filter that leaves HTML characters alone.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols

from minllm.errors import CheckpointError, InvalidRequestError
from minllm.models.json_files import refuse_special_file
from minllm.models.template_sandbox import LARGEST_VALUE, BoundedEnvironment, BudgetError, budget_of, current

TEMPLATE_FILE = "chat_template.jinja"
LARGEST_TEMPLATE = 256 << 10  # characters; templates with tools have some 20,000
LONGEST_MESSAGE = 500  # characters of an error that a template raised


class _GenerationTag(Extension):
    """{% generation %} marks the assistant's words for training; when a prompt is rendered it is only its body."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None):
        """`special_tokens` are names that templates use (bos_token, eos_token, ...). Raises CheckpointError where it is not Jinja."""
        if len(source) > LARGEST_TEMPLATE:
            raise CheckpointError(
                f"The model's chat template has {len(source):,} characters, and at most {LARGEST_TEMPLATE:,} are allowed: "
                "copy the file again from the model's source."
            )
        environment = BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag])
        environment.add_filter("tojson", _to_json)
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._special_tokens = dict(special_tokens or {})
        self._chars = len(source)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise CheckpointError(f"The model's chat template is not valid Jinja, line {error.lineno}: {error.message}.") from error
        except (RecursionError, SyntaxError, MemoryError):  # Python's own limits of the code that Jinja makes
            raise CheckpointError("The model's chat template is nested too deeply to compile.") from None

    def render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        """The prompt of a conversation: [{"role": "user", "content": "..."}, ...]; `add_generation_prompt` opens the assistant's turn.

        Raises InvalidRequestError where the messages have another form, or the template refuses them.
        """
        _check_messages(messages)
        try:
            with budget_of(self._chars) as budget:
                budget.weigh([dict(message) for message in messages])
                return "".join(self._pieces(messages, add_generation_prompt))
        except BudgetError as error:
            advice = "Shorten the messages, or mend the template."
            raise InvalidRequestError(f"The model's chat template was stopped: {error}. {advice}") from error
        except Exception as error:  # whatever a template's program does wrong
            words = str(error)
            words = words if len(words) <= LONGEST_MESSAGE else f"{words[:LONGEST_MESSAGE]}..."
            raise InvalidRequestError(f"The model's chat template does not take these messages: {words}") from error

    def _pieces(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool) -> Iterator[str]:
        """The prompt, piece by piece. BudgetError if it becomes too long."""
        names = dict(messages=[dict(message) for message in messages], tools=None, documents=None)
        chars = 0
        for piece in self._template.generate(names, add_generation_prompt=add_generation_prompt, **self._special_tokens):
            chars += len(piece)
            if chars > LARGEST_VALUE:
                raise BudgetError(f"it writes more than {LARGEST_VALUE:,} characters")
            yield piece


def find_template(directory: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """The source of a model directory's template: chat_template.jinja, else chat_template of tokenizer_config.json (its default one where
    several are named), else None."""
    path = directory / TEMPLATE_FILE
    if path.exists():
        refuse_special_file(path)
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{path} cannot be read as UTF-8 text: {error}.") from error
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise CheckpointError(f"tokenizer_config.json of {directory} must hold chat_template as a text, or a list of named texts.")
    return template


def _check_messages(messages: Any) -> None:
    example = '[{"role": "user", "content": "Hello"}]'
    if not isinstance(messages, list | tuple) or not messages:
        raise InvalidRequestError(f"A conversation is a list of at least one message, like {example}.")
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
            raise InvalidRequestError(f"{message!r} is not a message with a role and a content; write {example}.")


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    budget, pieces = current(), []
    for piece in encoder.iterencode(value):
        budget.spend(len(piece))
        pieces.append(piece)
    return "".join(pieces)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
