"""A sequence: one completion of a request, from its prompt to its end.

It holds the state that changes while it runs: its tokens, their text (output_text.py), the scheduler's counters, and how it ended.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from minllm.engine.requests.output_text import OutputText
from minllm.engine.requests.outputs import FinishReason, Logprob
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.errors import as_exception

if TYPE_CHECKING:
    from minllm.engine.requests.grammar import Grammar

NO_SLOT = -1
LONGEST_SCORED_CHUNK = 512  # tokens: their logits are 512 times the vocabulary's size in float32, 263 MB for Llama 3


@dataclass(eq=False)
class Sequence:
    """One prompt and the tokens that follow it.

    `max_tokens` is the smaller of the request's own limit and the room left in the model's context. Text is made when it is read, or
    at once if it may hold a stop string.

    One thread may append tokens while another reads the text. `finish_reason` is set last, so a sequence seen as finished is complete.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams  # `seed` is never None
    max_tokens: int
    eos_token_ids: frozenset[int]  # the model's own; empty with ignore_eos
    decoder: InitVar[Any]  # turns ids into text piece by piece (models/incremental_decoder.py)
    arrival_time: float = field(default_factory=time.perf_counter)
    cache_salt: str = ""  # only sequences with the same salt share cached keys and values
    index: int = 0  # index of the completion in its request
    logits_processors: tuple[Callable, ...] = ()  # functions of (output_token_ids, logits), run on the host
    banned_token_ids: tuple[int, ...] = ()
    grammar: "Grammar | None" = None  # what a structured output follows; None if the output is free
    dtype: str = "float32"  # the model's activations' type, which names the cause of logits that are not finite
    siblings: list["Sequence"] = field(default_factory=list)  # further completions of the prompt, which wait until it is computed
    priority: int = 0  # lower runs earlier
    deadline: float | None = None  # the time.perf_counter() at which the sequence is aborted

    output_token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    prompt_logprobs: list[dict[int, Logprob] | None] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: Exception | None = None  # why it ended, with finish_reason "error"
    fault: Exception | None = None  # an error that this sequence alone has caused in the current step, whose results end it
    scheduled_time: float | None = None  # when it first left the queue
    first_token_time: float | None = None
    last_token_time: float | None = None

    # The scheduler's state. A token counts as computed if its key and value are in the cache, or will be after the steps launched so far;
    # drafts that are not verified yet count as accepted.
    arrival: int = 0  # the request's number in the order of arrival
    slot: int = NO_SLOT  # the sequence's slot on the device while it runs
    num_cached_tokens: int = 0  # prompt tokens found in the prefix cache
    num_computed_tokens: int = 0
    num_prefill_tokens: int = 0  # tokens known when it entered, computed in chunks; later tokens are decoded
    num_in_flight: int = 0  # launched steps with tokens that the host has not read yet
    num_preemptions: int = 0

    # The state of a beam search (beam_search.py).
    search: Any = None  # the BeamSearch that chooses the tokens; None if they are sampled
    scores_processed: bool = False  # log-probabilities are taken after logits_processors, not before
    is_held: bool = False  # not computed until the search has chosen

    def __post_init__(self, decoder: Any) -> None:
        self._ending_ids = self.eos_token_ids | frozenset(self.params.stop_token_ids or ())
        self._text = OutputText(decoder, self.params, self._ending_ids)

    @cached_property
    def shown_prompt_token_ids(self) -> list[int]:
        """A copy of the prompt's token ids that all outputs of the request share."""
        return list(self.prompt_token_ids)

    @cached_property
    def needs_logprobs(self) -> bool:
        """Whether the log-probabilities of its tokens are requested, or decide which completions are returned."""
        return self.params.logprobs is not None or self.params.num_generated > self.params.n

    def __repr__(self) -> str:
        return f"request {self.request_id}" + (f", completion {self.index}" if self.index else "")

    @property
    def num_tokens(self) -> int:
        """The number of known tokens of prompt and output."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_reserved_tokens(self) -> int:
        """The most tokens that the KV cache may have to hold for this sequence: the prompt and max_tokens."""
        return len(self.prompt_token_ids) + self.max_tokens

    @property
    def ending_token_ids(self) -> frozenset[int]:
        """All ids that end the text; min_tokens bans these."""
        return self._ending_ids

    @property
    def is_finished(self) -> bool:
        """Whether the sequence has ended."""
        return self.finish_reason is not None

    @property
    def is_prefilled(self) -> bool:
        """Whether all tokens that were known when it entered are computed."""
        return self.num_computed_tokens >= self.num_prefill_tokens

    @property
    def peers(self) -> list["Sequence"]:
        """The sequences that end when this one does: the beams of its search."""
        return [] if self.search is None else self.search.beams

    @property
    def can_decode(self) -> bool:
        """Whether its newest token can be computed: a launched step has sampled it, and it is not the last one."""
        if self.num_computed_tokens < self.num_prefill_tokens or self.slot == NO_SLOT or self.is_held:
            return False
        if self.num_in_flight and self._waits_for_host:
            return False
        return self.num_computed_tokens + 1 < len(self.prompt_token_ids) + self.max_tokens

    @property
    def _waits_for_host(self) -> bool:
        """Whether the host chooses its newest token between two steps, or has to know it before the next one is launched."""
        follows = self.grammar is not None and not self.grammar.grammars.is_late
        return bool(self.logits_processors) or self.search is not None or follows

    @property
    def longest_chunk(self) -> int:
        """The most tokens of its prompt in one step; limited if all of their logits are needed."""
        return LONGEST_SCORED_CHUNK if self.scores_prompt else sys.maxsize

    @property
    def scores_prompt(self) -> bool:
        """Whether the log-probabilities of the prompt are requested, and not known yet: the first completion computes them for all.

        A further completion may find the prompt's keys in the prefix cache, where there are no logits.
        """
        return self.params.prompt_logprobs is not None and self.index == 0 and not self.output_token_ids

    def token_ids(self, start: int, stop: int) -> list[int]:
        """Tokens `start` to `stop`, counted from the prompt's first."""
        prompt = len(self.prompt_token_ids)
        if stop <= prompt:
            return self.prompt_token_ids[start:stop]
        return self.prompt_token_ids[start:] + self.output_token_ids[max(0, start - prompt) : stop - prompt]

    @property
    def text(self) -> str:
        """The text so far, without a tail that may be part of a character or a stop string."""
        return self.text_so_far()[0]

    def text_so_far(self) -> tuple[str, int]:
        """The text, and the number of output tokens in it."""
        return self._text.so_far(self.output_token_ids, self.is_finished)

    def append(self, token_id: int, logprobs: dict[int, Logprob] | None = None, now: float | None = None) -> None:
        """Append the next token, generated at `now`, and decide whether it is the last. Raises SamplingError if its grammar gave up."""
        if self.grammar is not None:
            self.grammar.accept(token_id)
        now = time.perf_counter() if now is None else now
        if self.first_token_time is None:
            self.first_token_time = now
        self.last_token_time = now
        self.output_token_ids.append(token_id)
        if logprobs is not None:
            self.logprobs.append(logprobs)
            self.cumulative_logprob += logprobs[token_id].logprob
        if self.params.stop or token_id in self._ending_ids or len(self.output_token_ids) >= self.max_tokens:
            self._end_if_last(token_id)

    def abort(self, reason: FinishReason = "abort", error: Exception | None = None) -> None:
        """End the sequence after its present tokens."""
        self.error = error
        self.finish_reason = reason

    @contextmanager
    def at_fault(self) -> Iterator[None]:
        """A context for work for this sequence within a step of many: an error inside ends this sequence with the step's results."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - whatever it is, the others of the step go on
            self.fault = as_exception(error)

    def give_up(self, error: Exception) -> None:
        """End the sequence because of an error in its decoder; its text stays as it is."""
        self._text.give_up(len(self.output_token_ids))
        self.abort("error", error)

    def take_text(self) -> str:
        """The text that became final since the last call."""
        return self._text.take(self.output_token_ids, self.is_finished)

    def _end_if_last(self, token_id: int) -> None:
        """Set stop_reason, then finish_reason, if this newest token is the last."""
        reason: FinishReason | None = None
        count = len(self.output_token_ids)
        if token_id in self._ending_ids and count > self.params.min_tokens:
            reason, self.stop_reason = "stop", None if token_id in self.eos_token_ids else token_id
        elif count >= self.max_tokens:
            reason = "length"
        if self.params.stop and (stop := self._text.stop_string(self.output_token_ids, reason is not None)) is not None:
            reason, self.stop_reason = "stop", stop
        self.finish_reason = reason
