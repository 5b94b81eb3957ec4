"""Parameters of a request: how tokens are chosen and where the text ends. Names, defaults and limits are vLLM's."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from minllm.engine.requests.parameter_checks import biases, flag, functions, integer, real, refuse, strings, token_ids
from minllm.engine.requests.structured_outputs import StructuredOutputsParams
from minllm.errors import InvalidRequestError, shown

if TYPE_CHECKING:
    import numpy as np

MAX_LOGPROBS = 20  # log-probabilities of the whole vocabulary at every step would fill the host's memory
MAX_STOP_STRINGS = 64
MAX_BAD_WORDS = 1024
MAX_BAD_WORD = 256  # characters: for each of them, the words are searched before every token
MAX_COMPLETIONS = 1024
MIN_TEMPERATURE = 0.01  # a smaller nonzero temperature would overflow the scaled logits
REPETITION_PENALTIES = 1e-45, 1e38  # in float32 a smaller one is 0 and a larger one infinite
MAX_LOGIT_BIAS = 100.0  # OpenAI's limit, to which vLLM's server clamps

LogitsProcessor = Callable[[list[int], "np.ndarray"], "np.ndarray"]


@dataclass(frozen=True)
class SamplingParams:
    """The options of one request, all checked here; InvalidRequestError names the first wrong value.

    n: number of completions of the prompt, each with its own seed; the prompt is computed and cached once for all of them.
    best_of: generate this many completions, at least n, and return the n of the highest cumulative log-probability; None is n.
    temperature: divides the logits; 0 takes the likeliest token each time (greedy), 2 is the highest allowed.
    top_p: sample among the likeliest tokens whose probabilities sum to at least this, among those that min_p and top_k keep; 1 keeps all.
        Tokens exactly as likely as the last one are kept too, with top_k as well.
    top_k: sample among this many likeliest tokens; 0 or -1 keeps all.
    min_p: drop tokens less likely than this fraction of the likeliest one's probability, after temperature; 0 drops none.
    repetition_penalty: above 1 makes tokens in the prompt or the output less likely, below 1 more likely; 1 is off.
    presence_penalty: subtracted once from the logit of every token in the output, from -2 to 2.
    frequency_penalty: subtracted from the logit of a token once per occurrence in the output, from -2 to 2.
    logit_bias: numbers from -100 to 100, added to the logits of these token ids; in practice -100 bans a token and 100 forces it.
    allowed_token_ids: only these ids are ever chosen, so the text ends early only if an id that ends it is among them; None allows all.
    bad_words: texts that the output never contains, within longer words too, however they are spelled in tokens; white space before a word
        is ignored. At most 1,024 words of 256 characters each. Slow, as logits_processors are.
    structured_outputs: a StructuredOutputsParams, which says what the whole output must be: JSON of a schema, a match of a regular
        expression, one of several strings, or a text of a grammar. max_tokens and stop strings may end it early.
    logits_processors: functions f(output_token_ids, logits) -> logits, float32 [vocab], called in order before every token. Slow: the
        logits go to the host and back at every step.
    seed: makes the text reproducible in any batch; without one, it is drawn from the engine's own seed.
    max_tokens: the most tokens to generate; None allows as many as the model's context does, 0 only scores the prompt.
    min_tokens: end-of-sequence and stop ids are banned, and stop strings ignored, until this many tokens have been generated.
    stop: a string or several; the text ends before the first one that appears.
    stop_token_ids: ids that end the text, besides the model's own end-of-sequence ids.
    ignore_eos: continue past the model's end-of-sequence ids.
    logprobs: return log-probabilities of this many likeliest tokens at every step, and of the chosen one, before any option above.
    prompt_logprobs: return those of the likeliest tokens at every position of the prompt, and of its own token; the first has none.
    truncate_prompt_tokens: use at most this many tokens of the prompt, the last ones of its text and the special tokens around it, such as
        BOS; -1 uses as many as leave room for max_tokens in the model's context.
    detokenize: whether the output has a text; False saves the time of decoding and excludes stop strings.
    skip_special_tokens: leave tokens such as <|eot_id|> out of the text.
    include_stop_str_in_output: end the text after the stop string or token rather than before it.
    """

    n: int = 1
    best_of: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | dict[str, float] | None = field(default=None, hash=False)
    allowed_token_ids: list[int] | tuple[int, ...] | None = None
    bad_words: str | list[str] | tuple[str, ...] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    logits_processors: list[LogitsProcessor] | tuple[LogitsProcessor, ...] | None = field(default=None, hash=False)
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | list[str] | tuple[str, ...] | None = None
    stop_token_ids: list[int] | tuple[int, ...] | None = None
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        return strings("stop", self.stop)

    @property
    def banned_texts(self) -> tuple[str, ...]:
        """`bad_words` as a tuple."""
        return strings("bad_words", self.bad_words)

    def __post_init__(self) -> None:
        checked = {**self._checked_sampling(), **self._checked_tokens(), **self._checked_limits(), **self._checked_stops()}
        for name in ("ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output"):
            flag(name, getattr(self, name))
        if checked["stop"] and not self.detokenize:
            refuse("stop", self.stop, "None with detokenize=False", "stop strings are looked for in the text")
        for name, value in checked.items():
            object.__setattr__(self, name, value)  # frozen for users; values are normalised here

    def _checked_sampling(self) -> dict[str, Any]:
        temperature = real("temperature", self.temperature, 0.0, 2.0, "a number from 0 (greedy) to 2")
        return {
            "temperature": max(temperature, MIN_TEMPERATURE) if temperature else 0.0,
            "top_p": real("top_p", self.top_p, 0.0, 1.0, "a number above 0 and at most 1 (1 keeps all tokens)", low_is_allowed=False),
            "top_k": max(0, integer("top_k", self.top_k, -1, None, "an integer of at least 1, or 0 or -1 to keep all tokens")),
            "min_p": real("min_p", self.min_p, 0.0, 1.0, "a number from 0 (off) to 1"),
            "repetition_penalty": real(
                "repetition_penalty", self.repetition_penalty, *REPETITION_PENALTIES, "a number from 1e-45 to 1e38 (1 is off)"
            ),
            "presence_penalty": real("presence_penalty", self.presence_penalty, -2.0, 2.0, "a number from -2 to 2 (0 is off)"),
            "frequency_penalty": real("frequency_penalty", self.frequency_penalty, -2.0, 2.0, "a number from -2 to 2 (0 is off)"),
            "seed": None if self.seed is None else integer("seed", self.seed, 0, 2**64 - 1, "None or an integer from 0 to 2**64 - 1"),
        }

    def _checked_tokens(self) -> dict[str, Any]:
        """The parameters that make single tokens likelier, less likely, or impossible."""
        allowed = None if self.allowed_token_ids is None else token_ids("allowed_token_ids", self.allowed_token_ids)
        if allowed == ():
            refuse("allowed_token_ids", self.allowed_token_ids, "None or a list of at least one token id", "no token could be chosen")
        words = strings("bad_words", self.bad_words)
        if any(not word.strip() or not _is_unicode(word) for word in words):
            refuse("bad_words", self.bad_words, "made of valid Unicode strings that are more than white space")
        if len(words) > MAX_BAD_WORDS:
            raise InvalidRequestError(f"{len(words)} bad_words were given and at most {MAX_BAD_WORDS} are allowed: drop some")
        if (longest := max(map(len, words), default=0)) > MAX_BAD_WORD:
            raise InvalidRequestError(f"bad_words holds one of {longest} characters, and at most {MAX_BAD_WORD} are allowed: shorten it")
        return {
            "logit_bias": biases("logit_bias", self.logit_bias, MAX_LOGIT_BIAS),
            "allowed_token_ids": allowed,
            "bad_words": words,
            "structured_outputs": self._checked_structure(),
            "logits_processors": functions("logits_processors", self.logits_processors),
        }

    def _checked_structure(self) -> StructuredOutputsParams | None:
        if not isinstance(self.structured_outputs, StructuredOutputsParams | None):
            refuse("structured_outputs", self.structured_outputs, "None or a StructuredOutputsParams(json=...)")
        return self.structured_outputs

    def _checked_limits(self) -> dict[str, Any]:
        n = integer("n", self.n, 1, MAX_COMPLETIONS, f"an integer from 1 to {MAX_COMPLETIONS}")
        if n > 1 and self.is_greedy:
            refuse("n", n, "1 with temperature=0", "greedy decoding gives the same text every time; raise the temperature")
        min_tokens = integer("min_tokens", self.min_tokens, 0, None, "an integer of at least 0")
        max_tokens = self.max_tokens
        if max_tokens is not None:
            max_tokens = integer("max_tokens", max_tokens, 0, None, "an integer of at least 0, or None for as many as the model allows")
            if min_tokens > max_tokens:
                refuse("min_tokens", min_tokens, f"at most max_tokens={shown(max_tokens)}", "raise max_tokens or lower min_tokens")
        return {
            "n": n,
            "best_of": self._checked_best_of(n),
            "min_tokens": min_tokens,
            "max_tokens": max_tokens,
            "logprobs": _number_of_logprobs("logprobs", self.logprobs),
            "prompt_logprobs": _number_of_logprobs("prompt_logprobs", self.prompt_logprobs),
            "truncate_prompt_tokens": self._checked_truncation(),
        }

    def _checked_best_of(self, n: int) -> int | None:
        if self.best_of is None:
            return None
        best_of = integer("best_of", self.best_of, n, MAX_COMPLETIONS, f"None or an integer from n={n} to {MAX_COMPLETIONS}")
        if best_of > 1 and self.is_greedy:
            refuse("best_of", best_of, "1 with temperature=0", "greedy decoding gives the same text every time; raise the temperature")
        return best_of

    def _checked_truncation(self) -> int | None:
        if self.truncate_prompt_tokens is None:
            return None
        allowed = "None, an integer of at least 1, or -1 for what fits the model's context"
        length = integer("truncate_prompt_tokens", self.truncate_prompt_tokens, -1, None, allowed)
        return length if length else refuse("truncate_prompt_tokens", length, allowed)

    def _checked_stops(self) -> dict[str, Any]:
        stop = strings("stop", self.stop)
        if "" in stop:
            refuse("stop", self.stop, "made of strings that are not empty", "an empty string would end the text before it begins")
        if len(stop) > MAX_STOP_STRINGS:
            raise InvalidRequestError(f"{len(stop)} stop strings were given and at most {MAX_STOP_STRINGS} are allowed: drop some")
        return {"stop": stop, "stop_token_ids": token_ids("stop_token_ids", self.stop_token_ids)}

    def with_seed(self, seed: int) -> "SamplingParams":
        """A copy with this seed, an integer from 0 to 2**64 - 1. Nothing is checked again."""
        changed = copy.copy(self)
        object.__setattr__(changed, "seed", seed)
        return changed

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken each time."""
        return self.temperature == 0.0

    @property
    def num_generated(self) -> int:
        """The number of completions to generate, of which n are returned."""
        return self.n if self.best_of is None else self.best_of


def _number_of_logprobs(name: str, value: object) -> int | None:
    return None if value is None else integer(name, value, 0, MAX_LOGPROBS, f"None or an integer from 0 to {MAX_LOGPROBS}")


def _is_unicode(text: str) -> bool:
    """Whether a text can be encoded; one with a lone surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
