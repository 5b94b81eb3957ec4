"""POST /v1/chat/completions."""

import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from minllm.server.endpoint import Reply
from minllm.server.errors import refused
from minllm.server.event_stream import DONE, event
from minllm.server.handlers.chat_prompt import chat_request, default_max_tokens, reader_of
from minllm.server.handlers.completions import prompt_entries
from minllm.server.handlers.logprobs import of_chat
from minllm.server.requests.chat import ChatBody
from minllm.server.server import Completion, Generation, Server
from minllm.server.tool_calls.stream import Piece
from minllm.server.wire import Delta, EngineRequest


async def chat(server: Server, body: ChatBody, who: str) -> Reply | AsyncIterator[bytes]:
    """Continue a conversation."""
    server.check_model(body.model)
    if body.top_logprobs and not body.logprobs:
        raise refused("top_logprobs", body.top_logprobs, "0 unless logprobs is true")
    given = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    more: dict[str, Any] = {"n": body.n, "max_tokens": default_max_tokens(server, given)}
    if body.logprobs:
        more["logprobs"] = body.top_logprobs
    request = chat_request(server, body, who, body.parallel_tool_calls, **more)
    answer = Answer(server, body)
    if body.stream:
        return answer.events(request, who)
    with server.generating([request], who) as generation:
        [found] = await generation.completions()
    return Reply(answer.whole(found, generation))


class Answer:
    """Makes the answer to one request."""

    def __init__(self, server: Server, body: ChatBody):
        self._server, self._body, self._id = server, body, uuid.uuid4().hex
        self._readers = [reader_of(server, body, None if body.parallel_tool_calls else 1) for _ in range(body.n)]

    def _frame(self, kind: str) -> dict[str, Any]:
        return {"id": f"chatcmpl-{self._id}", "object": kind, "created": int(time.time()), "model": self._server.model_name}

    def whole(self, found: list[Completion], generation: Generation) -> dict[str, Any]:
        """The answer in one piece."""
        head = generation.heads[0]
        return self._frame("chat.completion") | {
            "choices": [self._choice(one) for one in found],
            "usage": generation.usage(),
            "prompt_logprobs": head.prompt_logprobs and prompt_entries(head.prompt_logprobs),
        }

    def _choice(self, one: Completion) -> dict[str, Any]:
        pieces = self._readers[one.index].feed(one.text, is_last=True)
        text, calls = "".join(piece.text for piece in pieces if piece.call is None), gathered_calls(pieces)
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
        if calls:
            ids = [self._call_id(one.index, number) for number, _ in calls]
            message["tool_calls"] = [{"id": name, "type": "function", "function": call} for name, (_, call) in zip(ids, calls, strict=True)]
        return {
            "index": one.index, "message": message, "logprobs": self._logprobs(one.logprobs, one.token_ids),
            "finish_reason": "tool_calls" if calls and one.finish_reason == "stop" else one.finish_reason, "stop_reason": one.stop_reason,
        }  # fmt: skip

    def _logprobs(self, positions: list | None, token_ids: list[int]) -> dict[str, Any] | None:
        return None if not self._body.logprobs else of_chat(positions or [], token_ids if positions else [], self._body.top_logprobs)

    def _call_id(self, index: int, number: int) -> str:
        return f"call_{self._id[:16]}{index:02d}{number:02d}"

    async def events(self, request: EngineRequest, who: str) -> AsyncIterator[bytes]:
        """The answer as server-sent events."""
        frame, body = self._frame("chat.completion.chunk"), self._body
        with self._server.generating([request], who) as generation:
            begun: set[int] = set()
            async for batch in generation.batches():
                chunks = []
                for _, update in batch:
                    for delta in update.deltas:
                        if delta.index not in begun:
                            begun.add(delta.index)
                            chunks.append(self._chunk(delta.index, {"role": "assistant", "content": ""}))
                        chunks += self._chunks(delta)
                if chunks:
                    more = {"usage": generation.usage()} if body.shows_usage_always else {}
                    yield b"".join([event({**frame, "choices": [chunk], **more}) for chunk in chunks])
            if body.shows_usage:
                yield event({**frame, "choices": [], "usage": generation.usage()})
            yield DONE

    def _chunks(self, delta: Delta) -> list[dict[str, Any]]:
        """The chunks of a completion's new text: one per piece, and one with every token's log-probabilities if there is no piece."""
        reader, index, reason = self._readers[delta.index], delta.index, delta.finish_reason
        pieces = [self._delta(index, piece) for piece in reader.feed(delta.text, is_last=reason is not None)]
        chunks = [self._chunk(index, piece) for piece in pieces or [{"content": ""} if not reader.num_calls else {}]]
        chunks[-1]["logprobs"] = self._logprobs(delta.logprobs, delta.token_ids)
        if reason is not None:
            chunks[-1]["finish_reason"] = "tool_calls" if reader.num_calls and reason == "stop" else reason
            chunks[-1]["stop_reason"] = delta.stop_reason
        return chunks

    def _delta(self, index: int, piece: Piece) -> dict[str, Any]:
        if piece.call is None:
            return {"content": piece.text}
        call: dict[str, Any] = {"index": piece.call, "function": {"arguments": piece.text}}
        if piece.name is not None:
            call |= {"id": self._call_id(index, piece.call), "type": "function", "function": {"name": piece.name, "arguments": ""}}
        return {"tool_calls": [call]}

    @staticmethod
    def _chunk(index: int, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def gathered_calls(pieces: list[Piece]) -> list[tuple[int, dict[str, str]]]:
    """(number, {name, arguments}) of each call."""
    calls: dict[int, dict[str, str]] = {}
    for piece in pieces:
        if piece.call is not None:
            call = calls.setdefault(piece.call, {"name": piece.name or "", "arguments": ""})
            call["arguments"] += piece.text
    return list(calls.items())
