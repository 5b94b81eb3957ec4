"""A Step as rank 0 sends it to the others: the fields of its sequences and of the cache's policy that a runner reads.

A sequence that only decodes takes a few numbers, because its tokens lie in its slot on every rank. A sequence that enters a slot is sent
with its parameters, tokens and block table, a chunk of a prompt with its tokens, a sequence that has grown with its block table.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from minllm.cache.policy import CachePolicy
from minllm.engine.requests.grammar import masks_of
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.engine.requests.sequence import Sequence
from minllm.engine.scheduling.step import Span, Step


@dataclass(eq=False, slots=True)
class SequenceView:
    """The attributes of a Sequence that a runner reads in one step, with the same names; others keep their defaults."""

    slot: int
    num_tokens: int
    has_processors: bool
    needs_logprobs: bool
    scores_prompt: bool
    scores_processed: bool
    params: SamplingParams | None = None
    prompt_token_ids: list[int] = field(default_factory=list)
    output_token_ids: list[int] = field(default_factory=list)
    ending_token_ids: frozenset[int] = frozenset()
    banned_token_ids: tuple[int, ...] = ()
    first: int = 0  # position of the first of `tokens`
    tokens: list[int] = field(default_factory=list)
    table: list[int] = field(default_factory=list)
    room: int = 0
    grammar: "PublishedMasks | None" = None
    is_finished: bool = False

    @property
    def logits_processors(self) -> tuple[bool, ...]:
        """Not empty if rank 0 changes the logits on the host; the functions themselves stay there."""
        return (True,) if self.has_processors else ()

    def token_ids(self, start: int, stop: int) -> list[int]:
        """Tokens `start` to `stop`, which must have been sent."""
        return self.tokens[start - self.first : stop - self.first]


@dataclass(eq=False, slots=True)
class PublishedMasks:
    """The part of a Grammar that a runner reads in one step; rank 0 alone follows the grammar."""

    masks: np.ndarray  # int32 [1 and drafts, words]
    drafts: list[int] = field(default_factory=list)

    @property
    def grammars(self) -> type["PublishedMasks"]:
        """What fills masks."""
        return PublishedMasks

    @staticmethod
    def fill(places: list[tuple["PublishedMasks", list[int]]]) -> np.ndarray:
        """The masks of all places and their drafts, as rank 0 has filled them."""
        return np.concatenate([place.masks for place, _ in places])


class PublishedTables:
    """The part of a CachePolicy that a runner reads, for sequences sent with their block tables."""

    def __init__(self, block_size: int):
        self.block_size = block_size

    def table(self, sequence: SequenceView) -> list[int]:
        """The block table that was sent."""
        return sequence.table

    def room(self, sequence: SequenceView) -> int:
        """The room that was sent."""
        return sequence.room


def published(step: Step, policy: CachePolicy, reads_room: bool) -> Step:
    """The step with a SequenceView for every sequence; it can be pickled. reads_room: whether the engine speculates."""
    views: dict[int, SequenceView] = {}

    def view(sequence: Sequence) -> Any:
        """The SequenceView, made once, that stands in a published step where others have the Sequence."""
        if id(sequence) not in views:
            views[id(sequence)] = _view(sequence)
        return views[id(sequence)]

    for sequence in step.entered:
        _enter(view(sequence), sequence)
    for span in step.spans:
        if not span.decodes:
            _show_tokens(view(span.sequence), span)
    for sequence in (*step.entered, *(one for one, _ in step.grown), *(span.sequence for span in step.spans if not span.decodes)):
        view(sequence).table = policy.table(sequence)
    for span in step.spans:
        for sequence in span.sampled:
            if sequence.grammar is not None:
                view(sequence).grammar = PublishedMasks(masks_of([(sequence.grammar, span.length - 1 if span.decodes else 0)]))
    if reads_room:
        for sequence in step.sampled:
            view(sequence).room = policy.room(sequence)
    spans = [span._replace(sequence=view(span.sequence), sampled=tuple(map(view, span.sampled))) for span in step.spans]
    grown = [(view(sequence), position) for sequence, position in step.grown]
    return replace(step, spans=spans, entered=list(map(view, step.entered)), grown=grown)


def _view(sequence: Sequence) -> SequenceView:
    """The view with the attributes that every step reads."""
    found = SequenceView(
        sequence.slot, sequence.num_tokens, bool(sequence.logits_processors), sequence.needs_logprobs, sequence.scores_prompt,
        sequence.scores_processed,
    )  # fmt: skip
    if found.needs_logprobs or found.scores_prompt:
        found.params = _without_functions(sequence.params)
    return found


def _enter(view: SequenceView, sequence: Sequence) -> None:
    """Add the attributes with which the sequence's slot is filled."""
    view.params = _without_functions(sequence.params)
    view.prompt_token_ids, view.output_token_ids = sequence.prompt_token_ids, list(sequence.output_token_ids)
    view.ending_token_ids, view.banned_token_ids = sequence.ending_token_ids, sequence.banned_token_ids
    view.tokens = sequence.token_ids(0, sequence.num_tokens)


def _show_tokens(view: SequenceView, span: Span) -> None:
    """Add a span's tokens, and the token after them, which prompt log-probabilities need."""
    if not view.tokens:
        view.first = span.start
        view.tokens = span.sequence.token_ids(span.start, min(span.start + span.length + 1, span.sequence.num_tokens))


def _without_functions(params: SamplingParams) -> SamplingParams:
    """The parameters without logits processors, which cannot be sent."""
    return replace(params, logits_processors=None) if params.logits_processors else params
