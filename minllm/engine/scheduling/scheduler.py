"""The scheduler: decides before every step which tokens of which sequences are computed.

    schedule()     finished sequences have left; the policy gives running ones their tokens and lets waiting ones in
    (a runner executes the step)
    take(...)      the tokens come back; sequences that end leave at once

Sequences wait and run in order of (priority, arrival). If memory runs out, the newest running one is preempted and waits again, before all
that arrived after it; the oldest is never preempted, so it always makes progress, and everybody is the oldest some day. A step is planned
while earlier ones are still being computed: their tokens are counted (`num_in_flight`) before they are known.
"""

import heapq
import time
from bisect import insort

from minllm.engine.requests.outputs import FinishReason
from minllm.engine.requests.sequence import NO_SLOT, Sequence
from minllm.engine.scheduling.kv_cache_manager import KVCacheManager
from minllm.engine.scheduling.policy import SchedulingPolicy
from minllm.engine.scheduling.preemption import Preemption
from minllm.engine.scheduling.step import Span, Step
from minllm.errors import DeadlineError, OutOfMemoryError


def order(sequence: Sequence) -> tuple[int, int, int]:
    """Who comes first."""
    return sequence.priority, sequence.arrival, sequence.index


class Scheduler:
    """Queues of waiting and running sequences. `max_num_seqs` is the number of slots, `max_num_batched_tokens` the token budget."""

    def __init__(
        self, policy: SchedulingPolicy, memory: KVCacheManager, preemption: Preemption, max_num_seqs: int, max_num_batched_tokens: int
    ):
        self.policy, self.memory, self.preemption = policy, memory, preemption
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: list[tuple[tuple[int, int, int], Sequence]] = []  # a heap
        self.running: list[Sequence] = []  # in order
        self.num_preemptions = 0
        self._free_slots = list(range(max_num_seqs))  # a heap: low slots first
        self._arrivals = 0
        self._deadlines: list[tuple[float, tuple[int, int, int], Sequence]] = []  # a heap
        self._num_unfinished = 0
        self._entered: list[Sequence] = []  # have slots that the next step writes anew
        self._copies: list[tuple[int, int]] = []  # blocks to copy before the next step
        self._forks: list[tuple[int, int]] = []  # slots of beams and of those forked from them, since the last step
        self._ended: list[Sequence] = []  # by a deadline or for want of memory, and not reported yet

    # Requests come and go

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence and its siblings. Raises OutOfMemoryError if it can never fit, and then nothing has changed."""
        self.memory.check_fits(sequence)
        self._arrivals += 1
        for one in dict.fromkeys((sequence, *sequence.siblings, *sequence.peers)):
            one.arrival = self._arrivals
            self._num_unfinished += 1
            if one.deadline is not None:
                heapq.heappush(self._deadlines, (one.deadline, order(one), one))
        self._push(sequence)

    def abort(self, sequence: Sequence, error: Exception | None = None) -> None:
        """End a sequence, whatever it is doing; its blocks are free at once. Does nothing if it has ended."""
        if not sequence.is_finished:
            sequence.abort("abort" if error is None else "error", error)
            self._leave(sequence)

    @property
    def num_unfinished(self) -> int:
        """Sequences that have not ended."""
        return self._num_unfinished

    @property
    def num_waiting(self) -> int:
        """Sequences that have not ended and do not run."""
        return self._num_unfinished - len(self.running)

    def sequences(self) -> list[Sequence]:
        """The sequences that have not ended."""
        waiting = [sequence for _, sequence in self.waiting if not sequence.is_finished]
        found = [*self.running, *waiting]
        others = [other for sequence in found for other in (*sequence.siblings, *sequence.peers) if not other.is_finished]
        return list(dict.fromkeys(found + others))

    def take_ended(self) -> list[Sequence]:
        """The sequences that have ended without a result since the last call: past their deadline, or dropped for want of memory."""
        ended, self._ended = self._ended, []
        for sequence in ended:
            self._end_peers(sequence)
        return ended

    # A step

    def schedule(self) -> Step | None:
        """The next step; None if nothing can be computed before the results of launched steps are known."""
        self._abort_late()
        step = Step()
        self.policy.plan(self, step)
        if not step.spans and self._park_held():
            self.policy.plan(self, step)
        if not step.spans:
            return None
        step.copies, self._copies = self._copies, []
        step.forks, self._forks = self._forks, []
        step.entered, self._entered = self._entered, []
        return step

    def decode(self, step: Step) -> None:
        """Give every running sequence whose prompt is computed its next token. The newest are preempted if memory runs out."""
        for sequence in list(self.running):
            if sequence.can_decode and self._make_room(sequence, step):
                step.spans.append(Span(sequence, sequence.num_computed_tokens, 1, True, (sequence,)))
                sequence.num_computed_tokens += 1
                sequence.num_in_flight += 1
        self._copies += self.memory.policy.take_copies()

    def prefill(self, step: Step, admits: bool = True, whole: bool = False) -> None:
        """Compute prompts up to the token budget: first those that have begun, then waiting ones as long as there are slots and memory.

        admits: whether waiting sequences may enter. whole: a prompt that does not fit the rest of the budget waits for the next step,
        unless it is longer than the whole budget. Decodes leave at least one token of the budget, so that no prompt starves.
        """
        self._copies += self.memory.policy.take_copies()  # what is shared from now on is computed by this step, and copied before the next
        # exercise: scheduling.prefill
        budget = max(1, self.max_num_batched_tokens - step.num_tokens)
        for sequence in [sequence for sequence in self.running if not sequence.is_prefilled]:
            if budget:
                budget -= self._add_chunk(sequence, budget, step)
        admits = admits and not step.preempts
        while admits and budget and self._free_slots and (sequence := self._first_waiting()) is not None:
            too_long = whole and budget < sequence.num_tokens <= self.max_num_batched_tokens and step.spans
            if too_long or sequence.num_in_flight or not self._enter(sequence):
                break
            if not sequence.is_prefilled:
                budget -= self._add_chunk(sequence, budget, step)
        # end exercise

    def take(self, step: Step, token_ids: list[int], logprobs: list[dict | None] | None = None) -> list[Sequence]:
        """Give a step's sequences their tokens, in the order of `step.sampled`; returns those that got one or have ended."""
        moved, now = self.take_ended(), time.perf_counter()
        for row, sequence in enumerate(step.sampled):
            sequence.num_in_flight -= 1
            if not sequence.is_finished:  # it may have been aborted, or have ended one step ago
                self._append(sequence, token_ids[row], None if logprobs is None else logprobs[row], now)
                moved.append(sequence)
        for search in dict.fromkeys(sequence.search for sequence in moved if sequence.search is not None):
            search.advance(self)
        for span in step.spans:
            sequence = span.sequence
            if sequence.max_tokens == 0 and span.start + span.length == sequence.num_prefill_tokens and not sequence.is_finished:
                sequence.abort("length")
                self._leave(sequence)
                moved.append(sequence)
        return moved

    def fail(self, step: Step, error: Exception) -> list[Sequence]:
        """End all sequences of a step that could not be computed, and return them. The others go on."""
        self.memory.policy.forget_prefixes()  # blocks were committed before they were computed
        for sequence in step.sampled:
            sequence.num_in_flight -= 1
        failed = list(dict.fromkeys(sequence for span in step.spans for sequence in (span.sequence, *span.sampled)))
        failed = [sequence for sequence in failed if not sequence.is_finished]
        for sequence in failed:
            self.abort(sequence, error)
        self._entered += [sequence for sequence in step.entered if sequence in self.running]  # their slots may not have been written
        return failed

    # Beams, whose searches choose their tokens (requests/beam_search.py)

    def resume(self, sequence: Sequence, parent: Sequence) -> None:
        """Let a beam go on with its newest token, which was just chosen; the ones before are `parent`'s, in whose blocks they lie."""
        sequence.is_held = False
        if sequence is parent and sequence.slot != NO_SLOT:
            sequence.num_prefill_tokens = sequence.num_computed_tokens  # what follows is decoded, and may have to copy a shared block
            if sequence not in self._entered:
                self._entered.append(sequence)
        elif parent.slot != NO_SLOT and self._free_slots and self.memory.fork(parent, sequence):
            self._run(sequence, parent.num_computed_tokens, parent.num_computed_tokens)
            self._forks.append((parent.slot, sequence.slot))
        else:
            self._push(sequence)

    def park(self, sequence: Sequence) -> None:
        """Free the memory and the slot of a sequence that has ended, or of a held beam until it is resumed."""
        if sequence.slot == NO_SLOT:
            self.preemption.drop(sequence)
        else:
            self.memory.free(sequence)
            self._give_up_slot(sequence)

    def end(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence that has all its tokens, and its peers."""
        sequence.abort(reason)
        self._leave(sequence)

    # How

    def _append(self, sequence: Sequence, token_id: int, logprobs: dict | None, now: float) -> None:
        """Give a sequence its next token; it leaves if that is the last one, or if its decoder raises an error."""
        try:
            sequence.append(token_id, logprobs, now)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this sequence, and the others of the step go on
            sequence.give_up(error)
        if sequence.is_finished:
            self.memory.prediction.observe(sequence)
            self._leave(sequence)

    def _make_room(self, sequence: Sequence, step: Step) -> bool:
        """Make room for the next token of a running sequence; False if it was itself preempted, or ended for want of room."""
        while True:
            try:
                if self.memory.make_room_to_decode(sequence):
                    step.grown.append(sequence)
                return True
            except OutOfMemoryError as error:
                newest = self.running[-1]
                if newest is self.running[0]:  # something else holds what it needs: requests that can never fit were refused
                    self._end_unasked(sequence, error)
                    return False
                self._preempt(newest)
                step.preempts = True
                if newest is sequence:
                    return False

    def _preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's memory and slot, and let it wait again."""
        self.num_preemptions += 1
        self.preemption.evict(sequence, self.memory)
        self._give_up_slot(sequence)
        if sequence.is_finished:
            self._num_unfinished -= 1
            self._ended.append(sequence)
            self._push_siblings(sequence)
        elif not sequence.is_held:
            self._push(sequence)

    def _add_chunk(self, sequence: Sequence, budget: int, step: Step) -> int:
        """Add a span of up to `budget` tokens of a running sequence's prompt; returns their number."""
        start = sequence.num_computed_tokens
        length = min(budget, sequence.num_prefill_tokens - start, sequence.longest_chunk)
        sequence.num_computed_tokens += length
        self.memory.commit(sequence)
        sampled = self._first_to_sample(sequence) if sequence.is_prefilled else ()
        step.spans.append(Span(sequence, start, length, False, sampled))
        return length

    def _first_to_sample(self, sequence: Sequence) -> tuple[Sequence, ...]:
        """The sequences that sample from the end of a prompt: the one that computed it, and siblings, as forks of it if there is room."""
        if sequence.max_tokens == 0:
            return ()
        sampled = [sequence]
        for sibling in self._take_siblings(sequence):
            if self._free_slots and self.memory.fork(sequence, sibling):
                self._run(sibling, sequence.num_computed_tokens, sequence.num_prefill_tokens)
                sampled.append(sibling)
            else:
                self._push(sibling)
        for one in sampled:
            one.num_in_flight += 1
        return tuple(sampled)

    def _enter(self, sequence: Sequence) -> bool:
        """Let the first waiting sequence in; False if there is no room now."""
        comes_back = self.preemption.holds(sequence)
        try:
            num_computed = self.preemption.restore(sequence, self.memory)
        except OutOfMemoryError as error:
            if not self.running:  # nobody is left who could make room: something else holds it, for instance a text that is scored
                self._end_unasked(sequence, error)
            return False
        heapq.heappop(self.waiting)
        if not sequence.num_preemptions:
            sequence.num_cached_tokens = num_computed
        self._run(sequence, num_computed, num_computed if comes_back else sequence.num_tokens)
        return True

    def _run(self, sequence: Sequence, num_computed: int, num_prefill: int) -> None:
        """Give a sequence, which has its blocks, a slot."""
        sequence.slot = heapq.heappop(self._free_slots)
        sequence.num_computed_tokens, sequence.num_prefill_tokens = num_computed, num_prefill
        insort(self.running, sequence, key=order)
        self._entered.append(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """Free all that a sequence holds that has ended. If it waits, its place in the queue is skipped later."""
        self._num_unfinished -= 1
        self.park(sequence)
        self._push_siblings(sequence)
        self._end_peers(sequence)

    def _end_unasked(self, sequence: Sequence, error: Exception) -> None:
        """End a sequence that nobody aborted, and report it with the next results."""
        self.abort(sequence, error)
        self._ended.append(sequence)

    def _end_peers(self, sequence: Sequence) -> None:
        """End the beams of a sequence's search, as it has ended."""
        for peer in sequence.peers:
            if not peer.is_finished:
                peer.abort(sequence.finish_reason, sequence.error)
                self._leave(peer)

    def _park_held(self) -> bool:
        """Park the beams that wait for others, if nothing else makes room for those; returns whether there were any."""
        held = [sequence for sequence in self.running if sequence.is_held and self._first_waiting() is not None]
        for sequence in held:
            self.park(sequence)
        return bool(held)

    def _give_up_slot(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        if sequence in self._entered:
            self._entered.remove(sequence)
        heapq.heappush(self._free_slots, sequence.slot)
        sequence.slot = NO_SLOT

    def _push(self, sequence: Sequence) -> None:
        heapq.heappush(self.waiting, (order(sequence), sequence))

    def _push_siblings(self, sequence: Sequence) -> None:
        """Let the completions that waited for a prompt compute it themselves."""
        for sibling in self._take_siblings(sequence):
            self._push(sibling)

    def _first_waiting(self) -> Sequence | None:
        """The waiting sequence that comes first; those that have ended, or became held beams, are dropped from the queue."""
        while self.waiting and not self._waits(self.waiting[0][1]):
            heapq.heappop(self.waiting)
        return self.waiting[0][1] if self.waiting else None

    def _waits(self, sequence: Sequence) -> bool:
        return not (sequence.is_finished or sequence.is_held) and sequence.slot == NO_SLOT

    def _take_siblings(self, sequence: Sequence) -> list[Sequence]:
        """The further completions that waited for this sequence's prompt, without those that have ended."""
        siblings, sequence.siblings = sequence.siblings, []
        return [sibling for sibling in siblings if not sibling.is_finished]

    def _abort_late(self) -> None:
        """Abort the sequences whose deadline has passed."""
        while self._deadlines and self._deadlines[0][0] <= time.perf_counter():
            _, _, sequence = heapq.heappop(self._deadlines)
            if not sequence.is_finished:
                self._end_unasked(sequence, DeadlineError(f"{sequence} was not finished before its deadline."))
