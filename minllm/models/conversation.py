"""Conversations in OpenAI's format: checks them and converts them to the format that chat templates read.

    [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": [{"type": "text", "text": "Hi"}]}]

A template gets what transformers 5 gives it (chat_template_utils.py): plain JSON values only, no keys that are None, and a message's
reasoning under the names that templates read. As in vLLM, the arguments of tool calls are dictionaries, and parts are joined into one text
for templates that read only texts.
"""

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minllm.errors import Contained, InvalidRequestError, shown

EXAMPLE = '[{"role": "user", "content": "Hello"}]'
MOST_VALUES = 1 << 20
REASONING = ("reasoning_content", "thinking", "reasoning")  # names that clients give a message's reasoning; the first given one counts

Message = dict[str, Any]


class Opaque(str):
    """Stands for an object that a template cannot read: its type's name."""


def is_one_conversation(messages: object) -> bool:
    """Whether this is one conversation rather than a list of conversations."""
    return not (isinstance(messages, list | tuple) and messages and all(isinstance(one, list | tuple) for one in messages))


@Contained()
def plain_data(value: object) -> Any:
    """A copy that holds only JSON's types, so that a template reaches no method of a caller's objects.

    Dataclasses and pydantic models become dictionaries, NumPy's numbers Python's, and any other object a text that names its type. Raises
    InvalidRequestError for more than MOST_VALUES values, as in a list that contains itself.
    """
    count = itertools.count(1)

    def plain(value: Any) -> Any:
        if next(count) > MOST_VALUES:
            raise InvalidRequestError(f"A conversation, its tools and its variables may have {MOST_VALUES:,} values each: shorten it.")
        if value is None or isinstance(value, bool):
            return value
        for kind in (str, int, float):
            if isinstance(value, kind):
                return value if type(value) is kind else getattr(kind, f"__{kind.__name__}__")(value)  # an enum's value, not its name
        if isinstance(value, Mapping):
            return {plain(key): plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [*map(plain, value)] if isinstance(value, list) else tuple(map(plain, value))
        if isinstance(value, np.generic):
            return plain(value.item())
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        if callable(getattr(value, "model_dump", None)):  # pydantic, as in OpenAI's client
            return plain(value.model_dump())
        return Opaque(f"<{type(value).__name__}>")

    try:
        return plain(value)
    except RecursionError:
        raise InvalidRequestError("A conversation holds a value that contains itself, or is nested hundreds of levels deep.") from None


def checked_messages(messages: object) -> list[Message]:
    """Copies of a conversation's messages, as a template reads them. Raises InvalidRequestError if they have another form."""
    if not isinstance(messages, list | tuple) or not messages:
        raise InvalidRequestError(f"A conversation is a list of at least one message, like {EXAMPLE}.")
    return [_checked_message(message) for message in messages]


def _checked_message(given: object) -> Message:
    message = plain_data(given)
    is_message = isinstance(message, dict) and _is_text(message.get("role"))
    if not is_message or not ("content" in message or any(message.get(key) for key in ("tool_calls", *REASONING))):
        raise InvalidRequestError(f"{shown(given)} is not a message with a role and a content; write {EXAMPLE}.")
    message = {key: value for key, value in message.items() if value is not None}
    if isinstance(message.get("content"), list | tuple):
        message["content"] = [_checked_part(part) for part in message["content"]]
    elif "content" in message and not _is_text(message["content"]):
        raise InvalidRequestError(f"content={shown(message['content'])} of a message is not allowed: it is a text or a list of text parts.")
    if message.get("tool_calls"):
        message["tool_calls"] = _checked_calls(message["tool_calls"])
    reasoning = next((message[name] for name in REASONING if name in message), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not isinstance(value, Opaque)


def _checked_part(part: Any) -> dict[str, str]:
    """A part of a message's content, {"type": "text", "text": "..."}."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text" or not _is_text(part.get("text")):
        raise InvalidRequestError(
            f'{shown(part)} is not a part of a message that minllm can read: it reads text alone, {{"type": "text", "text": "..."}}.'
        )
    return part


def _checked_calls(calls: Any) -> list[dict[str, Any]]:
    """A message's tool calls, with their arguments as dictionaries; OpenAI's API has them as JSON strings."""
    if not isinstance(calls, list | tuple) or not all(isinstance(call, dict) for call in calls):
        raise InvalidRequestError(f"tool_calls={shown(calls)} is not allowed: it is a list of dictionaries.")
    functions = (call["function"] for call in calls if isinstance(call.get("function"), dict))
    for function in functions:
        if isinstance(function.get("arguments"), str | None):
            function["arguments"] = _parsed_arguments(function.get("arguments"))
    return list(calls)


def _parsed_arguments(text: str | None) -> dict[str, Any]:
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"The arguments of a tool call, {shown(text)}, are not valid JSON: {error}.") from error
    if not isinstance(arguments, dict):
        raise InvalidRequestError(f"The arguments of a tool call, {shown(text)}, are not a JSON object.")
    return arguments


def with_joined_parts(messages: Sequence[Message]) -> list[Message]:
    """The messages with the text parts of contents joined by newlines, for templates that read only strings."""
    joined = []
    for message in messages:
        content = message.get("content")
        joined.append({**message, "content": "\n".join(part["text"] for part in content)} if isinstance(content, list) else message)
    return joined


def with_mark(messages: Sequence[Message], mark: str) -> list[Message]:
    """The messages with `mark` after the last text of the final one.

    Raises InvalidRequestError if that has no text.
    """
    *earlier, final = messages
    content = final.get("content")
    if isinstance(content, str):
        return [*earlier, {**final, "content": content + mark}]
    if content:
        *parts, last = content
        return [*earlier, {**final, "content": [*parts, {**last, "text": last["text"] + mark}]}]
    raise InvalidRequestError("continue_final_message=True is not allowed: the final message has no text to continue.")


def checked_tools(tools: object) -> list[dict[str, Any]] | None:
    """Copies of the descriptions of tools, dictionaries in OpenAI's format; None if there are none."""
    if tools is None:
        return None
    if not isinstance(tools, list | tuple) or not all(isinstance(tool, Mapping) for tool in tools):
        raise InvalidRequestError(f"tools={shown(tools)} is not allowed: it is a list of dictionaries that describe functions.")
    return plain_data(list(tools))
