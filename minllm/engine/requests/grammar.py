"""Grammars: which tokens may come next in a structured output.

llguidance (https://github.com/guidance-ai/llguidance) compiles a grammar and walks through the output byte by byte. Before each token it
writes a mask of one bit per token of the vocabulary:

    bit v of the mask = 1    if the output so far, followed by the bytes of token v, begins a text of the grammar
                             (for an end-of-sequence id: if the output so far is such a text)

Token v's bit is bit v mod 32 of word v // 32. Once the text can only end, the ids that end a sequence are the only ones left.
"""

import functools
import itertools
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from minllm.engine.requests.schema_limits import check_numbers
from minllm.engine.requests.structured_outputs import StructuredOutputsParams
from minllm.errors import Contained, InvalidOptionError, InvalidRequestError, SamplingError, shown
from minllm.models.tokenizer import Tokenizer

LONGEST_MESSAGE = 400  # characters
KEPT = 64  # compiled grammars that are kept for later requests
STACK_BYTES = 512 * 2**20  # llguidance compiles recursively, rule by rule; the longest description needs a quarter of this address space
MOST_ITEMS = 10_000  # items of the parser per byte of output; an object of 2,000 optional properties needs 8,000

_starting = threading.Lock()


class Grammar:
    """A sequence's place in its grammar. description: for messages. drafts: guesses of the next tokens, for the next step."""

    def __init__(self, matcher: Any, description: StructuredOutputsParams, grammars: "Grammars"):
        self.matcher, self.description, self.grammars = matcher, description, grammars
        self.drafts: list[int] = []

    def accept(self, token_id: int) -> None:
        """Go on behind this token of the output.

        Raises SamplingError if the grammar excludes it, or if llguidance gave up at its mask: the grammar exceeds a limit, or no token of
        the vocabulary continues the text.
        """
        self.matcher.consume_token(token_id)
        if self.matcher.is_error():  # after which llguidance takes an end for accepted
            found = self.matcher.get_error()
            why = "no token of the vocabulary continues the text" if "NoExtension" in found else f"llguidance says {_first_part(found)}"
            raise SamplingError(f"{self.description} cannot be followed further: {why}")


class Grammars:
    """The grammars of an engine's requests, over its vocabulary. Raises InvalidOptionError if llguidance is not installed."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: frozenset[int], is_late: bool = False):
        """eos_token_ids: the model's own; a grammar's end needs one of them.

        is_late: the runner fills a step's masks when the tokens of the step before have been taken, so that its forward can be launched
        earlier.
        """
        self.is_late = is_late
        ends = frozenset(token_id for token_id in eos_token_ids if token_id < vocab_size)
        self._end = mask_of(ends, vocab_size)
        self._tokenizer: Any = _vocabulary(tokenizer, vocab_size, ends) if ends else None
        self._compiled = functools.lru_cache(KEPT)(self._compile)

    @Contained()
    def start(self, params: StructuredOutputsParams) -> Grammar:
        """The beginning of a grammar. Raises InvalidRequestError, with llguidance's message, for a description that it refuses."""
        if self._tokenizer is None:
            raise InvalidRequestError(f"{params} cannot be followed: this model has no end-of-sequence id to end the text with.")
        return Grammar(self._compiled(params.as_lark(), str(params)).deep_copy(), params, self)

    def fill(self, places: list[tuple[Grammar, list[int]]]) -> np.ndarray:
        """The masks of the next token of each place, and of the token behind each of its drafts: int32 [places and drafts, words].

        Behind a draft that its grammar excludes, only the end is allowed. A place that llguidance gives up gets a mask too; its next
        `Grammar.accept` raises the error.
        """
        from llguidance.numpy import fill_next_token_bitmask, fill_next_token_bitmask_par, fill_next_token_bitmask_par_with_draft_tokens

        masks = np.tile(self._end, (sum(1 + len(drafts) for _, drafts in places), 1))
        if len(masks) == 1:
            fill_next_token_bitmask(places[0][0].matcher, masks)
            return masks
        plain, drafted, row, num_tokens = [], [], 0, 32 * masks.shape[1]
        for grammar, drafts in places:
            if tokens := list(itertools.takewhile(lambda token: 0 <= token < num_tokens, drafts)):
                drafted.append((grammar.matcher, row, tokens))
            else:
                plain.append((grammar.matcher, row))
            row += 1 + len(drafts)
        if plain:
            fill_next_token_bitmask_par(self._executor, plain, masks)
        if drafted:
            fill_next_token_bitmask_par_with_draft_tokens(self._executor, drafted, masks)
        return masks

    def _compile(self, lark: str, name: str) -> Any:
        """The matcher of a grammar. name: the description, for messages."""
        from llguidance import LLMatcher, LLParserLimits

        check_numbers(lark, name)
        limits = LLParserLimits(max_items_in_row=MOST_ITEMS, verbose_errors=False)
        matcher = _on_a_long_stack(lambda: LLMatcher(self._tokenizer, lark, log_level=0, limits=limits))
        if matcher.is_error():
            raise InvalidRequestError(f"{name} is not allowed: llguidance says {_first_part(matcher.get_error())}")
        return matcher

    @functools.cached_property
    def _executor(self) -> Any:
        """llguidance's threads."""
        from llguidance import LLExecutor

        return LLExecutor()


def masks_of(places: list[tuple[Grammar, int]]) -> np.ndarray:
    """The masks of the next token of each grammar and of the tokens behind this number of its drafts: int32 [all of them, words]."""
    return places[0][0].grammars.fill([(grammar, grammar.drafts[:num_drafts]) for grammar, num_drafts in places])


def mask_of(token_ids: frozenset[int], vocab_size: int) -> np.ndarray:
    """The mask that allows these tokens alone, int32 [words]."""
    bits = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


class _Vocabulary:
    """A tokenizer as llguidance takes it."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: frozenset[int]):
        texts = list(tokenizer.token_texts.texts[:vocab_size])
        self._encode = tokenizer.encode
        self.tokens = texts + [b""] * (vocab_size - len(texts))
        self.eos_token_id = min(eos_token_ids)
        self.special_token_ids = sorted(eos_token_ids | tokenizer.special_token_ids)

    def __call__(self, text: str) -> list[int]:
        return self._encode(text, add_special_tokens=False)


def _vocabulary(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: frozenset[int]) -> Any:
    try:
        from llguidance import LLTokenizer
    except ImportError as error:
        raise InvalidOptionError(
            "structured_outputs needs the package llguidance, which is not installed: pip install 'minllm[structured]'."
        ) from error
    vocabulary: Any = _Vocabulary(tokenizer, vocab_size, eos_token_ids)  # has what llguidance reads of its TokenizerWrapper
    return LLTokenizer(vocabulary, n_vocab=vocab_size, eos_token=sorted(eos_token_ids))


def _first_part(message: str) -> str:
    """llguidance's message without the excerpt of the grammar that follows, and without the place in it."""
    text = re.split(r"\n *1 \| ", message)[0]
    return shown(re.sub(r"^(at )?\d+\(\d+\): ", "", text).strip(), LONGEST_MESSAGE)


def _on_a_long_stack(work: Callable[[], Any]) -> Any:
    """The result of `work`, which a thread with a stack of STACK_BYTES computes."""
    found: list[Any] = []

    @Contained()
    def call() -> None:
        found.append(work())

    with _starting:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread = threading.Thread(target=call, name="compile a grammar")
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    return found[0]
