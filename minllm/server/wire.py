"""What the server and its engine say to each other: requests one way, updates the other, as values that JSON can hold."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from minllm.engine.requests.outputs import CompletionOutput, Logprob, RequestOutput
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.engine.requests.structured_outputs import StructuredOutputsParams

DEFAULTS = SamplingParams()
PARAMETERS = tuple(field.name for field in dataclasses.fields(SamplingParams) if field.name != "logits_processors")


@dataclasses.dataclass
class EngineRequest:
    """One prompt and its parameters.

    prompt: a text, token ids, or None for a conversation: then `chat` holds the arguments of ChatOptions beside "messages". echo: the first
    update holds the prompt's text. final_only: one update, at the end. deadline: seconds.
    """

    params: SamplingParams
    prompt: str | list[int] | None = None
    chat: dict[str, Any] | None = None
    priority: int = 0
    deadline: float | None = None
    cache_salt: str | None = None
    final_only: bool = False
    echo: bool = False

    def to_wire(self) -> dict[str, Any]:
        """The request for `from_wire`; parameters that have SamplingParams' own defaults are left out."""
        fields = {name: getattr(self, name) for name in (field.name for field in dataclasses.fields(self))}
        params = ((name, getattr(self.params, name)) for name in PARAMETERS)
        return fields | {"params": {name: value for name, value in params if value != getattr(DEFAULTS, name)}}

    @classmethod
    def from_wire(cls, fields: dict[str, Any]) -> "EngineRequest":
        """The request of `to_wire`."""
        params = dict(fields["params"])
        if "structured_outputs" in params:
            params["structured_outputs"] = StructuredOutputsParams(**params["structured_outputs"])
        return cls(**fields | {"params": SamplingParams(**params)})


class Head(NamedTuple):
    """What is known of a prompt once it has been read. With the request's `echo`: its text, its ids, and the first one's own text."""

    num_prompt_tokens: int
    num_cached_tokens: int
    prompt: str | None
    prompt_token_ids: list[int] | None
    first_text: str | None
    prompt_logprobs: list[list["TokenLogprob"] | None] | None


class TokenLogprob(NamedTuple):
    """A token at a position, with its log-probability and rank."""

    token_id: int
    logprob: float
    rank: int
    text: str


class Delta(NamedTuple):
    """What a completion gained since the last update. logprobs: per token its candidates, likeliest first, the chosen one among them."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[list[TokenLogprob]] | None
    finish_reason: str | None
    stop_reason: int | str | None


class Failure(NamedTuple):
    """The error that ended a request: the name of its class in minllm.errors, and its message."""

    kind: str
    message: str


class Timing(NamedTuple):
    """Seconds that a request spent in the engine's queue, from there to its first token, and from that to its last."""

    queue: float
    prefill: float
    decode: float


class Update(NamedTuple):
    """News of one request. head: with the first one. finished: no more will come; then `timing` is known if there was a token."""

    head: Head | None
    deltas: list[Delta]
    finished: bool
    failure: Failure | None
    timing: Timing | None = None

    @property
    def num_tokens(self) -> int:
        """The tokens that were computed for it: new ones, and with the head, those of the prompt that were not cached."""
        prompt = 0 if self.head is None else self.head.num_prompt_tokens - self.head.num_cached_tokens
        return prompt + sum([len(delta.token_ids) for delta in self.deltas])

    @classmethod
    def from_wire(cls, fields: list[Any]) -> "Update":
        """The update that JSON has made lists of."""
        head, deltas, finished, failure, timing = fields
        return cls(
            None if head is None else Head(*head[:5], _named(head[5])),
            [Delta(*delta[:3], _named(delta[3]), *delta[4:]) for delta in deltas], finished, failure and Failure(*failure),
            timing and Timing(*timing),
        )  # fmt: skip


def _named(positions: list[Any] | None) -> list[Any] | None:
    return positions and [position and [TokenLogprob(*token) for token in position] for position in positions]


class Sent:
    """How much of a request's output has been sent; makes the next update from its newest output."""

    def __init__(self, request: EngineRequest):
        self._request = request
        self._chars = [0] * request.params.n
        self._tokens = [0] * request.params.n
        self._ended: set[int] = set()  # completions whose end has been sent, while others of the request go on
        self._has_head = False

    def update(self, output: RequestOutput, decode: Callable) -> Update:
        """What is new. decode: gives the text of token ids, for a prompt that came as ids or is truncated."""
        head = None
        if not self._has_head:
            self._has_head, head = True, self._head(output, decode)
        deltas = [delta for one in output.outputs if (delta := self._delta(one)) is not None]
        failure = None if output.error is None else failure_of(output.error)
        return Update(head, deltas, output.finished, failure, timing_of(output) if output.finished else None)

    def _head(self, output: RequestOutput, decode: Callable) -> Head:
        ids = output.prompt_token_ids
        logprobs = output.prompt_logprobs and [position and _listed(position) for position in output.prompt_logprobs]
        if not self._request.echo:
            return Head(len(ids), output.num_cached_tokens, None, None, None, logprobs)
        is_whole = output.prompt is not None and self._request.params.truncate_prompt_tokens is None
        text = output.prompt if is_whole else decode(ids)
        return Head(len(ids), output.num_cached_tokens, text, ids, decode(ids[:1]), logprobs)

    def _delta(self, one: CompletionOutput) -> Delta | None:
        chars, tokens = self._chars[one.index], self._tokens[one.index]
        text, ids = one.text[chars:], one.token_ids[tokens:]
        if one.index in self._ended or not (text or ids or one.finish_reason):
            return None
        if one.finish_reason:
            self._ended.add(one.index)
        self._chars[one.index], self._tokens[one.index] = len(one.text), len(one.token_ids)
        logprobs = None if one.logprobs is None else [_listed(position) for position in one.logprobs[tokens:]]
        return Delta(one.index, text, ids, logprobs, one.finish_reason, one.stop_reason)


def _listed(position: dict[int, Logprob]) -> list[TokenLogprob]:
    return [TokenLogprob(token_id, max(one.logprob, -9999.0), one.rank, one.decoded_token) for token_id, one in position.items()]


def timing_of(output: RequestOutput) -> Timing | None:
    """The times of a request that has ended; None without a token."""
    times = output.metrics
    if times.time_in_queue is None or times.time_to_first_token is None:
        return None
    return Timing(times.time_in_queue, times.time_to_first_token - times.time_in_queue, times.decode_seconds)


def failure_of(error: Exception) -> Failure:
    """An error for the wire."""
    return Failure(type(error).__name__, str(error))
