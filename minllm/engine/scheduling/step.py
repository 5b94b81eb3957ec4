"""A Step: what the model computes in one forward. It is the whole interface between the scheduler and the runner.

A step is a list of spans, each some consecutive tokens of one sequence. A decode step of a sequence, a chunk of its prompt, the whole
prompt and a verification of drafted tokens are all spans, and one step mixes them.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from minllm.engine.requests.sequence import Sequence


class Span(NamedTuple):
    """Tokens `start` to `start + length` of a sequence; this step computes their keys and values.

    decodes: the first token is the newest one, which an earlier step has sampled and the host may not know yet, and drafts may follow it;
    all are read from the sequence's slot on the device. Otherwise the host knows the tokens. sampled: the sequences that get their next
    token from the last row's logits, or with drafts from those of all rows: the sequence itself, and further completions of its prompt;
    none if more of the prompt follows.
    """

    sequence: Sequence
    start: int
    length: int
    decodes: bool
    sampled: tuple[Sequence, ...]


class Verified(NamedTuple):
    """The result of verifying a step's drafts, for each sequence of `Step.sampled`."""

    counts: list[int]  # new tokens: the accepted drafts plus one
    num_drafts: list[int]  # drafts in the sequence's slot for the next step


@dataclass(slots=True)
class Step:
    """The spans of one forward, decodes first, and what must be prepared before it."""

    spans: list[Span] = field(default_factory=list)
    entered: list[Sequence] = field(default_factory=list)  # sequences whose slots are rewritten
    grown: list[tuple[Sequence, int]] = field(default_factory=list)  # (sequence, position from which its block table has changed)
    copies: list[tuple[int, int]] = field(default_factory=list)  # (source, destination) of blocks to copy before the forward
    local_copies: list[tuple[int, int]] = field(default_factory=list)  # the same of local blocks (cache/window_blocks.py)
    forks: list[tuple[int, int]] = field(default_factory=list)  # (source, destination) slots of rings to copy before the forward
    preempts: bool = False  # a sequence was preempted for this step, so none may enter it
    makes_drafts: bool = True  # whether this step makes drafts for the next one, if the engine speculates
    unseen: list[Span] = field(default_factory=list)  # tokens that the draft model has not computed, because it paused

    @property
    def num_tokens(self) -> int:
        """The number of tokens computed."""
        return sum(span.length for span in self.spans)

    @property
    def num_decodes(self) -> int:
        """The number of spans that decode; they come first."""
        return sum(span.decodes for span in self.spans)

    @property
    def sampled(self) -> list[Sequence]:
        """The sequences that get a token, in the order of the rows of the result."""
        return [sequence for span in self.spans for sequence in span.sampled]
