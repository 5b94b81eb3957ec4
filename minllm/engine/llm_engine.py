"""LLMEngine: requests come and go while others run. Its interface is vLLM's; `LLM` and `AsyncLLM` are made of it."""

import time
from dataclasses import dataclass
from typing import Any

from minllm.engine.beam_search_params import BeamSearchParams
from minllm.engine.core import EngineCore
from minllm.engine.loading import Engine
from minllm.engine.outputs import RequestOutput
from minllm.engine.prompts import PromptTokens, checked_salts, naming_the_prompt, parse_prompts
from minllm.engine.requests.completions import output_of
from minllm.engine.requests.requests import make_beams, make_sequences
from minllm.engine.requests.sequence import Sequence
from minllm.engine.sampling_params import SamplingParams
from minllm.errors import InvalidRequestError


@dataclass(frozen=True)
class EngineStats:
    """What an engine is doing."""

    num_running: int  # sequences
    num_waiting: int
    kv_cache_usage: float  # share of the KV cache that running sequences hold, 0 to 1
    num_preemptions: int  # since the engine was made, like the numbers below
    prefix_cache_queries: int  # prompt tokens
    prefix_cache_hits: int  # those of them that were found in the cache
    num_steps: int


class LLMEngine:
    """Runs requests on a loaded model: `add_request` at any time, `step` while `has_unfinished_requests`."""

    def __init__(self, engine: Engine, default_params: SamplingParams, seed: int):
        self.engine, self.default_params, self.seed = engine, default_params, seed
        self.core = EngineCore(engine.scheduler, engine.runner, engine.tokenizer)
        self._requests: dict[str, list[Sequence]] = {}
        self._num_requests = 0  # numbers the requests, for their seeds

    def add_request(
        self, request_id: str, prompt: Any, params: SamplingParams | None = None, *, priority: int = 0, deadline: float | None = None,
        cache_salt: str | None = None, arrival_time: float | None = None,
    ) -> None:  # fmt: skip
        """Queue a request: a text, token ids, or a dictionary with one of them.

        priority: lower runs earlier. deadline: seconds from now after which the request ends with an error. Raises InvalidRequestError or
        OutOfMemoryError, and then nothing has changed.
        """
        if request_id in self._requests:
            raise InvalidRequestError(f"request_id={request_id!r} is running already: give every request an id of its own.")
        engine, tokenizer = self.engine, self.engine.tokenizer
        vocab_size, most_tokens = engine.model.config.vocab_size, engine.max_model_len
        [parsed] = parse_prompts(prompt, tokenizer.encode, vocab_size, most_tokens, tokenizer.most_chars_per_token)
        [salt] = checked_salts(cache_salt, [parsed])
        [sequences] = self.make_requests([(parsed, params or self.default_params, salt)], request_id)
        for sequence in sequences:
            sequence.priority, sequence.arrival_time = priority, arrival_time or sequence.arrival_time
            sequence.deadline = None if deadline is None else time.perf_counter() + deadline
        self.core.add(sequences[0])
        self._requests[request_id] = sequences

    def abort_request(self, request_id: str) -> None:
        """End a request, whatever it is doing; its memory is free for the next step. Ids of requests that have ended are ignored."""
        if request_id in self._requests:
            self.core.abort(self._requests.pop(request_id))

    def step(self) -> list[RequestOutput]:
        """Compute the next step; returns the outputs so far of the requests that got a token or ended."""
        moved = dict.fromkeys(sequence.request_id for sequence in self.core.step())
        return [self._output(request_id) for request_id in moved if request_id in self._requests]

    def has_unfinished_requests(self) -> bool:
        """Whether a request has not ended."""
        return bool(self._requests)

    def stats(self) -> EngineStats:
        """What the engine is doing now."""
        scheduler, policy = self.core.scheduler, self.core.scheduler.memory.policy
        usage, hits = policy.usage(), policy.prefix_hits
        return EngineStats(
            num_running=len(scheduler.running), num_waiting=scheduler.num_waiting, kv_cache_usage=usage.allocated / usage.total,
            num_preemptions=scheduler.num_preemptions, prefix_cache_queries=hits.tokens_asked, prefix_cache_hits=hits.tokens_hit,
            num_steps=self.core.num_steps,
        )  # fmt: skip

    def make_requests(
        self, given: list[tuple[PromptTokens, SamplingParams | BeamSearchParams, str]], request_id: str | None = None
    ) -> list[list[Sequence]]:
        """The sequences of each request, (prompt, parameters, salt), all checked and none queued. The ids are numbers unless one is given.

        Raises InvalidRequestError or OutOfMemoryError, and then the seeds of later requests are unchanged.
        """
        requests = []
        for index, one in enumerate(given):
            number = self._num_requests + index
            with naming_the_prompt(index, len(given)):
                make = make_beams if isinstance(one[1], BeamSearchParams) else make_sequences
                requests.append(make(self.engine, request_id or str(number), number, *one, self.seed))
            self.core.scheduler.memory.check_fits(requests[-1][0])
        self._num_requests += len(requests)
        return requests

    def abort_all(self) -> None:
        """End all requests."""
        self.core.abort(sequence for sequence in self.core.scheduler.sequences())
        self._requests.clear()

    def forget_history(self) -> None:
        """Reset counts, estimates and cached prefixes after a warm-up; seeds count from the next request again."""
        self.core.scheduler.memory.policy.forget_prefixes()
        self.core.scheduler.memory.policy.forget_counts()
        self._num_requests = self.core.num_steps = self.core.scheduler.num_preemptions = 0

    def _output(self, request_id: str) -> RequestOutput:
        sequences = self._requests[request_id]
        try:
            output = output_of(sequences)
        except Exception as error:  # noqa: BLE001 - whatever a decoder raises, it ends its own request
            self.core.abort(sequences)
            for sequence in sequences:
                sequence.give_up(error)
            output = output_of(sequences)
        if output.finished:
            del self._requests[request_id]
        return output
