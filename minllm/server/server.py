"""The server's state, and the way of a request to the engine and back."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from minllm.server import access
from minllm.server.admission import Admission
from minllm.server.deadline_admission import DeadlineAdmission
from minllm.server.engine_client import EngineClient, Job
from minllm.server.errors import ApiError, error_from_failure
from minllm.server.metrics import Metrics, RequestTimes
from minllm.server.options import ServerOptions
from minllm.server.requests.sampling import RequestFields
from minllm.server.tool_calls.formats import FORMATS, Format, format_of
from minllm.server.wire import Delta, EngineRequest, Head, TokenLogprob, Update


class Engine(Protocol):
    """What a server needs of its engine."""

    client: EngineClient

    def check_alive(self) -> None:
        """Raise EngineDeadError if there is no engine at present."""


class Server:
    """One served model."""

    def __init__(self, options: ServerOptions, engine: Engine, model: str | None):
        """model: the path that the engine loaded, None for the bundled model."""
        self.options, self.engine = options, engine
        self.created, self.parsing = int(time.time()), asyncio.Lock()
        self.model_name = options.served_model_name or ("bundled" if model is None else Path(model).name)
        places = engine.client.card["max_num_seqs"]
        deadlines = DeadlineAdmission(places) if options.refuse_late else None
        self.admission = Admission(places + options.max_queued, options.max_per_key, options.max_completions, deadlines)
        self.metrics = Metrics(self.model_name, self.card["max_model_len"])
        engine.client.on_frame = self.metrics.step_tokens.observe

    @property
    def card(self) -> dict[str, Any]:
        """What engine_host.model_card says of the model."""
        return self.engine.client.card

    @property
    def tool_format(self) -> Format | None:
        """How the model writes calls of tools; None if its chat template has no place for tools."""
        name = self.options.tool_parser
        return FORMATS[name] if name else format_of(self.card["chat_templates"])

    def check_model(self, name: str | None) -> None:
        """Raise ApiError unless this is the served model's name, or none."""
        if name is not None and name != self.model_name:
            raise ApiError(
                f"The model {name!r} is not served here: {self.model_name!r} is.", "model", 404, code="model_not_found"
            )  # fmt: skip

    def treated(self, request: EngineRequest, fields: RequestFields, who: str) -> EngineRequest:
        """The request with the priority, deadline and salt of its fields and of its caller."""
        deadlines = [seconds for seconds in (fields.deadline, self.options.deadline) if seconds is not None]
        return replace(
            request, priority=fields.priority, deadline=min(deadlines, default=None), cache_salt=access.salt(who, fields.cache_salt)
        )  # fmt: skip

    @contextmanager
    def generating(self, requests: list[EngineRequest], who: str) -> Iterator["Generation"]:
        """Runs requests while the context is open; those that have not ended then are aborted. Raises ApiError and EngineDeadError."""
        with self.admission.admitted(who, sum(request.params.num_generated for request in requests), requests[0].deadline):
            self.engine.check_alive()
            job = self.engine.client.submit(requests)
            times = [RequestTimes(self.metrics, one.params.n, one.params.max_tokens) for one in requests]
            generation = Generation(job, times, [one.params.n for one in requests], self.admission.deadlines)
            try:
                yield generation
            finally:
                job.close()
                for _ in range(sum(generation.open)):
                    self.metrics.finished("abort")


class Generation:
    """The updates of a call's requests, and what they used."""

    def __init__(self, job: Job, times: list[RequestTimes], completions: list[int], deadlines: DeadlineAdmission | None = None):
        """completions: their number in each request."""
        self._job, self._times, self._deadlines = job, times, deadlines
        self.open = completions  # the completions of each request that have not ended
        self.heads: list[Head | None] = [None] * len(times)
        self.num_generated = [0] * len(times)

    async def batches(self) -> AsyncIterator[list[tuple[int, Update]]]:
        """The updates that have come, (index of the request, update), until all requests have ended. Raises the error of any."""
        while batch := await self._job.take():
            failures = [update.failure for _, update, _ in batch if update.failure is not None]
            for index, update, received in batch:
                self._times[index].observe(update, received)
                self.num_generated[index] += sum([len(delta.token_ids) for delta in update.deltas])
                self.open[index] -= sum([delta.finish_reason is not None for delta in update.deltas])
                if update.finished:
                    self.open[index] = 0  # also if it failed before its completions began
                if self._deadlines is not None and update.timing is not None:
                    self._deadlines.observe(update.timing.prefill + update.timing.decode)
                if update.head is not None:
                    self.heads[index] = update.head
            if failures:
                raise error_from_failure(failures[0])
            yield [(index, update) for index, update, _ in batch]

    async def completions(self) -> list[list["Completion"]]:
        """All completions of each request, once they have ended."""
        found: list[dict[int, Completion]] = [{} for _ in self._times]
        async for batch in self.batches():
            for index, update in batch:
                for delta in update.deltas:
                    found[index].setdefault(delta.index, Completion(delta.index)).add(delta)
        return [[one for _, one in sorted(completions.items())] for completions in found]

    def usage(self, index: int | None = None) -> dict[str, Any]:
        """The tokens so far, of one request or of all, in OpenAI's form."""
        chosen = range(len(self.heads)) if index is None else [index]
        heads = [head for one in chosen if (head := self.heads[one]) is not None]
        prompt, generated = sum(head.num_prompt_tokens for head in heads), sum(self.num_generated[one] for one in chosen)
        return {
            "prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": sum(head.num_cached_tokens for head in heads)},
        }  # fmt: skip


@dataclass
class Completion:
    """One completion, from all its deltas."""

    index: int
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[list[TokenLogprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def add(self, delta: Delta) -> None:
        """Take what is new."""
        self.texts.append(delta.text)
        self.token_ids += delta.token_ids
        if delta.logprobs is not None:
            self.logprobs = (self.logprobs or []) + delta.logprobs
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.texts)
