"""A runner that only pretends, and a fake device that shows whether every key would lie where attention looks for it.

The cache holds one number per token: a hash of the token and of all tokens before it. So a block that another sequence computed, that was
copied too late, swapped in at the wrong place or never written shows at once. Slots are kept as on a device: a step that decodes reads its
newest token, its length and its block table from its slot alone.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from minllm.cache.hash_chain import HashChain
from minllm.cache.offload import SwapSpace
from minllm.cache.paged import PagedPolicy
from minllm.cache.prefix_sharing import PrefixSharingPolicy
from minllm.cache.radix_tree import RadixTree
from minllm.cache.transfers import HostTransfers
from minllm.engine.requests.output_text import NoText
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.engine.requests.sequence import NO_SLOT, Sequence
from minllm.engine.running.forward_result import ForwardResult
from minllm.engine.scheduling.kv_cache_manager import KVCacheManager
from minllm.engine.scheduling.length_prediction import LENGTH_PREDICTIONS
from minllm.engine.scheduling.policies import POLICIES
from minllm.engine.scheduling.preemption import Preemption
from minllm.engine.scheduling.queues import Queues, order
from minllm.engine.scheduling.scheduler import Scheduler
from minllm.engine.scheduling.speculative import Speculation
from minllm.engine.scheduling.step import Verified

BLOCK_SIZE = 4
EOS = 99
CACHES = {
    "paged": PagedPolicy,
    "hash chain": lambda blocks, size, nbytes: PrefixSharingPolicy(HashChain(size), blocks, size, nbytes),
    "radix tree": lambda blocks, size, nbytes: PrefixSharingPolicy(RadixTree(size), blocks, size, nbytes),
}


def chain(token_ids):
    """What the cache holds of each token: int64 [tokens]."""
    found, last = [], 17
    for token_id in token_ids:
        last = hash((last, token_id))
        found.append(last)
    return np.array(found, np.int64)


def scripted(name, prompt, tokens, max_tokens, n=1, salt="", priority=0, deadline=None, processors=()):
    """The sequences of a request whose completion i gets the tokens (t + i for t in `tokens`), then an end of sequence."""
    sequences = [
        Sequence(
            str(name),
            None,
            list(prompt),
            SamplingParams(n=n, max_tokens=max_tokens, seed=0),
            max_tokens,
            frozenset([EOS]),
            NoText(),
            index=index,
            cache_salt=salt,
            priority=priority,
            deadline=deadline,
            logits_processors=processors,
        )  # fmt: skip
        for index in range(n)
    ]
    for sequence in sequences:
        sequence.script = [token + sequence.index for token in tokens] + [EOS]
    sequences[0].siblings = sequences[1:]
    return sequences


def expected_tokens(sequence):
    """All tokens of a sequence that is not stopped from outside."""
    return sequence.script[: sequence.max_tokens]


@dataclass
class Slot:
    """A slot on the device."""

    newest: int
    length: int
    table: list[int]
    drafts: list[int] = field(default_factory=list)


@dataclass
class ScriptedRunner:
    """Executes steps on hashes. fails_at: the numbers of steps whose launch fails; lost: those whose results do not arrive.

    drafts: the most drafts that are made for a slot after each step, of which some are right; 0 for an engine that does not speculate.
    """

    policy: PagedPolicy
    cells: np.ndarray  # [num_blocks, block_size]
    max_num_seqs: int
    budget: int
    steps_ahead: int = 0
    fails_at: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()
    drafts: int = 0
    number: int = 0
    unread: int = 0
    most_unread: int = 0
    steps: list = field(default_factory=list)  # (name, index, tokens) of each span, for each step
    slots: dict[int, Slot] = field(default_factory=dict)

    def execute(self, step):
        """See ModelRunner."""
        self.number += 1
        self.check_step(step)
        self.steps.append([(span.sequence.request_id, span.sequence.index, span.length) for span in step.spans])
        if self.number in self.fails_at:
            raise RuntimeError(f"the launch of step {self.number} failed")
        for source, destination in step.copies:
            self.cells[destination] = self.cells[source]
        for sequence in step.entered:
            known = sequence.num_tokens
            self.slots[sequence.slot] = Slot(sequence.token_ids(known - 1, known)[0], known, self.policy.table(sequence))
        for sequence, position in step.grown:
            slot, first = self.slots[sequence.slot], position // BLOCK_SIZE
            slot.table = slot.table[:first] + self.policy.table(sequence)[first:]
        self.write(step.spans)
        rows = {span.sequence: span.length for span in step.spans if span.decodes}
        token_ids = [self.sample(sequence, rows.get(sequence, 1)) for sequence in step.sampled]
        num_drafts = [self.draft(sequence) for sequence in step.sampled]
        self.unread += 1
        self.most_unread = max(self.most_unread, self.unread)
        assert self.unread <= self.steps_ahead + 1
        verified = Verified(list(map(len, token_ids)), num_drafts) if self.drafts else None
        return [Pending(self, self.number, step.sampled, sum(token_ids, []), verified)]

    def check_step(self, step):
        """What every policy promises of every step."""
        assert step.spans and all(span.length >= 1 for span in step.spans)
        decodes = [span for span in step.spans if span.decodes]
        assert step.spans[: len(decodes)] == decodes and all(span.length <= 1 + self.drafts for span in decodes), "decodes come first"
        assert step.num_tokens <= max(self.budget, len(decodes) + 1), "only decodes may exceed the budget"
        names = [span.sequence for span in step.spans]
        assert len(set(names)) == len(names), "a sequence is in a step once"
        assert len(set(step.sampled)) == len(step.sampled)
        slots = [sequence.slot for sequence in {*names, *step.sampled, *step.entered}]
        assert len(set(slots)) == len(slots) <= self.max_num_seqs and NO_SLOT not in slots
        assert all(0 <= slot < self.max_num_seqs for slot in slots)

    def write(self, spans):
        """Compute the spans: write all of their keys, and then look for all that attention reads."""
        wanted, writers = [], {}
        for span in spans:
            sequence, tokens = span.sequence, self.tokens_of(span)
            table = self.table_of(span)[: -(-len(tokens) // BLOCK_SIZE)]
            assert table == self.policy.table(sequence)[: len(table)], "a block that the sequence does not own"
            assert len(table) * BLOCK_SIZE >= len(tokens), "written beyond its blocks"
            expected = chain(tokens)
            for position in range(len(tokens) - span.length, len(tokens)):
                block = table[position // BLOCK_SIZE]
                assert writers.setdefault(block, sequence) is sequence, "two sequences write one block"
                self.cells[block, position % BLOCK_SIZE] = expected[position]
            wanted.append((span, table, expected))
        for span, table, expected in wanted:
            found = self.cells[table].reshape(-1)[: len(expected)]
            assert np.array_equal(found, expected), f"{span.sequence} reads other keys than its own"

    def table_of(self, span):
        """The block table that the span's kernels read."""
        return self.slots[span.sequence.slot].table if span.decodes else self.policy.table(span.sequence)

    def tokens_of(self, span):
        """All tokens up to the span's end; the newest one of a decode, and the drafts after it, from its slot."""
        sequence, end = span.sequence, span.start + span.length
        if not span.decodes:
            assert end <= sequence.num_tokens, "a token of a prompt that nobody knows"
            return sequence.token_ids(0, end)
        slot = self.slots[sequence.slot]
        assert slot.length <= span.start + 1, "the host plans with an upper bound"
        assert slot.length == span.start + 1 or (self.drafts and sequence.num_in_flight > 1), "the slot's newest token is another one"
        tokens = (sequence.prompt_token_ids + sequence.script + [0] * end)[: slot.length]
        assert slot.newest == tokens[-1]
        return tokens + (slot.drafts + [0] * span.length)[: span.length - 1]

    def sample(self, sequence, rows):
        """The next tokens of a sequence, by what its slot says: one, and one more for each draft that is right."""
        slot, found = self.slots[sequence.slot], []
        drafts = (slot.drafts + [0] * rows)[: rows - 1]
        for row in range(rows):
            if row and drafts[row - 1] != found[-1]:
                break
            found.append(self.scripted(sequence, slot.length + row))
        slot.newest, slot.length = found[-1], slot.length + len(found)
        return found

    def scripted(self, sequence, position):
        """The token that the model chooses there."""
        made = position - len(sequence.prompt_token_ids)
        return sequence.script[made] if made < len(sequence.script) else 0

    def draft(self, sequence):
        """Leave drafts in a slot, and return their number; both depend on the slot's length."""
        slot = self.slots[sequence.slot]
        count = hash((slot.length, slot.newest, 3)) % (self.drafts + 1)
        right = hash((slot.length, slot.newest, 5)) % (self.drafts + 1)
        slot.drafts = [self.scripted(sequence, slot.length + i) if i < right else -1 for i in range(count)]
        return count


