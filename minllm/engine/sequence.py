"""A running request: its tokens, the text that may be shown so far, and whether it has ended."""

import time
from dataclasses import dataclass, field
from typing import Any

from minllm.engine.outputs import FinishReason, Logprob
from minllm.engine.sampling_params import SamplingParams
from minllm.engine.stop_strings import StopStringMatcher


@dataclass
class Sequence:
    """One prompt and the tokens that follow it: one completion of a request.

    `max_tokens` is the smaller of the request's own limit and the room left in the model's context. `decoder` turns ids into text
    piece by piece (models.incremental_decoder). The engine fills `block_table`, `num_cached_tokens` and
    `forked_from` while the sequence runs.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams  # `seed` is never None
    max_tokens: int
    eos_token_ids: frozenset[int]  # the model's own; empty with ignore_eos
    decoder: Any
    arrival_time: float = field(default_factory=time.perf_counter)  # seconds
    cache_salt: str = ""  # only sequences with the same salt share cached keys and values
    block_table: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0  # prompt tokens found in the prefix cache
    index: int = 0  # index of the completion in its request
    sibling: "Sequence | None" = None  # the request's first completion, of the same prompt; None for the first itself
    forked_from: "Sequence | None" = None  # the sibling, if its computed prompt also serves this sequence

    output_token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None

    def __post_init__(self) -> None:
        self._stop_ids = frozenset(self.params.stop_token_ids)
        self._matcher = StopStringMatcher(self.params.stop, self.params.include_stop_str_in_output)
        self._unread = ""

    @property
    def num_reserved_tokens(self) -> int:
        """The most tokens that the KV cache may have to hold for this sequence: the prompt and all that may be generated."""
        return len(self.prompt_token_ids) + self.max_tokens

    @property
    def ending_token_ids(self) -> frozenset[int]:
        """All ids that end the text; min_tokens bans these."""
        return self.eos_token_ids | self._stop_ids

    @property
    def is_finished(self) -> bool:
        """Whether the sequence has ended."""
        return self.finish_reason is not None

    @property
    def text(self) -> str:
        """The text so far, without a tail that may be part of a character or a stop string."""
        return self._matcher.text

    def append(self, token_id: int, logprobs: dict[int, Logprob] | None = None) -> None:
        """Append the next token and decide whether it is the last."""
        now = time.perf_counter()
        self.first_token_time = now if self.first_token_time is None else self.first_token_time
        self.last_token_time = now
        self.output_token_ids.append(token_id)
        if logprobs is not None:
            self.logprobs.append(logprobs)
            self.cumulative_logprob += logprobs[token_id].logprob
        may_stop = len(self.output_token_ids) > self.params.min_tokens
        ends = may_stop and token_id in self.ending_token_ids
        if not ends or self.params.include_stop_str_in_output:
            self._take_text(self.decoder.push(token_id), may_stop)
        if ends and not self.is_finished:
            self.finish_reason = "stop"
            self.stop_reason = None if token_id in self.eos_token_ids else token_id
        if len(self.output_token_ids) >= self.max_tokens and not self.is_finished:
            self.finish_reason = "length"
        if self.is_finished:
            self._take_text(self.decoder.finish(), may_stop)
            self._unread += self._matcher.flush()

    def _take_text(self, piece: str, may_stop: bool) -> None:
        self._unread += self._matcher.push(piece, may_stop)
        if self._matcher.stop is not None:
            self.finish_reason, self.stop_reason = "stop", self._matcher.stop

    def take_text(self) -> str:
        """The text that became final since the last call."""
        text, self._unread = self._unread, ""
        return text
