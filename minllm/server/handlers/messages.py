"""POST /v1/messages and /v1/messages/count_tokens, in Anthropic's form."""

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import orjson

from minllm.server.endpoint import Reply
from minllm.server.errors import ApiError, refused
from minllm.server.event_stream import event
from minllm.server.handlers.blocks import Block, Step, Turn
from minllm.server.handlers.chat_prompt import chat_request, reader_of, tools_of, with_known_roles
from minllm.server.requests.body import parsed
from minllm.server.requests.chat import ChatFields
from minllm.server.requests.messages import MessagesBody, MessagesFields
from minllm.server.server import Server
from minllm.server.wire import Delta

CHOICES = {"auto": "auto", "none": "none", "any": "required"}


async def message(server: Server, body: MessagesBody, who: str) -> Reply | AsyncIterator[bytes]:
    """Continue a conversation."""
    server.check_model(body.model)
    names = ("temperature", "top_p", "top_k", "stream", "priority", "deadline", "cache_salt")
    fields = chat_fields(body, **{name: getattr(body, name) for name in names}, stop=body.stop_sequences)
    is_single = bool((body.tool_choice or {}).get("disable_parallel_tool_use"))
    request = chat_request(server, fields, who, not is_single, max_tokens=body.max_tokens)
    turn = Turn(server, request, reader_of(server, fields, 1 if is_single else None))
    answer = Answer(server, turn)
    if body.stream:
        return answer.events(who)
    await turn.run(who)
    return Reply(answer.whole())


async def count_tokens(server: Server, body: MessagesFields, who: str) -> Reply:
    """The number of tokens of a conversation's prompt."""
    server.check_model(body.model)
    fields = chat_fields(body)
    messages = with_known_roles(fields.messages, server.card["chat_templates"])
    server.engine.check_alive()
    found = await server.engine.client.call("tokenize", None, {"messages": messages, "tools": tools_of(server, fields)}, False, False)
    return Reply({"input_tokens": len(found["token_ids"])})


def chat_fields(body: MessagesFields, **more: Any) -> ChatFields:
    """The conversation as OpenAI's API has it."""
    messages = [] if body.system is None else [{"role": "system", "content": joined_text("system", body.system)}]
    for index, given in enumerate(body.messages):
        messages += openai_messages(f"messages[{index}]", given)
    choice = body.tool_choice and CHOICES.get(str(body.tool_choice.get("type")), body.tool_choice)
    if isinstance(choice, dict) and choice.get("type") == "tool":
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    return parsed(ChatFields, {"messages": messages, "tools": body.tools and openai_tools(body.tools), "tool_choice": choice, **more})


def openai_tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tools in OpenAI's form."""
    found = []
    for index, tool in enumerate(tools):
        if not isinstance(tool.get("name"), str) or not isinstance(tool.get("input_schema"), dict):
            raise refused(f"tools[{index}]", tool, "a function with a name and an input_schema; the server runs no tools of its own")
        function = {"name": tool["name"], "description": tool.get("description") or "", "parameters": tool["input_schema"]}
        found.append({"type": "function", "function": function | ({"strict": True} if tool.get("strict") else {})})
    return found


def openai_messages(name: str, given: dict[str, Any]) -> list[dict[str, Any]]:
    """A turn as OpenAI's messages: results of tools become messages of their own, before the turn's text."""
    role, content = given.get("role"), given.get("content")
    if role not in ("user", "assistant", "system"):
        raise refused(f"{name}.role", role, '"user" or "assistant"')
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    if not isinstance(content, list):
        raise refused(f"{name}.content", content, "a text or a list of blocks")
    texts, calls, results = [], [], []
    for index, block in enumerate(content):
        where, kind = f"{name}.content[{index}]", block.get("type") if isinstance(block, dict) else None
        if kind == "text" and isinstance(block.get("text"), str):
            texts.append(block["text"])
        elif kind == "tool_use" and role == "assistant":
            function = {"name": block.get("name"), "arguments": json.dumps(block.get("input") or {})}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "tool_result" and role == "user":
            text = joined_text(f"{where}.content", block.get("content") or "")
            results.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text})
        elif kind not in ("thinking", "redacted_thinking"):
            raise refused(where, block, "a block of type text, tool_use (assistant) or tool_result (user)")
    said: dict[str, Any] = {"role": role, "content": "\n".join(texts)}
    if calls:
        said["tool_calls"] = calls
    return [*results, *([said] if texts or calls or not results else [])]


