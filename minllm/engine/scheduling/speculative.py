"""The scheduler's side of speculative decoding: how many drafts of each sequence a step verifies, and how many were accepted.

A verification is a span that decodes, of 1 + k tokens: the newest one and k drafts, which the device holds in the sequence's slot. The
scheduler plans as if all of them were accepted, because the next step may be planned before the tokens of this one are known: until then
`num_computed_tokens` is an upper bound, and `take` subtracts rejected tokens. Each span yields at least one token. In a tree of drafts
only one path is accepted: a verification of the first nodes yields at most as many tokens as their longest path has.

Source: Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding", ICML 2023, section 2.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from minllm.engine.requests.sequence import NO_SLOT, Sequence
from minllm.engine.scheduling.draft_pauses import HOPE, DraftPauses
from minllm.engine.scheduling.kv_cache_manager import KVCacheManager
from minllm.engine.scheduling.step import Span, Verified
from minllm.kernels.speculation.token_tree import TokenTree

PROBE = 32  # steps between probes; all sequences probe in one step, because many steps with a surplus row cost more than a few long ones
MEMORY = 0.1  # weight of one draft in the running estimate of a sequence's acceptance


@dataclass
class SpeculationCounts:
    """Counts since the engine was made; vLLM's names follow "spec_decode_" in EngineStats."""

    num_drafts: int = 0  # verifications with at least one draft
    num_draft_tokens: int = 0
    num_tried_tokens: int = 0  # drafts up to the first wrong one of each verification; later ones carry no information
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)  # entry i: verifications that accepted more than i drafts

    def add(self, drafted: int, accepted: int, longest: int) -> None:
        """Count a verification of `drafted` drafts, of which at most `longest` could be accepted and `accepted` were."""
        self.num_drafts += 1
        self.num_draft_tokens += drafted
        self.num_tried_tokens += min(accepted + 1, longest)
        self.num_accepted_tokens += accepted
        missing = longest - len(self.num_accepted_tokens_per_pos)
        self.num_accepted_tokens_per_pos += [0] * missing
        for position in range(accepted):
            self.num_accepted_tokens_per_pos[position] += 1


@dataclass(slots=True)
class Drafted:
    """The host's record of a sequence's drafts."""

    num_drafts: int = 0  # drafts in the sequence's slot, as far as the host has read them
    num_preemptions: int = 0  # the sequence's preemptions when its drafts were made: a later one drops the drafts
    acceptance: float = HOPE  # estimated share of the sequence's drafts that are accepted
    num_seen: int | None = None  # number of leading tokens that the draft model has surely computed; None: the prompt's
    num_pauses: int = 0  # pauses ended when the sequence last took part in a step that made drafts


