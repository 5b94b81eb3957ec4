"""The option speculative_config: the source of drafts, and how many are verified at a time. Names and defaults are vLLM's.

    {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}     the tokens that followed the newest tokens before
    {"model": "path/of/a/small/model", "num_speculative_tokens": 4}              the tokens of a smaller model with the same vocabulary
    {"model": .., "num_speculative_tokens": 3,
     "speculative_token_tree": "[(0,), (1,), (0, 0)]"}                           several of its tokens for one position
    {"method": "lookahead", "window": 8, "ngram_size": 4, "guess_set_size": 8}   n-grams that the model itself computes beside its text
"""  # fmt: skip

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minllm.errors import InvalidOptionError, KernelArgumentError

if TYPE_CHECKING:
    from minllm.kernels.speculation.token_tree import TokenTree

METHODS = ("ngram", "draft_model", "lookahead")
SAMPLE_METHODS = ("probabilistic", "greedy")
SCHEDULES = ("adaptive", "constant")
A_SPECULATIVE_CONFIG = 'None or a dictionary such as {"method": "ngram", "num_speculative_tokens": 4}'
LONGEST_NGRAM = 5  # tokens, if the option names neither limit
MOST_DRAFTS = 64
MOST_CHILDREN = 20  # per node of a tree: ops.log_probabilities finds at most 20 tokens
MOST_NODES = 256  # maximum rows of lookahead decoding
LOOKAHEAD = {"window": 8, "ngram_size": 4, "guess_set_size": 8}  # defaults of the options that only method="lookahead" has