def joined_text(name: str, content: object) -> str:
    """A text, or the texts of blocks."""
    if isinstance(content, str):
        return content
    texts = [isinstance(block, dict) and block.get("text") for block in content] if isinstance(content, list) else [None]
    if not all(isinstance(text, str) for text in texts):
        raise ApiError(f"{name} is not allowed: it is a text, or a list of text blocks.", name)
    return "\n".join(texts)


class Answer:
    """Makes the answer from a turn."""

    def __init__(self, server: Server, turn: Turn):
        self._server, self._turn, self._id = server, turn, uuid.uuid4().hex

    def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        content = [self._block(block) for block in self._turn.blocks.all]
        return self._message(content, *stopped(self._turn.end, self._turn.has_calls))

    def _message(self, content: list[dict[str, Any]], reason: str | None = None, sequence: str | None = None) -> dict[str, Any]:
        return {
            "id": f"msg_{self._id}", "type": "message", "role": "assistant", "model": self._server.model_name, "content": content,
            "stop_reason": reason, "stop_sequence": sequence, "usage": self._usage(),
        }  # fmt: skip

    def _usage(self) -> dict[str, int]:
        usage = self._turn.generation.usage()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"] - cached, "cache_read_input_tokens": cached, "cache_creation_input_tokens": 0,
            "output_tokens": usage["completion_tokens"],
        }  # fmt: skip

    def _block(self, block: Block) -> dict[str, Any]:
        if block.name is None:
            return {"type": "text", "text": block.text}
        return {"type": "tool_use", "id": self._call_id(block), "name": block.name, "input": arguments(block.text)}

    def _call_id(self, block: Block) -> str:
        return f"toolu_{self._id[:20]}{block.index:02d}"

    async def events(self, who: str) -> AsyncIterator[bytes]:
        """The answer as server-sent events."""
        has_begun = False
        async for steps in self._turn.steps(who):
            if not has_begun:
                has_begun = True
                yield event({"type": "message_start", "message": self._message([])}, "message_start")
            if steps:
                yield b"".join([self._event(step) for step in steps])
        reason, sequence = stopped(self._turn.end, self._turn.has_calls)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        yield event({"type": "message_delta", "delta": delta, "usage": self._usage()}, "message_delta")
        yield event({"type": "message_stop"}, "message_stop")

    def _event(self, step: Step) -> bytes:
        block, kind = step.block, {"open": "content_block_start", "add": "content_block_delta", "close": "content_block_stop"}[step.kind]
        data: dict[str, Any] = {"type": kind, "index": block.index}
        if step.kind == "open":
            data["content_block"] = self._block(Block(block.index, block.name))
        elif step.kind == "add":
            added = ("text_delta", "text") if block.name is None else ("input_json_delta", "partial_json")
            data["delta"] = {"type": added[0], added[1]: step.text}
        return event(data, kind)


def stopped(end: Delta | None, has_calls: bool) -> tuple[str, str | None]:
    """(stop_reason, stop_sequence) of a turn."""
    if end is None or end.finish_reason == "length":
        return "max_tokens", None
    if has_calls:
        return "tool_use", None
    return ("stop_sequence", end.stop_reason) if isinstance(end.stop_reason, str) else ("end_turn", None)


def arguments(text: str) -> orjson.Fragment:
    """The arguments of a call as the model wrote them; {} if that is not a JSON object."""
    try:
        is_object = isinstance(json.loads(text, parse_constant=refuse_constant), dict)
    except (ValueError, RecursionError):
        is_object = False
    return orjson.Fragment(text if is_object else "{}")


def refuse_constant(name: str) -> NoReturn:
    """Raise ValueError for NaN and infinities, which Python reads and JSON does not have."""
    raise ValueError(name)
