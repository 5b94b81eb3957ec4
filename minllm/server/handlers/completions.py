"""POST /v1/completions."""

import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from minllm.server.endpoint import Reply
from minllm.server.errors import ApiError, refused
from minllm.server.event_stream import DONE, event
from minllm.server.handlers.logprobs import of_completion
from minllm.server.requests.completion import CompletionBody
from minllm.server.server import Completion, Generation, Server
from minllm.server.wire import Delta, EngineRequest, Head

MAX_TOKENS = 16


async def complete(server: Server, body: CompletionBody, who: str) -> Reply | AsyncIterator[bytes]:
    """Continue each prompt."""
    server.check_model(body.model)
    requests = engine_requests(server, body, who)
    answer = Answer(server, body)
    if body.stream:
        return answer.events(requests, who)
    with server.generating(requests, who) as generation:
        found = await generation.completions()
    return Reply(answer.whole(found, generation))


def engine_requests(server: Server, body: CompletionBody, who: str) -> list[EngineRequest]:
    """A request for each prompt. Raises ApiError for fields that contradict each other."""
    given = prompts(body)
    server.admission.check_size(len(given) * body.n)
    best_of = None if body.best_of == body.n else body.best_of
    if body.stream and best_of is not None:
        raise refused("best_of", best_of, "at most n with stream, because only the end shows which completion is the best")
    default = server.card["max_new_tokens"] or MAX_TOKENS
    more: dict[str, Any] = {"n": body.n, "best_of": best_of, "max_tokens": default if body.max_tokens is None else body.max_tokens}
    if body.logprobs is not None:
        more["logprobs"] = body.logprobs
        if body.echo and body.prompt_logprobs is None:
            more["prompt_logprobs"] = body.logprobs
    params = body.sampling(server.card["default_params"], **more)
    return [server.treated(EngineRequest(params, prompt, final_only=not body.stream, echo=body.echo), body, who) for prompt in given]


def prompts(body: CompletionBody) -> list[str | list[int]]:
    """The prompts, one or several."""
    given = body.prompt
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        return [given]
    if not given or [] in given:
        raise ApiError("prompt is or holds an empty list: give a text, token ids, or a list of them.", "prompt")
    return given


class Answer:
    """Makes the answer to one request; choice number i is completion i % n of prompt i // n."""

    def __init__(self, server: Server, body: CompletionBody):
        self._server, self._body = server, body
        self._frame = {
            "id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "created": int(time.time()), "model": server.model_name
        }  # fmt: skip

    def whole(self, found: list[list[Completion]], generation: Generation) -> dict[str, Any]:
        """The answer in one piece."""
        choices = [self._choice(index, one, generation.heads[index]) for index, many in enumerate(found) for one in many]
        return self._frame | {"choices": choices, "usage": generation.usage()}

    def _choice(self, prompt: int, one: Completion, head: Head) -> dict[str, Any]:
        delta = Delta(one.index, one.text, one.token_ids, one.logprobs, one.finish_reason, one.stop_reason)
        shown = None if self._body.prompt_logprobs is None else prompt_entries(head.prompt_logprobs)
        return self._part(prompt, delta, head, 0) | {"prompt_logprobs": shown}

    def _part(self, prompt: int, delta: Delta, head: Head | None, offset: int) -> dict[str, Any]:
        """A choice, or a piece of one. head: given with the first piece. offset: characters of the tokens before it."""
        body, text, first, logprobs = self._body, delta.text, "", None
        positions, token_ids = delta.logprobs, delta.token_ids
        if body.echo and head is not None:
            text, first = (head.prompt or "") + text, head.first_text
            if body.logprobs is not None:
                positions, token_ids = (head.prompt_logprobs or []) + (positions or []), head.prompt_token_ids + token_ids
        if body.logprobs is not None:
            logprobs = of_completion(positions or [], token_ids if positions else [], body.logprobs, offset, first)
        return {
            "index": prompt * body.n + delta.index, "text": text, "logprobs": logprobs, "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }  # fmt: skip

    async def events(self, requests: list[EngineRequest], who: str) -> AsyncIterator[bytes]:
        """The answer as server-sent events."""
        body, offsets = self._body, {}
        with self._server.generating(requests, who) as generation:
            async for batch in generation.batches():
                lines = []
                for index, update in batch:
                    for delta in update.deltas:
                        key = index, delta.index
                        part = self._part(index, delta, None if key in offsets else generation.heads[index], offsets.get(key, 0))
                        offsets[key] = offsets.get(key, 0) + sum(map(len, (part["logprobs"] or {}).get("tokens", ())))
                        chunk = self._frame | {"choices": [part]}
                        lines.append(event(chunk | {"usage": generation.usage(index)} if body.shows_usage_always else chunk))
                if lines:
                    yield b"".join(lines)
            if body.shows_usage:
                yield event(self._frame | {"choices": [], "usage": generation.usage()})
            yield DONE


def prompt_entries(positions: list[Any]) -> list[Any]:
    """prompt_logprobs in vLLM's form: per token {id: {logprob, rank, decoded_token}}."""
    return [
        position and {str(one.token_id): {"logprob": one.logprob, "rank": one.rank, "decoded_token": one.text} for one in position}
        for position in positions
    ]