@dataclass
class Pending:
    """Results that the host learns when it waits for them."""

    runner: ScriptedRunner
    number: int
    sampled: list
    token_ids: list[int]
    verified: Verified | None

    def wait(self):
        """See PendingForward."""
        self.runner.unread -= 1
        if self.number in self.runner.lost:
            raise RuntimeError(f"the results of step {self.number} are lost")
        return ForwardResult(self.sampled, self.token_ids, None, [], self.verified)


def small_engine(
    blocks=8,
    seqs=4,
    budget=8,
    policy="split_fuse",
    prediction="none",
    preemption="recompute",
    cache="paged",
    ahead=0,
    chunks=6,
    drafts=0,
    **runner,
):
    """(scheduler, runner) over a cache of `blocks` blocks, with a swap space of `chunks` chunks of two blocks.

    cache: a name of CACHES, or what makes a policy. drafts: the most that are verified of each sequence.
    """
    cells = np.zeros((1, blocks, BLOCK_SIZE), np.int64)
    block_bytes = 8 * BLOCK_SIZE
    memory = CACHES.get(cache, cache)(blocks, BLOCK_SIZE, block_bytes)
    space = None
    if preemption in ("swap", "auto"):
        arrays = SimpleNamespace(arrays=[cells], shape=SimpleNamespace(bytes_per_block=block_bytes, residual_window=0))
        space = SwapSpace(arrays, memory, HostTransfers(), chunks * 2 * block_bytes, chunk_blocks=2)
    preempts = Preemption(preemption, space, swap_wins=lambda tokens: tokens % 2 == 0)
    manager = KVCacheManager(memory, LENGTH_PREDICTIONS[prediction]())
    scheduler = Scheduler(POLICIES[policy](), Queues(manager, preempts, seqs), budget, Speculation(drafts) if drafts else None)
    return scheduler, ScriptedRunner(memory, cells[0], seqs, budget, ahead, drafts=drafts, **runner)


