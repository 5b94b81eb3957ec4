"""From a conversation and its tools to the engine's request and the reader of its text. All chat endpoints use it."""

from typing import Any

from minllm.engine.requests.structured_outputs import StructuredOutputsParams
from minllm.server.errors import ApiError, refused
from minllm.server.requests.chat import ChatFields
from minllm.server.requests.structure import structure_of
from minllm.server.server import Server
from minllm.server.tool_calls.grammar import call_grammar, strict_grammar
from minllm.server.tool_calls.stream import Piece, ToolStream
from minllm.server.wire import EngineRequest

CHOICES = '"auto", "none", "required", or {"type": "function", "function": {"name": the name of one of the tools}}'


class PlainText:
    """Reads an answer that calls no tools."""

    num_calls = 0

    def feed(self, text: str, is_last: bool = False) -> list[Piece]:
        """The text as it is."""
        return [Piece(text)] if text else []


def tools_of(server: Server, body: ChatFields) -> list[dict[str, Any]] | None:
    """The tools for the template; None if there are none, or if the model is not to call any. Raises ApiError."""
    choice = body.tool_choice
    if not body.tools:
        if choice not in (None, "auto", "none"):
            raise refused("tool_choice", choice, '"auto" or "none" without tools')
        return None
    if choice == "none":
        return None
    for index, tool in enumerate(body.tools):
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise refused(f"tools[{index}]", tool, '{"type": "function", "function": {"name": ..., "parameters": ...}}')
    if server.tool_format is None:
        raise ApiError("tools are not allowed: this model's chat template has no place for them.", "tools")
    return body.tools


def forced_tools(body: ChatFields) -> list[dict[str, Any]]:
    """The functions of which the model must call one; empty if it is free. Raises ApiError."""
    choice = body.tool_choice
    if not body.tools or choice in (None, "auto", "none"):
        return []
    functions = [tool["function"] for tool in body.tools]
    if choice == "required":
        return functions
    named = choice.get("function") if isinstance(choice, dict) else None
    found = [one for one in functions if isinstance(named, dict) and one["name"] == named.get("name")]
    if not found:
        raise refused("tool_choice", choice, CHOICES)
    return found


def chat_request(server: Server, body: ChatFields, who: str, several_calls: bool = True, **sampling: Any) -> EngineRequest:
    """The request of a conversation.

    several_calls: whether a forced call may be one of many. sampling: parameters beside those of the body.
    """
    if body.chat_template is not None and not server.options.trust_request_chat_template:
        raise ApiError("chat_template is not allowed in requests here: start with --trust-request-chat-template.", "chat_template")
    begins = not body.continue_final_message if body.add_generation_prompt is None else body.add_generation_prompt
    tools = tools_of(server, body)
    chat = {
        "messages": with_known_roles(body.messages, server.card["chat_templates"]),
        "chat_template": body.chat_template,
        "add_generation_prompt": begins,
        "continue_final_message": body.continue_final_message,
        "tools": tools and [without_strict(tool) for tool in tools],
        "template_kwargs": body.chat_template_kwargs,
    }
    if forced := tools and forced_tools(body):
        if structure_of(body) is not None:
            raise ApiError("tool_choice forces a call, and the form of the text is given too: leave one of them out.", "tool_choice")
        is_one = isinstance(body.tool_choice, dict) or not several_calls
        sampling["structured_outputs"] = StructuredOutputsParams(grammar=call_grammar(server.tool_format, forced, is_one))
    elif tools and structure_of(body) is None and server.tool_format.begin:
        functions = [tool["function"] for tool in tools]
        if any(one.get("strict") for one in functions):
            sampling["structured_outputs"] = StructuredOutputsParams(grammar=strict_grammar(server.tool_format, functions))
    if tools is not None and body.skip_special_tokens is None:
        sampling["skip_special_tokens"] = False  # in some models the marks around a call are special tokens
    params = body.sampling(server.card["default_params"], **sampling)
    return server.treated(EngineRequest(params, chat=chat, final_only=not body.stream), body, who)


def without_strict(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool for the template: `strict` is for the server."""
    return tool | {"function": {name: value for name, value in tool["function"].items() if name != "strict"}}


def reader_of(server: Server, body: ChatFields, most_calls: int | None = None) -> PlainText | ToolStream:
    """What finds the calls of tools in a completion."""
    return PlainText() if tools_of(server, body) is None else ToolStream(server.tool_format, most_calls)


def default_max_tokens(server: Server, given: int | None) -> int | None:
    """max_tokens of a chat: as given, or as the model's files suggest, or as many as the context allows."""
    return server.card["max_new_tokens"] if given is None else given


def with_known_roles(messages: list[dict[str, Any]], templates: str) -> list[dict[str, Any]]:
    """The messages with "system" for "developer", unless a template knows that role."""
    if "developer" in templates:
        return messages
    return [{**one, "role": "system"} if one.get("role") == "developer" else one for one in messages]
