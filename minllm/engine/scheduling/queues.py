"""The states of all sequences: waiting, running in a slot, held, or ended.

    waiting    in a heap; holds nothing, or lies in the swap space
    running    has a slot and blocks of the cache
    held       a beam whose search has not chosen its next token (requests/beam_search.py); it runs, or holds nothing
    ended      holds nothing

Sequences wait and run in order of (priority, arrival). The methods here move a sequence with its slot and memory from one state to
another; scheduler.py decides which sequence moves, and when.
"""

import heapq
import time
from bisect import insort

from minllm.engine.requests.outputs import FinishReason
from minllm.engine.requests.sequence import NO_SLOT, Sequence
from minllm.engine.scheduling.kv_cache_manager import KVCacheManager
from minllm.engine.scheduling.preemption import Preemption
from minllm.errors import DeadlineError

Order = tuple[int, int, int]


def order(sequence: Sequence) -> Order:
    """The key by which sequences wait and run."""
    return sequence.priority, sequence.arrival, sequence.index


class Queues:
    """Sequences that have not ended, in up to `max_num_seqs` slots."""

    def __init__(self, memory: KVCacheManager, preemption: Preemption, max_num_seqs: int):
        self.memory, self.preemption = memory, preemption
        self.waiting: list[tuple[Order, Sequence]] = []  # a heap
        self.running: list[Sequence] = []  # by `order`
        self._free_slots = list(range(max_num_seqs))  # a heap: low slots first
        self._arrivals = 0
        self._num_unfinished = 0
        self.num_preemptions = 0
        self._deadlines: list[tuple[float, Order, Sequence]] = []  # a heap
        self._entered: list[Sequence] = []  # running sequences whose slots the next step rewrites
        self._forks: list[tuple[int, int]] = []  # (parent's slot, beam's slot) of beams forked since the last step
        self._ended: list[Sequence] = []  # sequences that ended without a result and are not reported yet

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
        """End a sequence in any state and free its blocks at once. Does nothing if it has ended."""
        if not sequence.is_finished:
            self.end(sequence, "abort" if error is None else "error", error)

    def end(self, sequence: Sequence, reason: FinishReason, error: Exception | None = None) -> None:
        """End a sequence that has not ended, and its peers."""
        sequence.abort(reason, error)
        self.leave(sequence)

    @property
    def num_unfinished(self) -> int:
        """The number of sequences that have not ended."""
        return self._num_unfinished

    @property
    def num_waiting(self) -> int:
        """The number of sequences that have not ended and do not run."""
        return self._num_unfinished - len(self.running)

    def sequences(self) -> list[Sequence]:
        """The sequences that have not ended."""
        waiting = [sequence for _, sequence in self.waiting if not sequence.is_finished]
        found = [*self.running, *waiting]
        others = [other for sequence in found for other in (*sequence.siblings, *sequence.peers) if not other.is_finished]
        return list(dict.fromkeys(found + others))

    def take_ended(self) -> list[Sequence]:
        """The sequences that have ended without a result since the last call: past their deadline, or out of memory."""
        ended, self._ended = self._ended, []
        for sequence in ended:
            self._end_peers(sequence)
        return ended

    # Held beams

    def park(self, sequence: Sequence) -> None:
        """Free the memory and the slot of a sequence that has ended, or of a held beam until it is resumed."""
        if sequence.slot == NO_SLOT:
            self.preemption.drop(sequence)
        else:
            self.memory.free(sequence)
            self._give_up_slot(sequence)

    def resume(self, beam: Sequence, parent: Sequence) -> None:
        """Let a held beam continue after its newest token, just chosen; its earlier tokens are those in the blocks of `parent`."""
        beam.is_held = False
        if beam is parent and beam.slot != NO_SLOT:
            beam.num_prefill_tokens = beam.num_computed_tokens  # later tokens are decoded, which may have to copy a shared block
            if beam not in self._entered:
                self._entered.append(beam)
        elif parent.slot != NO_SLOT and self._fork(parent, beam):
            self._forks.append((parent.slot, beam.slot))
        else:
            self._push(beam)

    def park_held(self) -> bool:
        """Park the held beams if a sequence waits, because nothing else makes room for it; returns whether there were any."""
        held = [sequence for sequence in self.running if sequence.is_held and self.first_waiting() is not None]
        for sequence in held:
            self.park(sequence)
        return bool(held)

    # Running

    @property
    def has_free_slot(self) -> bool:
        """Whether one more sequence may run."""
        return bool(self._free_slots)

    def take_entered(self) -> list[Sequence]:
        """The running sequences whose slots must be rewritten and were not returned before."""
        entered, self._entered = self._entered, []
        return entered

    def take_forks(self) -> list[tuple[int, int]]:
        """The (parent's slot, beam's slot) of beams forked since the last call."""
        forks, self._forks = self._forks, []
        return forks

    def _run(self, sequence: Sequence, num_computed: int, num_prefill: int) -> None:
        """Give a slot to a sequence that has its blocks."""
        sequence.slot = heapq.heappop(self._free_slots)
        sequence.num_computed_tokens, sequence.num_prefill_tokens = num_computed, num_prefill
        insort(self.running, sequence, key=order)
        self._entered.append(sequence)

    def run_first(self, num_computed: int, num_prefill: int) -> None:
        """Run the first waiting sequence, which has its blocks."""
        _, sequence = heapq.heappop(self.waiting)
        self._run(sequence, num_computed, num_prefill)

    def fork_siblings(self, sequence: Sequence) -> list[Sequence]:
        """Run the completions that waited for this sequence's prompt on its blocks, and return them; those without room are queued."""
        running = []
        for sibling in self._take_siblings(sequence):
            if self._fork(sequence, sibling):
                running.append(sibling)
            else:
                self._push(sibling)
        return running

    def _fork(self, parent: Sequence, child: Sequence) -> bool:
        """Run `child` on the blocks of `parent`, sharing its computed tokens; False if there is no slot or no room."""
        if not (self._free_slots and self.memory.fork(parent, child)):
            return False
        self._run(child, parent.num_computed_tokens, parent.num_computed_tokens)
        return True

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's memory and slot, and queue it again."""
        self.num_preemptions += 1
        self.preemption.evict(sequence, self.memory)
        self._give_up_slot(sequence)
        if sequence.is_finished:
            self._num_unfinished -= 1
            self._ended.append(sequence)
            self._push_siblings(sequence)
        elif not sequence.is_held:
            self._push(sequence)

    def recompute(self, sequence: Sequence) -> None:
        """Take a running sequence's memory and slot, and queue it for recomputation, whatever the mode of preemption."""
        self.num_preemptions += 1
        sequence.num_preemptions += 1
        self.park(sequence)
        if not sequence.is_held:
            self._push(sequence)

    def _give_up_slot(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        if sequence in self._entered:
            self._entered.remove(sequence)
        heapq.heappush(self._free_slots, sequence.slot)
        sequence.slot = NO_SLOT

    # Waiting

    def _push(self, sequence: Sequence) -> None:
        heapq.heappush(self.waiting, (order(sequence), sequence))

    def _push_siblings(self, sequence: Sequence) -> None:
        """Let the completions that waited for a prompt compute it themselves."""
        for sibling in self._take_siblings(sequence):
            self._push(sibling)

    def _take_siblings(self, sequence: Sequence) -> list[Sequence]:
        """The unfinished completions that waited for this sequence's prompt; they wait no longer."""
        siblings, sequence.siblings = sequence.siblings, []
        return [sibling for sibling in siblings if not sibling.is_finished]

    def first_waiting(self) -> Sequence | None:
        """The waiting sequence that comes first; those that have ended, or became held beams, are dropped from the queue."""
        while self.waiting and not self._waits(self.waiting[0][1]):
            heapq.heappop(self.waiting)
        return self.waiting[0][1] if self.waiting else None

    def _waits(self, sequence: Sequence) -> bool:
        return not (sequence.is_finished or sequence.is_held) and sequence.slot == NO_SLOT

    # Ended

    def leave(self, sequence: Sequence) -> None:
        """Free everything that an ended sequence holds. If it is in the queue of waiting ones, it is skipped later."""
        self._num_unfinished -= 1
        self.park(sequence)
        self._push_siblings(sequence)
        self._end_peers(sequence)

    def end_unasked(self, sequence: Sequence, error: Exception) -> None:
        """End a sequence that its user has not aborted, and report it with the next results."""
        self.abort(sequence, error)
        self._ended.append(sequence)

    def _end_peers(self, sequence: Sequence) -> None:
        """End the other beams of an ended sequence's search."""
        for peer in sequence.peers:
            if not peer.is_finished and sequence.finish_reason is not None:
                self.end(peer, sequence.finish_reason, sequence.error)

    def abort_late(self) -> None:
        """Abort the sequences past their deadline."""
        while self._deadlines and self._deadlines[0][0] <= time.perf_counter():
            _, _, sequence = heapq.heappop(self._deadlines)
            if not sequence.is_finished:
                self.end_unasked(sequence, DeadlineError(f"{sequence} was not finished before its deadline."))
