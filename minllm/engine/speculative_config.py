"""The option speculative_config: where drafts come from, and how many are verified at a time. Names and defaults are vLLM's.

    {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}     what followed the newest tokens before
    {"model": "path/of/a/small/model", "num_speculative_tokens": 4}              what a smaller model of the same vocabulary says
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from minllm.errors import InvalidOptionError

METHODS = ("ngram", "draft_model")
SAMPLE_METHODS = ("probabilistic", "greedy")
LONGEST_NGRAM = 5  # tokens, if the option names neither limit
MOST_DRAFTS = 64


@dataclass(frozen=True, kw_only=True)
class SpeculativeConfig:
    """Checked when made: InvalidOptionError names the first wrong value.

    method: "ngram" drafts what followed the last time that the newest tokens stood together in the prompt or the output; "draft_model" asks
        a smaller model. None is "draft_model" if a model is given, else "ngram".
    num_speculative_tokens: the most drafts that a step verifies of each sequence.
    model: the draft model, a directory or a GGUF file, of the same tokenizer; None is the draft of the bundled model.
    draft_sample_method: how a draft model chooses: "probabilistic" draws by the request's parameters, which is accepted most often;
    "greedy"
        takes the likeliest token, and text is that of decoding without drafts, seed for seed.
    prompt_lookup_max, prompt_lookup_min: the most and the fewest newest tokens that have to match; both 5 if neither is given, and each
        other's value if one is.
    synthetic_acceptance_rate: for benchmarks: each draft is accepted with this probability, whatever the model says, so that text means
        nothing; None lets the model decide.
    """

    num_speculative_tokens: int
    method: str | None = None
    model: str | Path | None = None
    draft_sample_method: str = "probabilistic"
    prompt_lookup_max: int | None = None
    prompt_lookup_min: int | None = None
    synthetic_acceptance_rate: float | None = None

    def __post_init__(self) -> None:
        if self.method is None:
            object.__setattr__(self, "method", "ngram" if self.model is None else "draft_model")
        for name, names in (("method", METHODS), ("draft_sample_method", SAMPLE_METHODS)):
            value = getattr(self, name)
            if not (isinstance(value, str) and value in names):
                _refuse(name, value, f"one of {', '.join(names)}")
        if not (self.model is None or isinstance(self.model, Path) or (isinstance(self.model, str) and self.model)):
            _refuse("model", self.model, "the path of a model directory or of a GGUF file")
        if self.model is not None and self.method != "draft_model":
            _refuse("model", self.model, f'None with method="{self.method}", which needs no model')
        _check_integer("num_speculative_tokens", self.num_speculative_tokens, f"an integer from 1 to {MOST_DRAFTS}", most=MOST_DRAFTS)
        rate = self.synthetic_acceptance_rate
        if not (rate is None or (isinstance(rate, Real) and not isinstance(rate, bool) and 0 <= rate <= 1)):
            _refuse("synthetic_acceptance_rate", rate, "a number from 0 to 1, or None")
        longest, shortest = self.prompt_lookup_max, self.prompt_lookup_min
        for name, value in (("prompt_lookup_max", longest), ("prompt_lookup_min", shortest)):
            if value is not None:
                _check_integer(name, value, "an integer of at least 1")
        if self.method != "ngram":
            for name, value in (("prompt_lookup_max", longest), ("prompt_lookup_min", shortest)):
                if value is not None:
                    _refuse(name, value, f'None with method="{self.method}", which looks up nothing')
            return
        longest, shortest = longest or shortest or LONGEST_NGRAM, shortest or longest or LONGEST_NGRAM
        if shortest > longest:
            _refuse("prompt_lookup_min", shortest, f"at most prompt_lookup_max={longest}")
        object.__setattr__(self, "prompt_lookup_max", longest)
        object.__setattr__(self, "prompt_lookup_min", shortest)


def speculative_config(given: Any) -> SpeculativeConfig | None:
    """The option as given, None, a dictionary or a SpeculativeConfig. Raises InvalidOptionError."""
    if given is None or isinstance(given, SpeculativeConfig):
        return given
    if not isinstance(given, Mapping):
        raise InvalidOptionError(
            f"speculative_config={given!r} is not allowed: give None or a dictionary such as "
            '{"method": "ngram", "num_speculative_tokens": 4}.'
        )
    names = [field.name for field in fields(SpeculativeConfig)]
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(str(name), names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the names are {', '.join(names)}."
            raise InvalidOptionError(f"speculative_config has no {name!r}: {hint}")
    if "num_speculative_tokens" not in given:
        raise InvalidOptionError("speculative_config needs num_speculative_tokens, the most drafts that a step verifies of each sequence.")
    return SpeculativeConfig(**given)


def _check_integer(name: str, value: Any, meaning: str, most: int | None = None) -> None:
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if not (is_integer and value >= 1 and (most is None or value <= most)):
        _refuse(name, value, meaning)


def _refuse(name: str, value: Any, meaning: str) -> None:
    raise InvalidOptionError(f"speculative_config: {name}={value!r} is not allowed: {name} is {meaning}.")
