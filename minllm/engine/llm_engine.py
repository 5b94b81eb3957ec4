"""LLMEngine: requests come and go while others run. Its interface is vLLM's; `LLM` and `AsyncLLM` are built on it."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from minllm.engine.build.engine import Engine
from minllm.engine.core import EngineCore
from minllm.engine.engine_stats import EngineStats, engine_stats
from minllm.engine.requests.completions import output_of
from minllm.engine.requests.outputs import RequestOutput
from minllm.engine.requests.parameter_checks import integer, real
from minllm.engine.requests.prompts import PromptTokens, checked_salts, naming_the_prompt, parse_prompts
from minllm.engine.requests.request_checks import check_request
from minllm.engine.requests.requests import make_sequences
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.engine.requests.sequence import Sequence
from minllm.engine.scheduling.policies import POLICIES
from minllm.engine.scheduling.speculative import SpeculationCounts
from minllm.engine.turn import NotCopied
from minllm.errors import InvalidOptionError, InvalidRequestError, as_exception

MOST_PRIORITY = 2**63 - 1


class LLMEngine(NotCopied):
    """Runs requests on a loaded model: `add_request` at any time, `step` while `has_unfinished_requests`; in one thread at a time."""

    def __init__(self, engine: Engine, default_params: SamplingParams, seed: int):
        self.engine, self.default_params, self.seed = engine, default_params, seed
        self.core = EngineCore(engine.scheduler, engine.runner, engine.tokenizer)
        self._requests: dict[str, list[Sequence]] = {}
        self._num_requests = 0  # the next request's number, from which its seed derives
        self._lock = threading.Lock()

    def add_request(
        self, request_id: str, prompt: object, params: SamplingParams | None = None, *, priority: int = 0, deadline: float | None = None,
        cache_salt: str | None = None, arrival_time: float | None = None,
    ) -> None:  # fmt: skip
        """Queue a request. Raises InvalidRequestError or OutOfMemoryError, and then nothing has changed.

        request_id: a text that no running request has. prompt: a text, token ids, or a dictionary with one of them. params: None takes the
        model's defaults. priority: lower runs earlier. deadline: seconds from arrival after which the request ends with an error.
        cache_salt: only prompts of one salt share cached keys and values. arrival_time: seconds by time.perf_counter(); None is now.
        """
        check_request(request_id, params)
        if request_id in self._requests:
            raise InvalidRequestError(f"request_id={request_id!r} is running already: give every request an id of its own.")
        sequences = self.prepare(
            request_id, prompt, params, priority=priority, deadline=deadline, cache_salt=cache_salt, arrival_time=arrival_time
        )
        with self.core.turn:
            self.core.add(sequences[0])
            self._requests[request_id] = sequences

    def prepare(
        self, request_id: str, prompt: object, params: SamplingParams | None = None, *, priority: int = 0, deadline: float | None = None,
        cache_salt: str | None = None, arrival_time: float | None = None,
    ) -> list[Sequence]:  # fmt: skip
        """The sequences of a request, checked and not queued; another thread may be in `step`. The arguments are those of add_request."""
        priority = integer("priority", priority, -MOST_PRIORITY, MOST_PRIORITY, "an integer; lower runs earlier")
        if deadline is not None:
            deadline = real("deadline", deadline, 0.0, math.inf, "None or a number of seconds, at least 0")
        arrival_time = arrival_time or time.perf_counter()
        params = self.default_params if params is None else params
        with self._numbered(1) as number:  # in order of arrival, however long it takes to tokenise
            [parsed] = self.parse(prompt, [params])
            [salt] = checked_salts(cache_salt, [parsed])
            [sequences] = self._made([(parsed, params, salt)], number, request_id)
        for sequence in sequences:
            sequence.priority, sequence.arrival_time = priority, arrival_time
            sequence.deadline = None if deadline is None else arrival_time + deadline
        return sequences

    def abort_request(self, request_id: str) -> None:
        """End a request, whatever it is doing; its memory is free for the next step.

        request_id: ignored if this request has ended already.
        """
        with self.core.turn:
            self.core.abort(self._requests.pop(request_id, ()))

    def step(self) -> list[RequestOutput]:
        """Compute the next step; returns the outputs so far of the requests that got a token or ended."""
        moved = dict.fromkeys(sequence.request_id for sequence in self.core.step())
        return [self._output(request_id) for request_id in moved if request_id in self._requests]

    def advance(self) -> list[Sequence]:
        """Like `step`, but returns the sequences: making outputs takes longer than a step of a small model."""
        moved = self.core.step()
        for sequence in moved:
            others = self._requests.get(sequence.request_id, ()) if sequence.is_finished else ()
            if others and all(other.is_finished for other in others):
                del self._requests[sequence.request_id]
        return moved

    def has_unfinished_requests(self) -> bool:
        """Whether a request has not ended."""
        return bool(self._requests)

    def set_scheduling_policy(self, name: str) -> None:
        """Plan all further steps by another policy; requests go on. Raises InvalidOptionError for an unknown name."""
        if name not in POLICIES:
            raise InvalidOptionError(f"scheduling_policy={name!r} is not allowed: give one of {', '.join(POLICIES)}.")
        self.core.scheduler.policy = POLICIES[name]()

    def stats(self) -> EngineStats:
        """The engine's current load, and its counts since it was made."""
        return engine_stats(self.core.scheduler, self.core.num_steps, **self.engine.runner.graph_counts())

    def parse(self, prompts: object, params: list[Any]) -> list[PromptTokens]:
        """The tokens of one prompt or of each of several, for requests with these parameters. Raises InvalidRequestError."""
        engine, tokenizer = self.engine, self.engine.tokenizer
        vocab_size = engine.model.config.vocab_size
        return parse_prompts(prompts, tokenizer.encode, vocab_size, self.longest_prompt(params), tokenizer.most_chars_per_token)

    def longest_prompt(self, params: list[Any]) -> int | None:
        """The most tokens that prompts may have before they are truncated; None if all requests with these parameters truncate theirs."""
        truncates = len(params) > 0 and all(isinstance(one, SamplingParams) and one.truncate_prompt_tokens is not None for one in params)
        return None if truncates else self.engine.max_model_len

    def make_requests(self, given: list[tuple[PromptTokens, Any, str]], make: Callable = make_sequences) -> list[list[Sequence]]:
        """The sequences of each request, (prompt, parameters, salt), all checked and none queued. Their ids are numbers.

        make: makes the sequences of one request; for BeamSearchParams it is make_beams.
        Raises InvalidRequestError or OutOfMemoryError, and then the seeds of later requests are unchanged.
        """
        with self._numbered(len(given)) as first:
            return self._made(given, first, None, make)

    def _made(
        self, given: list[tuple[PromptTokens, Any, str]], first: int, request_id: str | None, make: Callable = make_sequences
    ) -> list[list[Sequence]]:  # fmt: skip
        requests = []
        for number, one in enumerate(given, start=first):
            with naming_the_prompt(number - first, len(given)):
                requests.append(make(self.engine, str(number) if request_id is None else request_id, number, *one, self.seed))
            self.core.scheduler.memory.check_fits(requests[-1][0])
        return requests

    @contextmanager
    def _numbered(self, count: int) -> Iterator[int]:
        """The first of `count` numbers for requests. If these are refused, later ones get the numbers, unless some have come already."""
        with self._lock:
            first, self._num_requests = self._num_requests, self._num_requests + count
        try:
            yield first
        except BaseException:
            with self._lock:
                if self._num_requests == first + count:
                    self._num_requests = first
            raise

    def output_of(self, sequences: list[Sequence]) -> RequestOutput:
        """The output of a request so far; if its text cannot be made, the request ends with that error."""
        try:
            return output_of(sequences)
        except BaseException as error:  # noqa: BLE001 - whatever a decoder raises, it ends its own request
            self.core.abort(sequences)
            for sequence in sequences:
                sequence.give_up(as_exception(error))
            return output_of(sequences)

    def abort_all(self) -> None:
        """End all requests."""
        self.core.abort(self.core.scheduler.queues.sequences())
        self._requests.clear()

    def forget_history(self) -> None:
        """Reset counts, estimates and cached prefixes after a warm-up; seeds count from the next request again."""
        self.core.scheduler.memory.policy.forget_prefixes()
        self.core.scheduler.memory.policy.forget_counts()
        self._num_requests = self.core.num_steps = 0
        self.core.scheduler.queues.num_preemptions = self.core.scheduler.num_corrupted_requests = 0
        if self.core.scheduler.speculation is not None:
            self.core.scheduler.speculation.counts = SpeculationCounts()

    def _output(self, request_id: str) -> RequestOutput:
        output = self.output_of(self._requests[request_id])
        if output.finished:
            del self._requests[request_id]
        return output
