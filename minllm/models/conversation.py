"""Conversations in OpenAI's format: checks them and converts them to the format that chat templates read.

    [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": [{"type": "text", "text": "Hi"}]}]
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from minllm.errors import InvalidRequestError, shown

EXAMPLE = '[{"role": "user", "content": "Hello"}]'

Message = dict[str, Any]


def is_one_conversation(messages: Any) -> bool:
    """Whether this is one conversation rather than a list of conversations."""
    return not (isinstance(messages, list | tuple) and messages and all(isinstance(one, list | tuple) for one in messages))


def checked_messages(messages: Any) -> list[Message]:
    """Copies of a conversation's messages. Raises InvalidRequestError if they have another form.

    The arguments of tool calls are parsed into dictionaries, which templates expect; OpenAI's API has them as JSON strings.
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise InvalidRequestError(f"A conversation is a list of at least one message, like {EXAMPLE}.")
    return [_checked_message(message) for message in messages]


def _checked_message(message: Any) -> Message:
    calls_tools = isinstance(message, Mapping) and bool(message.get("tool_calls"))
    has_content = isinstance(message, Mapping) and ("content" in message or calls_tools)
    if not has_content or not isinstance(message.get("role"), str):
        raise InvalidRequestError(f"{shown(message)} is not a message with a role and a content; write {EXAMPLE}.")
    message = dict(message)
    if isinstance(message.get("content"), list | tuple):
        message["content"] = [_checked_part(part) for part in message["content"]]
    elif not isinstance(message.get("content"), str | None):
        raise InvalidRequestError(f"content={shown(message['content'])} of a message is not allowed: it is a text or a list of text parts.")
    if calls_tools:
        message["tool_calls"] = _checked_calls(message["tool_calls"])
    return message


def _checked_part(part: Any) -> dict[str, str]:
    """A copy of a part of a message's content, {"type": "text", "text": "..."}."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text" or not isinstance(part.get("text"), str):
        raise InvalidRequestError(
            f'{shown(part)} is not a part of a message that minllm can read: it reads text alone, {{"type": "text", "text": "..."}}.'
        )
    return dict(part)


def _checked_calls(calls: Any) -> list[dict[str, Any]]:
    """Copies of a message's tool calls, with their arguments as dictionaries."""
    if not isinstance(calls, list | tuple) or not all(isinstance(call, Mapping) for call in calls):
        raise InvalidRequestError(f"tool_calls={shown(calls)} is not allowed: it is a list of dictionaries.")
    copies = []
    for call in map(dict, calls):
        function = call.get("function")
        if isinstance(function, Mapping) and isinstance(function.get("arguments"), str):
            call["function"] = {**function, "arguments": _parsed_arguments(function["arguments"])}
        copies.append(call)
    return copies


def _parsed_arguments(text: str) -> dict[str, Any]:
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


def checked_tools(tools: Any) -> list[dict[str, Any]] | None:
    """Copies of the descriptions of tools, dictionaries in OpenAI's format; None if there are none."""
    if tools is None:
        return None
    if not isinstance(tools, list | tuple) or not all(isinstance(tool, Mapping) for tool in tools):
        raise InvalidRequestError(f"tools={shown(tools)} is not allowed: it is a list of dictionaries that describe functions.")
    return [dict(tool) for tool in tools]
