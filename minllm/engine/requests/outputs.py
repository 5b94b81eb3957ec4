"""The results of `LLM.generate` and `LLM.beam_search`, with vLLM's names, so that code written for one reads the other."""

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class Logprob:
    """The log probability of a token under the model's own distribution (before temperature, penalties and filters)."""

    logprob: float  # natural logarithm
    rank: int  # 1 is the likeliest token of the vocabulary
    decoded_token: str  # its text, also of a special token


@dataclass(frozen=True)
class CompletionOutput:
    """One completion of a prompt.

    text: the generated text, without a token or string that ended it unless include_stop_str_in_output is set.
    token_ids: all generated tokens, including one that ended the text.
    cumulative_logprob: the sum of the generated tokens' log-probabilities; None if no option needs them.
    logprobs: one dictionary per token, from token id to Logprob: the chosen token and the likeliest ones, likeliest first.
    finish_reason: "stop" (an end-of-sequence id, a stop id or a stop string was generated), "length" (max_tokens or the model's context is
        full), "abort" (the request was ended from outside) or "error" (RequestOutput.error says why), None while the request runs.
    stop_reason: the stop string or stop id; None for the model's own end of sequence.
    """

    index: int  # 0 to n - 1
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None


@dataclass(frozen=True)
class RequestMetrics:
    """The latency of a request, over all its completions.

    time_to_first_token: TTFT, the seconds from the call to this request's first token, including the wait for other requests.
    decode_tokens_per_second: generated tokens after the first, over the seconds between the first and the last; None for one token. Its
    inverse is the time per output token (TPOT).
    time_in_queue: seconds from the call until the engine began with the prompt; None while it waits.
    """

    prompt_tokens: int  # number of prompt tokens
    generated_tokens: int  # number of generated tokens, over all completions
    time_to_first_token: float | None
    decode_seconds: float  # from the first generated token to the last
    decode_tokens_per_second: float | None
    time_in_queue: float | None = None


@dataclass(frozen=True)
class RequestOutput:
    """A request and its completions.

    num_cached_tokens: prompt tokens found in the prefix cache, from a prompt of the same cache_salt.
    prompt_logprobs: one dictionary per prompt token, as in CompletionOutput.logprobs; None for the first, which has nothing before it.
    """

    request_id: str  # the id given with the request, or a number
    prompt: str | None  # None when the prompt was given as token ids
    prompt_token_ids: list[int]  # the prompt as the model read it
    outputs: list[CompletionOutput]  # n of them, best first with best_of
    finished: bool  # whether all completions have ended
    metrics: RequestMetrics  # latency and speed
    num_cached_tokens: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    error: Exception | None = None  # the cause of finish_reason "error"


@dataclass(frozen=True)
class BeamSearchSequence:
    """One of the continuations that a beam search found.

    tokens: prompt and output; the end-of-sequence id is the last one if there was one.
    cum_logprob: the sum of the log-probabilities of all generated tokens.
    text: prompt and output, without the end-of-sequence token unless it was requested.
    finish_reason: "stop" for an end-of-sequence id, or "length".
    """

    tokens: list[int]
    cum_logprob: float
    text: str
    finish_reason: FinishReason


@dataclass(frozen=True)
class BeamSearchOutput:
    """The beam_width continuations of one prompt with the highest scores, best first; fewer if not that many exist."""

    sequences: list[BeamSearchSequence]  # best first