class Speculation:
    """Decides how many drafts are verified. num_speculative_tokens: the maximum per sequence.

    tree: the tree of drafts; a verification computes its first nodes. None if each draft follows the one before it.
    needs_room: whether drafting writes keys and values for the drafted tokens, behind those that a step verifies. best: (acceptance rate,
    number of sequences that decode) -> the best number of drafts (costs/speculation.py); None verifies all drafts. If the best number is 0,
    a sequence still tries one draft in every PROBE-th step, because its text may change. trial_interval: for a draft model with pauses
    (DraftPauses); None makes drafts in every step.
    """

    def __init__(
        self, num_speculative_tokens: int, needs_room: bool = False, best: Callable[[float, int], int] | None = None,
        tree: TokenTree | None = None, trial_interval: Callable[[int], int | None] | None = None, accepts_all: bool = False,
    ):  # fmt: skip
        """accepts_all: drafts may be accepted that the model would not choose."""
        self.num_speculative_tokens, self.needs_room, self._best, self.tree = num_speculative_tokens, needs_room, best, tree
        self.follows_grammars = tree is None and not accepts_all  # masks are filled along one path of drafts, which the masks verify
        self._pauses = None if trial_interval is None else DraftPauses(self._best_of, trial_interval)
        self._found: dict[tuple[int, int], int] = {}  # (twentieths of acceptance, sequences) -> best number of drafts
        self._drafted: WeakKeyDictionary[Sequence, Drafted] = WeakKeyDictionary()
        self._num_steps = 0
        self.counts = SpeculationCounts()

    def most_new(self, num_rows: int) -> int:
        """The most new tokens that a verification of this number of rows yields."""
        return num_rows if self.tree is None else self.tree.most_new(num_rows)

    def drafted(self, sequence: Sequence) -> Drafted:
        """The record of a sequence's drafts; made if there is none, and without drafts after a preemption."""
        found = self._drafted.get(sequence)
        if found is None:
            found = self._drafted[sequence] = Drafted(acceptance=HOPE if self._pauses is None else self._pauses.acceptance)
        if found.num_preemptions != sequence.num_preemptions:
            found.num_drafts, found.num_preemptions = 0, sequence.num_preemptions
        return found

    @property
    def makes_drafts(self) -> bool:
        """Whether the planned step makes drafts for the next one."""
        return self._pauses is None or self._pauses.makes_drafts

    def plan(self, num_sequences: int) -> bool:
        """Decide whether the next step, in which this number of sequences decode, makes drafts."""
        if self._pauses is not None:
            self._pauses.plan(num_sequences)
        return self.makes_drafts

    def unseen(self, span: Span) -> Span | None:
        """The tokens of a decoding sequence that the draft model must compute before it makes drafts; None if there are none."""
        if self._pauses is None:
            return None
        sequence, drafted = span.sequence, self.drafted(span.sequence)
        first = sequence.num_prefill_tokens if drafted.num_seen is None else drafted.num_seen
        drafted.num_seen = sequence.num_tokens - 1  # the host may know fewer tokens than there are before the span, never more
        if drafted.num_pauses == self._pauses.num_ended:
            return None
        drafted.num_pauses, length = self._pauses.num_ended, min(span.start, sequence.num_tokens) - first
        return Span(sequence, first, length, False, ()) if length > 0 else None

    def num_tokens(self, sequence: Sequence, num_drafts: int) -> int:
        """The number of tokens of a sequence that need room in a step that verifies this number of drafts and makes new ones."""
        if not self.needs_room or self._excludes(sequence):
            return 1 + num_drafts
        if self.tree is not None:
            return 1 + num_drafts + self.num_speculative_tokens
        return min(1 + num_drafts + self.num_speculative_tokens, sequence.num_reserved_tokens - sequence.num_computed_tokens)

    def num_drafts(self, sequence: Sequence, num_sequences: int = 1) -> int:
        """The number of drafts of a sequence to verify in the next step, in which `num_sequences` run."""
        if self._excludes(sequence) or (self._pauses is not None and not self._pauses.made_drafts):
            return 0
        # A step that is not read yet leaves drafts in the slot; their number is known only on the device.
        drafted = self.drafted(sequence)
        found = self.num_speculative_tokens if sequence.num_in_flight else drafted.num_drafts
        needed = sequence.num_reserved_tokens - sequence.num_computed_tokens - 2  # the last token is never computed
        if self.tree is not None:
            return found if needed > 0 else 0
        return max(0, min(found, self._wanted(drafted.acceptance, num_sequences), needed))

    def _wanted(self, acceptance: float, num_sequences: int) -> int:
        """The number of drafts that is worth verifying."""
        if self._best is None:
            return self.num_speculative_tokens
        if self._pauses is not None and self._pauses.is_trial:
            return self.num_speculative_tokens
        tries = self._pauses is not None or self._num_steps % PROBE == 0  # a draft model's drafts are made in any case
        return max(self._best_of(acceptance, num_sequences), int(tries))

    def _best_of(self, acceptance: float, num_sequences: int) -> int:
        """The best number of drafts, found once per twentieth of acceptance and power of two of sequences."""
        rate, sequences = round(20 * acceptance), 1 << (num_sequences - 1).bit_length()
        if (rate, sequences) not in self._found:
            self._found[rate, sequences] = self.num_speculative_tokens if self._best is None else self._best(rate / 20, sequences)
        return self._found[rate, sequences]

    def _excludes(self, sequence: Sequence) -> bool:
        """Whether the host decides between two tokens of a sequence."""
        cannot_follow = sequence.grammar is not None and not self.follows_grammars
        return bool(sequence.logits_processors) or sequence.search is not None or cannot_follow

    def take(self, spans: list[Span], verified: Verified, memory: KVCacheManager) -> None:
        """Count the tokens that a step's sequences got, update their acceptance, and free the room of rejected drafts."""
        self._num_steps += 1
        owners = [(span, sequence) for span in spans for sequence in span.sampled]
        for (span, sequence), count, num_drafts in zip(owners, verified.counts, verified.num_drafts, strict=True):
            sequence.num_in_flight += count - 1  # Scheduler.take subtracts 1 per token
            drafted = self.drafted(sequence)
            most = self.most_new(span.length)
            if span.decodes and span.length > 1:
                self.counts.add(span.length - 1, count - 1, most - 1)
                tried = min(count, span.length - 1)  # drafts behind the first wrong one carry no information
                weight = 1 - (1 - MEMORY) ** tried
                drafted.acceptance += weight * ((count - 1) / tried - drafted.acceptance)
                if self._pauses is not None:
                    self._pauses.count(tried, count - 1)
            if sequence.slot != NO_SLOT:
                drafted.num_drafts = num_drafts
                if span.decodes and count < span.length:
                    sequence.num_computed_tokens -= most - count
                    # A launched step may still write nodes of a tree to the freed blocks. Their next owner writes later, because steps
                    # run in the order in which they are launched.
                    memory.trim(sequence)