@dataclass(frozen=True, kw_only=True)
class SpeculativeConfig:
    """The checked values of the option; InvalidOptionError names the first wrong one.

    method: "ngram" drafts the tokens that followed the last earlier occurrence of the newest tokens in prompt or output; "draft_model" runs
        a smaller model; "lookahead" verifies n-grams that the model itself has computed beside its text. None is "draft_model" if a model
        is given, else "ngram".
    num_speculative_tokens: the most drafts that a step verifies per sequence. Lookahead decoding derives it from W, N and G.
    num_speculative_tokens_schedule: "adaptive" chooses the number of drafts by acceptance and batch size, on a GPU with a data sheet in
        minllm, and pauses a draft model while the best number is 0; "constant" verifies all drafts in each step.
    model: the draft model, a directory or a GGUF file, with the same tokenizer; None is the draft of the bundled model.
    draft_sample_method: how a draft model chooses: "probabilistic" samples by the request's parameters, which is accepted most often;
        "greedy" takes the likeliest token, and text is that of decoding without drafts, seed for seed.
    speculative_token_tree: the drafts of a draft model as a tree, a list of paths: "[(0,), (1,), (0, 0)]" are the two likeliest tokens, and
        the likeliest one after the first of them. None is a chain.
    window, ngram_size, guess_set_size: W, N and G of lookahead decoding: columns of its window, tokens per n-gram, and the most n-grams
        that a step verifies.
    prompt_lookup_max, prompt_lookup_min: the most and the fewest newest tokens that must match; both 5 if neither is given; if only one is
        given, the other takes its value.
    synthetic_acceptance_rate: for benchmarks: each draft is accepted with this probability, independent of the model, so the text is
        meaningless; None lets the model decide.
    """

    num_speculative_tokens: int | None = None
    num_speculative_tokens_schedule: str = "adaptive"
    method: str | None = None
    model: str | Path | None = None
    draft_sample_method: str = "probabilistic"
    speculative_token_tree: str | None = None
    window: int | None = None
    ngram_size: int | None = None
    guess_set_size: int | None = None
    prompt_lookup_max: int | None = None
    prompt_lookup_min: int | None = None
    synthetic_acceptance_rate: float | None = None

    def __post_init__(self) -> None:
        self._default("method", "ngram" if self.model is None else "draft_model")
        choices = dict(method=METHODS, draft_sample_method=SAMPLE_METHODS, num_speculative_tokens_schedule=SCHEDULES)
        for name, names in choices.items():
            value = getattr(self, name)
            if not (isinstance(value, str) and value in names):
                _refuse(name, value, f"one of {', '.join(names)}")
        if not (self.model is None or isinstance(self.model, Path) or (isinstance(self.model, str) and self.model)):
            _refuse("model", self.model, "the path of a model directory or of a GGUF file")
        if self.model is not None and self.method != "draft_model":
            _refuse("model", self.model, f'None with method="{self.method}", which needs no model')
        self._check_lookahead()
        _check_integer("num_speculative_tokens", self.num_speculative_tokens, f"an integer from 1 to {self._most}", most=self._most)
        rate = self.synthetic_acceptance_rate
        if not (rate is None or (isinstance(rate, Real) and not isinstance(rate, bool) and 0 <= rate <= 1)):
            _refuse("synthetic_acceptance_rate", rate, "a number from 0 to 1, or None")
        self._check_tree()
        self._check_lookup()

    def _default(self, name: str, value: object) -> None:
        """Set a value that was not given."""
        if getattr(self, name) is None:
            object.__setattr__(self, name, value)

    def _check_lookahead(self) -> None:
        """Check W, N and G, and set the number of drafts that follows from them."""
        if self.method != "lookahead":
            for name in LOOKAHEAD:
                if getattr(self, name) is not None:
                    _refuse(name, getattr(self, name), f'None with method="{self.method}": it belongs to method="lookahead"')
            return
        if self.num_speculative_tokens is not None:
            meaning = f'None with method="lookahead", which has {", ".join(LOOKAHEAD)}'
            _refuse("num_speculative_tokens", self.num_speculative_tokens, meaning)
        for name, value in LOOKAHEAD.items():
            self._default(name, value)
            least = 2 if name == "ngram_size" else 1
            _check_integer(name, getattr(self, name), f"an integer of at least {least}", least=least)
        window, ngram_size, guess_set_size = self.lookahead_sizes
        rows = (ngram_size - 1) * (window + guess_set_size)
        if rows > MOST_NODES:
            given = f"window={window}, ngram_size={ngram_size}, guess_set_size={guess_set_size}"
            raise InvalidOptionError(
                f"speculative_config: {given} are not allowed together: (ngram_size - 1) * (window + guess_set_size) = {rows} rows of a "
                f"step; there may be {MOST_NODES}."
            )
        object.__setattr__(self, "num_speculative_tokens", rows - 1)

    def _check_tree(self) -> None:
        """Check the tree, and the values that exclude it."""
        name, text = "speculative_token_tree", self.speculative_token_tree
        if self.synthetic_acceptance_rate is not None and (text is not None or self.method == "lookahead"):
            meaning = "None with a tree of drafts: chance accepts chains"
            _refuse("synthetic_acceptance_rate", self.synthetic_acceptance_rate, meaning)
        if text is None:
            return
        if self.method != "draft_model":
            _refuse(name, text, f'None with method="{self.method}": a tree has drafts of a draft model')
        try:
            tree = self.tree
        except KernelArgumentError as error:
            raise InvalidOptionError(
                f"speculative_config: speculative_token_tree={text!r} is not allowed: {error}. Give the paths of all drafts as vLLM does, "
                'such as "[(0,), (1,), (0, 0)]".'
            ) from error
        assert tree is not None
        if len(tree) - 1 != self.num_speculative_tokens:
            meaning = f"{len(tree) - 1}, the number of paths of speculative_token_tree"
            _refuse("num_speculative_tokens", self.num_speculative_tokens, meaning)
        most = max(map(tree.parents.count, range(len(tree))))
        if most > MOST_CHILDREN:
            _refuse(name, text, f"a tree with up to {MOST_CHILDREN} drafts after a token, not {most}")

    def _check_lookup(self) -> None:
        """Check the lengths of n-grams to look up, and set their defaults."""
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

    @property
    def _most(self) -> int:
        """The maximum number of drafts per sequence and step."""
        return MOST_NODES if self.method == "lookahead" else MOST_DRAFTS

    @cached_property
    def tree(self) -> "TokenTree | None":
        """The tree of drafts; None if each draft follows the one before it."""
        from minllm.kernels.speculation.token_tree import TokenTree  # it needs NumPy, and the help of commands does without

        if self.method == "lookahead":
            return TokenTree.lookahead(*self.lookahead_sizes)
        return None if self.speculative_token_tree is None else TokenTree.parse(self.speculative_token_tree)

    @property
    def rows_beyond(self) -> int:
        """Cache slots that a sequence may need behind its last token: one for each node of a tree."""
        return 0 if self.tree is None else self.num_drafts

    @property
    def num_drafts(self) -> int:
        """The most drafts that a step verifies of each sequence."""
        return self.num_speculative_tokens or 0

    @property
    def lookahead_sizes(self) -> tuple[int, int, int]:
        """(window, ngram_size, guess_set_size) of lookahead decoding; 0 for other methods."""
        return self.window or 0, self.ngram_size or 0, self.guess_set_size or 0

    @property
    def lookup_sizes(self) -> tuple[int, int]:
        """(longest, shortest) n-gram that is looked up; 0 for other methods."""
        return self.prompt_lookup_max or 0, self.prompt_lookup_min or 0


def speculative_config(given: object) -> SpeculativeConfig | None:
    """The option, given as None, a dictionary or a SpeculativeConfig, as a SpeculativeConfig or None. Raises InvalidOptionError."""
    if given is None or isinstance(given, SpeculativeConfig):
        return given
    if not isinstance(given, Mapping):
        raise InvalidOptionError(f"speculative_config={given!r} is not allowed: give {A_SPECULATIVE_CONFIG}.")
    names = [field.name for field in fields(SpeculativeConfig)]
    for name in given:
        if name not in names:
            near = difflib.get_close_matches(str(name), names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"the names are {', '.join(names)}."
            raise InvalidOptionError(f"speculative_config has no {name!r}: {hint}")
    if "num_speculative_tokens" not in given and given.get("method") != "lookahead":
        raise InvalidOptionError("speculative_config needs num_speculative_tokens, the most drafts that a step verifies of each sequence.")
    return SpeculativeConfig(**given)


def _check_integer(name: str, value: Any, meaning: str, most: int | None = None, least: int = 1) -> None:
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if not (is_integer and value >= least and (most is None or value <= most)):
        _refuse(name, value, meaning)


def _refuse(name: str, value: object, meaning: str) -> None:
    raise InvalidOptionError(f"speculative_config: {name}={value!r} is not allowed: {name} is {meaning}.")
