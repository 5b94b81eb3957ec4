"""The scheduler: decides before every step which tokens of which sequences are computed.

    schedule()     finished sequences have left; the policy gives running ones their tokens and lets waiting ones in
    (a runner executes the step)
    take(...)      sequences get their tokens; those that end leave at once

If memory runs out, the newest running sequence is preempted and waits again, ahead of all later arrivals. The oldest is never preempted, so
it always makes progress, and every sequence becomes the oldest in time. A step is planned while earlier ones are still being computed:
their tokens are counted (`num_in_flight`) before they are known.
"""

import contextlib
import time

from minllm.engine.requests.no_token import no_token_error
from minllm.engine.requests.sequence import Sequence
from minllm.engine.scheduling.policy import SchedulingPolicy
from minllm.engine.scheduling.queues import Queues
from minllm.engine.scheduling.speculative import Speculation
from minllm.engine.scheduling.step import Span, Step, Verified
from minllm.errors import OutOfMemoryError, as_exception
from minllm.kernels.sampling.argmax import NOT_FINITE


class Scheduler:
    """Plans steps. `queues` holds the sequences; `max_num_batched_tokens` is the token budget of a step."""

    def __init__(self, policy: SchedulingPolicy, queues: Queues, max_num_batched_tokens: int, speculation: Speculation | None = None):
        self.policy, self.queues, self.memory = policy, queues, queues.memory
        self.max_num_batched_tokens, self.speculation = max_num_batched_tokens, speculation
        self.num_corrupted_requests = 0
        self._copies: list[tuple[int, int]] = []  # blocks to copy before the next step

    def schedule(self) -> Step | None:
        """The next step; None if nothing can be computed before the results of launched steps are known."""
        self.queues.abort_late()
        step = Step()
        self.memory.policy.begin_step()
        self.policy.plan(self, step)
        if not step.spans and self.queues.park_held():
            self.policy.plan(self, step)
        if not step.spans:
            return None
        step.copies, self._copies = self._copies, []
        step.local_copies = self.memory.policy.take_local_copies()
        step.forks, step.entered = self.queues.take_forks(), self.queues.take_entered()
        step.makes_drafts = self.speculation is None or self.speculation.makes_drafts
        return step

    def decode(self, step: Step) -> None:
        """Add the next token of every running sequence whose prompt is computed, and its drafts within the token budget.

        The newest sequences are preempted if memory runs out, but never for drafts.
        """
        budget, speculation = self.max_num_batched_tokens - len(self.queues.running) - 1, self.speculation  # one token is for prompts
        decoding = [sequence for sequence in self.queues.running if sequence.can_decode]
        if speculation is not None and not speculation.plan(len(decoding)):
            speculation = None
        for sequence in decoding:
            if sequence.can_decode:  # not preempted by a sequence before it
                drafts = 0 if speculation is None else self._make_room_for_drafts(speculation, sequence, budget, step)
                if drafts or self._make_room(sequence, step):
                    start, end = sequence.num_computed_tokens, sequence.num_computed_tokens + 1 + drafts
                    step.spans.append(Span(sequence, start, end - start, True, (sequence,)))
                    self.memory.policy.slide(sequence, start, end)
                    if speculation is not None and (unseen := speculation.unseen(step.spans[-1])) is not None:
                        step.unseen.append(unseen)
                    sequence.num_computed_tokens += 1 if speculation is None or not drafts else speculation.most_new(1 + drafts)
                    sequence.num_in_flight += 1
                    budget -= drafts
        self._copies += self.memory.policy.take_copies()

    def prefill(self, step: Step, admits: bool = True, whole: bool = False) -> None:
        """Add prompts up to the token budget: first those already begun, then waiting ones while there are slots and memory.

        admits: whether waiting sequences may enter. whole: a prompt that does not fit the rest of the budget waits for the next step,
        unless it is longer than the whole budget. Decodes leave at least one token of the budget, so that no prompt starves.
        """
        self._copies += self.memory.policy.take_copies()  # for forks of earlier steps; this step's forks are copied before the next step
        admits = admits and not step.preempts
        # exercise: scheduling.prefill
        budget = max(1, self.max_num_batched_tokens - step.num_tokens)
        for sequence in [sequence for sequence in self.queues.running if not sequence.is_prefilled]:
            budget -= self._add_chunk(sequence, budget, step) if budget else 0
        while admits and budget and self.queues.has_free_slot and (first := self.queues.first_waiting()) is not None:
            if self._must_wait(first, budget, step, whole) or not self._enter(first):
                break
            budget -= 0 if first.is_prefilled else self._add_chunk(first, budget, step)
        # end exercise

    def take(
        self, step: Step, token_ids: list[int], logprobs: list[dict | None] | None = None, verified: Verified | None = None
    ) -> list[Sequence]:
        """Give a step's sequences their tokens, in the order of `step.sampled`; returns those that got a token or have ended.

        verified: the number of tokens per sequence, if the engine speculates; otherwise each sequence gets one.
        """
        moved, now, sampled = self.queues.take_ended(), time.perf_counter(), step.sampled
        if verified is not None and self.speculation is not None:
            self.speculation.take(step.spans, verified, self.memory)
            sampled = [sequence for sequence, count in zip(sampled, verified.counts, strict=True) for _ in range(count)]
        for row, sequence in enumerate(sampled):
            sequence.num_in_flight -= 1
            if not sequence.is_finished:  # it may have been aborted, or have ended one step ago, or with a token before this one
                self._append(sequence, token_ids[row], None if logprobs is None else logprobs[row], now)
                moved.append(sequence)
        moved = moved if verified is None else list(dict.fromkeys(moved))
        for search in dict.fromkeys(sequence.search for sequence in moved if sequence.search is not None):
            search.advance(self.queues)
        return moved + self._end_scored(step)

    def fail(self, step: Step, error: Exception) -> list[Sequence]:
        """End all sequences of a step that could not be computed, and return them. The others go on.

        Sequences for which the step only prepared a slot or blocks are recomputed, because it is unknown which of its writes happened.
        """
        for sequence in step.sampled:
            sequence.num_in_flight -= 1
        failed = list(dict.fromkeys(sequence for span in step.spans for sequence in (span.sequence, *span.sampled)))
        failed = [sequence for sequence in failed if not sequence.is_finished]
        for sequence in failed:
            self.queues.abort(sequence, error)
        for sequence in self._prepared_by(step):
            self.queues.recompute(sequence)
        self.memory.policy.forget_prefixes()  # last, because a sequence that leaves commits blocks that the failed step should have filled
        return failed

    def _prepared_by(self, step: Step) -> list[Sequence]:
        """The running sequences with slots that a step should have written, or with slots or blocks to which it should have copied."""
        slots = {sequence.slot for sequence in step.entered} | {destination for _, destination in step.forks}
        blocks = {destination for _, destination in step.copies}
        table = self.memory.policy.table
        return [one for one in self.queues.running if one.slot in slots or (blocks and not blocks.isdisjoint(table(one)))]

    # Prompts

    def _enter(self, sequence: Sequence) -> bool:
        """Let the first waiting sequence in; False if there is no room now."""
        comes_back = self.queues.preemption.holds(sequence)
        try:
            num_computed = self.queues.preemption.restore(sequence, self.memory)
        except OutOfMemoryError as error:
            if not self.queues.running:  # no sequence is left to make room: something else holds it, for instance a text that is scored
                self.queues.end_unasked(sequence, error)
            return False
        if not sequence.num_preemptions:
            sequence.num_cached_tokens, sequence.scheduled_time = num_computed, time.perf_counter()
        self.queues.run_first(num_computed, num_computed if comes_back else sequence.num_tokens)
        return True

    def _must_wait(self, sequence: Sequence, budget: int, step: Step, whole: bool) -> bool:
        """Whether the first waiting sequence stays in the queue: its last token is in flight, or it is a whole prompt for a later step."""
        too_long = whole and budget < sequence.num_tokens <= self.max_num_batched_tokens and step.spans
        return bool(too_long or sequence.num_in_flight)

    def _add_chunk(self, sequence: Sequence, budget: int, step: Step) -> int:
        """Add a span of up to `budget` tokens of a running sequence's prompt; returns their number."""
        start = sequence.num_computed_tokens
        length = min(budget, sequence.num_prefill_tokens - start, sequence.longest_chunk)
        sequence.num_computed_tokens += length
        self.memory.policy.slide(sequence, start, start + length)
        self.memory.commit(sequence)
        sampled = self._first_to_sample(sequence) if sequence.is_prefilled else ()
        step.spans.append(Span(sequence, start, length, False, sampled))
        return length

    def _first_to_sample(self, sequence: Sequence) -> tuple[Sequence, ...]:
        """The sequences that sample after a prompt: the one that computed it, and its siblings, forked if there is room."""
        if sequence.max_tokens == 0:
            return ()
        sampled = [sequence, *self.queues.fork_siblings(sequence)]
        for one in sampled:
            one.num_in_flight += 1
        return tuple(sampled)

    # Decodes

    def _make_room_for_drafts(self, speculation: Speculation, sequence: Sequence, budget: int, step: Step) -> int:
        """Make room for the next token of a running sequence and for drafts after it; returns their number, 0 if there is no room."""
        num_drafts = max(0, min(speculation.num_drafts(sequence, len(self.queues.running)), budget))
        for num_tokens in dict.fromkeys((speculation.num_tokens(sequence, num_drafts), 1 + num_drafts)):
            if num_tokens > 1:
                with contextlib.suppress(OutOfMemoryError):
                    if self.memory.make_room_to_decode(sequence, num_tokens):
                        step.grown.append((sequence, sequence.num_computed_tokens))
                    return num_drafts
        return 0

    def _make_room(self, sequence: Sequence, step: Step) -> bool:
        """Make room for the next token of a running sequence; False if the sequence itself was preempted, or ended without room."""
        while True:
            try:
                if self.memory.make_room_to_decode(sequence):
                    step.grown.append((sequence, sequence.num_computed_tokens))
                return True
            except OutOfMemoryError as error:
                newest = self.queues.running[-1]
                if newest is self.queues.running[0]:  # something else holds the memory: requests that can never fit were refused
                    self.queues.end_unasked(sequence, error)
                    return False
                self.queues.preempt(newest)
                step.preempts = True
                if newest is sequence:
                    return False

    # Results

    def _append(self, sequence: Sequence, token_id: int, logprobs: dict | None, now: float) -> None:
        """Give a sequence its next token; it leaves if that is the last one, or if it is at fault, or its decoder raises an error.

        A token_id below 0 is the sampler's reason why there is none.
        """
        if token_id < 0 and sequence.fault is None:
            sequence.fault = no_token_error(sequence, token_id)
            self.num_corrupted_requests += token_id == NOT_FINITE
        if sequence.fault is not None:
            self.queues.abort(sequence, sequence.fault)
            return
        try:
            sequence.append(token_id, logprobs, now)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it ends this sequence, and the others of the step go on
            sequence.give_up(as_exception(error))
        if sequence.is_finished:
            self.memory.prediction.observe(sequence)
            self.queues.leave(sequence)

    def _end_scored(self, step: Step) -> list[Sequence]:
        """End the sequences that generate no tokens (max_tokens=0) and whose prompt this step completes; returns them."""
        ended = []
        for span in step.spans[step.num_decodes :]:
            sequence = span.sequence
            if sequence.max_tokens == 0 and span.start + span.length == sequence.num_prefill_tokens and not sequence.is_finished:
                self.queues.end(sequence, "length" if sequence.fault is None else "error", sequence.fault)
                ended.append(sequence)
        return ended
