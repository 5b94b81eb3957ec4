"""POST /v1/responses, in the stateless form that coding agents use."""

import itertools
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from minllm.server.endpoint import Reply
from minllm.server.errors import refused
from minllm.server.event_stream import event
from minllm.server.handlers.blocks import Block, Step, Turn
from minllm.server.handlers.chat_prompt import chat_request, default_max_tokens, reader_of
from minllm.server.handlers.messages import joined_text
from minllm.server.requests.body import parsed
from minllm.server.requests.chat import ChatFields
from minllm.server.requests.responses import ResponsesBody
from minllm.server.requests.structure import FORMATS
from minllm.server.server import Server

TEXT = {"type": "text"}


async def respond(server: Server, body: ResponsesBody, who: str) -> Reply | AsyncIterator[bytes]:
    """Continue a history."""
    server.check_model(body.model)
    form = (body.text or {}).get("format") or TEXT
    if not isinstance(form, dict):
        raise refused("text.format", form, FORMATS)
    names = ("temperature", "top_p", "stream", "priority", "deadline", "cache_salt")
    tools = [openai_tool(tool) for tool in body.tools or () if tool.get("type") == "function"]
    given = {name: getattr(body, name) for name in names} | {"tools": tools or None, "tool_choice": chat_choice(body.tool_choice)}
    form = {"type": form.get("type"), "json_schema": form}  # chat completions have it one level deeper
    fields = parsed(ChatFields, {"messages": history(body), "response_format": form, **given})
    request = chat_request(server, fields, who, body.parallel_tool_calls, max_tokens=default_max_tokens(server, body.max_output_tokens))
    turn = Turn(server, request, reader_of(server, fields, None if body.parallel_tool_calls else 1))
    answer = Answer(server, body, turn)
    if body.stream:
        return answer.events(who)
    await turn.run(who)
    return Reply(answer.response(answer.items(), answer.status))


def chat_choice(choice: Any) -> Any:
    """The choice of a tool as chat completions have it."""
    is_function = isinstance(choice, dict) and choice.get("type") == "function" and "function" not in choice
    return {"type": "function", "function": {"name": choice.get("name")}} if is_function else choice


def openai_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A function as chat completions have it."""
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def history(body: ResponsesBody) -> list[dict[str, Any]]:
    """The input as messages; calls that follow each other belong to one message of the assistant."""
    messages = [{"role": "system", "content": body.instructions}] if body.instructions else []
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    for index, item in enumerate(items):
        name, kind = f"input[{index}]", item.get("type", "message")
        if kind == "message":
            messages.append({"role": item.get("role"), "content": joined_text(f"{name}.content", item.get("content"))})
        elif kind == "function_call":
            call = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append({"id": item.get("call_id"), "type": "function", "function": call})
        elif kind == "function_call_output":
            text = joined_text(f"{name}.output", item.get("output"))
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": text})
        elif kind != "reasoning":
            raise refused(name, item, "an item of type message, function_call, function_call_output or reasoning")
    return messages


class Answer:
    """Makes the answer from a turn; an output item is a block."""

    def __init__(self, server: Server, body: ResponsesBody, turn: Turn):
        self._server, self._body, self._turn = server, body, turn
        self._id, self._created, self._numbers = uuid.uuid4().hex, int(time.time()), itertools.count()

    @property
    def status(self) -> str:
        """How the turn ended."""
        end = self._turn.end
        return "incomplete" if end is None or end.finish_reason == "length" else "completed"

    def items(self) -> list[dict[str, Any]]:
        """The output."""
        return [self._item(block, "completed") for block in self._turn.blocks.all]

    def response(self, output: list[dict[str, Any]], status: str) -> dict[str, Any]:
        """The object `response`."""
        body, usage = self._body, None
        if status != "in_progress":
            used = self._turn.generation.usage()
            usage = {
                "input_tokens": used["prompt_tokens"], "input_tokens_details": used["prompt_tokens_details"],
                "output_tokens": used["completion_tokens"], "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": used["total_tokens"],
            }  # fmt: skip
        return {
            "id": f"resp_{self._id}", "object": "response", "created_at": self._created, "status": status, "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None, "model": self._server.model_name,
            "output": output, "usage": usage, "instructions": body.instructions, "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {}, "parallel_tool_calls": body.parallel_tool_calls, "previous_response_id": None, "store": False,
            "temperature": body.temperature, "top_p": body.top_p, "text": body.text or {"format": TEXT},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [], "truncation": "disabled", "background": False,
        }  # fmt: skip

    def _item(self, block: Block, status: str) -> dict[str, Any]:
        if block.name is None:
            content = [part(block.text)] if status == "completed" else []
            return {"type": "message", "id": self._item_id(block), "role": "assistant", "status": status, "content": content}
        call_id = f"call_{self._id[:20]}{block.index:02d}"
        return {
            "type": "function_call", "id": self._item_id(block), "call_id": call_id, "name": block.name, "arguments": block.text,
            "status": status,
        }  # fmt: skip

    def _item_id(self, block: Block) -> str:
        return f"{'msg' if block.name is None else 'fc'}_{self._id[:20]}{block.index:02d}"

    def _event(self, kind: str, **data: Any) -> bytes:
        return event({"type": kind, "sequence_number": next(self._numbers), **data}, kind)

    async def events(self, who: str) -> AsyncIterator[bytes]:
        """The answer as server-sent events."""
        has_begun = False
        async for steps in self._turn.steps(who):
            lines = []
            if not has_begun:
                has_begun = True
                begun = self.response([], "in_progress")
                lines = [self._event(f"response.{kind}", response=begun) for kind in ("created", "in_progress")]
            lines += [line for step in steps for line in self._step(step)]
            if lines:
                yield b"".join(lines)
        yield self._event(f"response.{self.status}", response=self.response(self.items(), self.status))

    def _step(self, step: Step) -> list[bytes]:
        """The events of a block's step."""
        block, is_text = step.block, step.block.name is None
        place: dict[str, Any] = {"item_id": self._item_id(block), "output_index": block.index}
        spot = place | {"content_index": 0}
        if step.kind == "open":
            item = self._item(Block(block.index, block.name), "in_progress")
            added = self._event("response.output_item.added", output_index=block.index, item=item)
            return [added, self._event("response.content_part.added", **spot, part=part(""))] if is_text else [added]
        if step.kind == "add":
            if is_text:
                return [self._event("response.output_text.delta", **spot, delta=step.text, logprobs=[])]
            return [self._event("response.function_call_arguments.delta", **place, delta=step.text)]
        if is_text:
            ended = [self._event("response.output_text.done", **spot, text=block.text, logprobs=[])]
            ended.append(self._event("response.content_part.done", **spot, part=part(block.text)))
        else:
            ended = [self._event("response.function_call_arguments.done", **place, arguments=block.text, name=block.name)]
        return [*ended, self._event("response.output_item.done", output_index=block.index, item=self._item(block, "completed"))]


def part(text: str) -> dict[str, Any]:
    """A part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
