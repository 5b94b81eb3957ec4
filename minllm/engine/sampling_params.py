"""Parameters of a request: how tokens are chosen and where the text ends. Names, defaults and limits are vLLM's."""

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from minllm.errors import CheckpointError, InvalidRequestError
from minllm.models.generation_config import GenerationConfig

MAX_LOGPROBS = 20  # log-probabilities of the whole vocabulary at every step would fill the host's memory
MAX_STOP_STRINGS = 64
MAX_COMPLETIONS = 1024
MIN_TEMPERATURE = 0.01  # a smaller nonzero temperature would overflow the scaled logits


def _reject(name: str, given: Any, allowed: str, advice: str = "") -> None:
    raise InvalidRequestError(f"{name}={given!r} is not allowed: {name} is {allowed}{'; ' + advice if advice else ''}")


def _integer(name: str, value: Any, low: int, high: int | None, allowed: str) -> int:
    """`value` as an int within [low, high]; True and 3.0 are rejected, because they are usually mistakes."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < low or (high is not None and value > high):
        _reject(name, value, allowed)
    return int(value)


def _real(name: str, value: Any, low: float, high: float, allowed: str, low_is_allowed: bool = True) -> float:
    """`value` as a finite float within [low, high], or (low, high]."""
    is_number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or value > high or (value < low if low_is_allowed else value <= low):
        _reject(name, value, allowed)
    return float(value)


@dataclass(frozen=True)
class SamplingParams:
    """The options of one request, all checked here; InvalidRequestError names the first wrong value.

    n: number of completions of the prompt, each with its own seed; the prompt is computed and cached once for all of them.
    temperature: divides the logits; 0 takes the likeliest token each time (greedy), 2 is the highest allowed.
    top_p: sample among the likeliest tokens whose probabilities sum to at least this; 1 keeps all tokens.
    top_k: sample among this many likeliest tokens; 0 or -1 keeps all.
    min_p: drop tokens less likely than this fraction of the likeliest one's probability; 0 drops none.
    repetition_penalty: above 1 makes tokens in the prompt or the output less likely, below 1 more likely; 1 is off.
    presence_penalty, frequency_penalty: subtracted from the logit of a token in the output, once, and once per occurrence.
    seed: makes the text reproducible in any batch; None draws from the engine's own seed.
    max_tokens: the most tokens to generate; None allows as many as the model's context does.
    min_tokens: end-of-sequence and stop ids are banned, and stop strings ignored, until this many tokens have been generated.
    stop: a string or several; the text ends before the first one that appears.
    stop_token_ids: ids that end the text, besides the model's own end-of-sequence ids.
    ignore_eos: continue past the model's end-of-sequence ids.
    logprobs: return log-probabilities of this many likeliest tokens at every step, and of the chosen one, before any option above.
    skip_special_tokens: leave tokens such as <|eot_id|> out of the text.
    include_stop_str_in_output: end the text after the stop string or token rather than before it.
    logit_bias: added to the logits of these token ids.
    allowed_token_ids: no other ids are generated.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | list[str] | tuple[str, ...] | None = None
    stop_token_ids: list[int] | tuple[int, ...] | None = None
    ignore_eos: bool = False
    logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        checked = {**self._checked_sampling(), **self._checked_limits(), **self._checked_stops()}
        for name in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                _reject(name, getattr(self, name), "True or False")
        for name, value in checked.items():
            object.__setattr__(self, name, value)  # frozen for users; values are normalised here

    def _checked_sampling(self) -> dict[str, Any]:
        temperature = _real("temperature", self.temperature, 0.0, 2.0, "a number from 0 (greedy) to 2")
        return {
            "temperature": max(temperature, MIN_TEMPERATURE) if temperature else 0.0,
            "top_p": _real("top_p", self.top_p, 0.0, 1.0, "a number above 0 and at most 1 (1 keeps all tokens)", low_is_allowed=False),
            "top_k": max(0, _integer("top_k", self.top_k, -1, None, "an integer of at least 1, or 0 or -1 to keep all tokens")),
            "min_p": _real("min_p", self.min_p, 0.0, 1.0, "a number from 0 (off) to 1"),
            "repetition_penalty": _real(
                "repetition_penalty", self.repetition_penalty, 0.0, math.inf, "a finite number above 0 (1 is off)", low_is_allowed=False
            ),
            "presence_penalty": _real("presence_penalty", self.presence_penalty, -2.0, 2.0, "a number from -2 to 2 (0 is off)"),
            "frequency_penalty": _real("frequency_penalty", self.frequency_penalty, -2.0, 2.0, "a number from -2 to 2 (0 is off)"),
            "seed": None if self.seed is None else _integer("seed", self.seed, 0, 2**64 - 1, "None or an integer from 0 to 2**64 - 1"),
        }

    def _checked_limits(self) -> dict[str, Any]:
        n = _integer("n", self.n, 1, MAX_COMPLETIONS, f"an integer from 1 to {MAX_COMPLETIONS}")
        if n > 1 and self.is_greedy:
            _reject("n", n, "1 with temperature=0", "greedy decoding gives the same text every time; raise the temperature")
        min_tokens = _integer("min_tokens", self.min_tokens, 0, None, "an integer of at least 0")
        max_tokens = self.max_tokens
        if max_tokens is not None:
            max_tokens = _integer("max_tokens", max_tokens, 1, None, "an integer of at least 1, or None for as many as the model allows")
            if min_tokens > max_tokens:
                _reject("min_tokens", min_tokens, f"at most max_tokens={max_tokens}", "raise max_tokens or lower min_tokens")
        logprobs = self.logprobs
        if logprobs is not None:
            logprobs = _integer("logprobs", logprobs, 0, MAX_LOGPROBS, f"None or an integer from 0 to {MAX_LOGPROBS}")
        return {"n": n, "min_tokens": min_tokens, "max_tokens": max_tokens, "logprobs": logprobs}

    def _checked_stops(self) -> dict[str, Any]:
        stop = () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else self.stop
        if not isinstance(stop, list | tuple) or not all(isinstance(text, str) for text in stop):
            _reject("stop", self.stop, "a string or a list of strings")
        if "" in stop:
            _reject("stop", self.stop, "made of strings that are not empty", "an empty string would end the text before it begins")
        if len(stop) > MAX_STOP_STRINGS:
            raise InvalidRequestError(f"{len(stop)} stop strings were given and at most {MAX_STOP_STRINGS} are allowed: drop some")
        ids = () if self.stop_token_ids is None else self.stop_token_ids
        if not isinstance(ids, list | tuple):
            _reject("stop_token_ids", ids, "a list of token ids")
        checked = [_integer(f"stop_token_ids[{i}]", ids[i], 0, None, "an integer of at least 0") for i in range(len(ids))]
        return {"stop": tuple(stop), "stop_token_ids": tuple(checked)}

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken each time."""
        return self.temperature == 0.0


def default_sampling_params(generation_config: GenerationConfig) -> SamplingParams:
    """The parameters of a request that gives none: a checkpoint's generation_config.json over the defaults above.

    `do_sample: false` in that file means greedy decoding, temperature 0 here. Raises CheckpointError for a value out of bounds.
    """
    taken = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    values = {name: value for name in taken if (value := getattr(generation_config, name)) is not None}
    if generation_config.max_new_tokens is not None:
        values["max_tokens"] = generation_config.max_new_tokens
    if generation_config.do_sample is False:
        values["temperature"] = 0.0
    try:
        return SamplingParams(**values)
    except InvalidRequestError as error:
        raise CheckpointError(f"generation_config.json of the model holds a value that cannot be used: {error}") from error