def check_books(queues):
    """What holds between any two steps."""
    policy, running = queues.memory.policy, queues.running
    policy.check()
    assert running == sorted(running, key=order) and all(not sequence.is_finished for sequence in running)
    slots = sorted(sequence.slot for sequence in running)
    assert slots == sorted(set(slots)) and not set(slots) & set(queues._free_slots)
    assert set(queues.memory._noted) == set(running) == set(policy._held)
    waiting = [sequence for _, sequence in queues.waiting if not sequence.is_finished]
    assert all(sequence.slot == NO_SLOT for sequence in waiting) and len(set(waiting)) == len(waiting)
    for sequence in running:
        room = BLOCK_SIZE * len(policy.table(sequence))
        assert room < max(sequence.num_computed_tokens, sequence.num_tokens) + BLOCK_SIZE, "rejected drafts give their blocks back"
    found = queues.sequences()
    assert len(set(found)) == len(found) == queues.num_unfinished
    assert queues.num_waiting == queues.num_unfinished - len(running)


def check_nothing_is_left(scheduler, seqs):
    """All slots, blocks and chunks of host memory are back."""
    queues = scheduler.queues
    check_books(queues)
    assert queues.num_unfinished == queues.num_waiting == 0 and not queues.running
    assert sorted(queues._free_slots) == list(range(seqs))
    assert queues.memory.policy.usage().allocated == queues.memory.policy.usage().promised == 0
    space = queues.preemption.swap_space
    assert space is None or space.bytes_used == 0
