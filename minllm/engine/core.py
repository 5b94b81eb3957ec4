"""The engine's loop: finished sequences out and new ones in, forward, process results.

    step = scheduler.schedule()            which tokens of which sequences
    results = runner.execute(step)         launched; on a GPU not computed yet
    scheduler.take(step, tokens)           sequences get their tokens; those that end leave

The next step is planned and launched before the results of this one are read, so a GPU is never idle between steps. A sequence that ends
with a token that was not known in advance, such as an end of text, is therefore computed one step too far; the surplus token is dropped.
With structured outputs the forward is launched ahead, and the choice of its tokens once those before them are known: while the device
computes the forward, the host reads the tokens, follows the grammars and fills their masks.
"""

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

import numpy as np

from minllm.engine.requests.no_token import not_finite_error
from minllm.engine.requests.outputs import Logprob
from minllm.engine.requests.sequence import Sequence
from minllm.engine.running.forward_result import ForwardResult, LateForward
from minllm.engine.running.runner import Runner
from minllm.engine.scheduling.scheduler import Scheduler
from minllm.engine.turn import NotCopied, Turn
from minllm.errors import EngineBusyError, SamplingError, as_exception
from minllm.kernels.sampling.log_probabilities import LogProbabilities


class EngineCore(NotCopied):
    """Runs sequences on a scheduler and a runner. `turn` guards it: one thread at a time may call, except for `drop`."""

    def __init__(self, scheduler: Scheduler, runner: Runner, tokenizer):
        self.scheduler, self.runner, self.tokenizer = scheduler, runner, tokenizer
        self.num_steps = 0
        self.turn = Turn()
        self._launched: deque = deque()  # (step, results), the oldest first
        self._dropped: deque[Sequence] = deque()  # sequences to abort

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence and its siblings. Raises OutOfMemoryError if it can never fit."""
        self.scheduler.queues.add(sequence)

    def abort(self, sequences: Iterable[Sequence]) -> None:
        """End those of the sequences that have not ended; their memory is free for the next step."""
        for sequence in sequences:
            self.scheduler.queues.abort(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Abort a sequence in any thread, even in a finaliser: at once if nobody uses the engine, or else with the next step."""
        self._dropped.append(sequence)
        with suppress(EngineBusyError), self.turn:
            if self.turn.depth == 1:  # a finaliser may run anywhere within this thread's own call
                self._abort_dropped()

    @property
    def has_work(self) -> bool:
        """Whether a sequence has not ended, or a launched step has not been read."""
        return bool(self.scheduler.queues.num_unfinished or self._launched)

    def step(self) -> list[Sequence]:
        """Launch the next step, and read the one that was launched before it; returns the sequences that got a token or ended."""
        with self.turn.stepping():
            self._abort_dropped()
            moved = self._launch_ahead()
            if self._launched:
                step, results = self._launched.popleft()
                try:
                    moved += self._take(step, [result.wait() for result in results])
                except BaseException as error:  # noqa: BLE001 - an error of the device: those who wait for this step learn of it
                    moved += self.scheduler.fail(step, as_exception(error))
            self._choose_late()
            return moved + self.scheduler.queues.take_ended()

    def run(self, sequences: Iterable[Sequence]) -> None:
        """Step until these sequences, which were added, have ended. Raises the error of the first that failed; an interrupt aborts them."""
        sequences = list(sequences)
        self.finish(sequences)
        for sequence in sequences:
            if sequence.error is not None:
                raise sequence.error

    def finish(self, sequences: list[Sequence], after_step: Callable[[], None] | None = None) -> None:
        """Step until these sequences, which were added, have ended, well or with an `error`; an interrupt aborts them."""
        try:
            while any(not sequence.is_finished for sequence in sequences):
                self.step()
                if after_step is not None:
                    after_step()
        finally:
            self.abort(sequences)

    def _abort_dropped(self) -> None:
        while self._dropped:
            self.scheduler.queues.abort(self._dropped.popleft())

    def _launch_ahead(self) -> list[Sequence]:
        """Launch until steps_ahead + 1 steps are unread; returns the sequences of steps that could not be launched."""
        # exercise: engine.launch_ahead
        failed = []
        while len(self._launched) <= self.runner.steps_ahead and (step := self.scheduler.schedule()) is not None:
            self.num_steps += 1
            try:
                self._launched.append((step, self.runner.execute(step)))
            except Exception as error:  # noqa: BLE001 - whatever it is, it ends the sequences of this step, and the others go on
                failed += self.scheduler.fail(step, error)
        return failed
        # end exercise

    def _choose_late(self) -> None:
        """Launch the choice of tokens that grammars decide on, now that the tokens before them are known."""
        for _, results in self._launched:
            for result in results:
                if isinstance(result, LateForward):
                    result.start()

    def _take(self, step, results: list[ForwardResult]) -> list[Sequence]:
        token_ids = [token_id for result in results for token_id in result.token_ids]
        logprobs = None
        if any(result.logprobs is not None for result in results):
            logprobs = [named for result in results for named in self._named(result)]
        for result in results:
            for span, found in result.prompt_logprobs:
                with span.sequence.at_fault():
                    self._name_prompt(span, found)
        if results and results[0].verified is not None:  # an engine that speculates computes each step in one forward
            return self.scheduler.take(step, token_ids, logprobs, results[0].verified)
        return self.scheduler.take(step, token_ids, logprobs)

    def _named(self, result: ForwardResult) -> list[dict[int, Logprob] | None]:
        """The named log-probabilities of each token of a forward; None if its sequence needs none."""
        if result.logprobs is None:
            return [None] * len(result.token_ids)
        named: list[dict[int, Logprob] | None] = [None] * len(result.token_ids)
        for row, (sequence, token_id) in enumerate(zip(result.owners, result.token_ids, strict=True)):
            if sequence.needs_logprobs and token_id >= 0:
                with sequence.at_fault():
                    if np.isnan(result.logprobs.chosen[row]):  # a token that cannot be chosen: the softmax spreads its NaN to all
                        raise self._not_finite(sequence, f"token {len(sequence.output_token_ids) + 1} of its output")
                    named[row] = named_logprobs(result.logprobs, row, token_id, sequence.params.logprobs or 0, self.tokenizer)
        return named

    def _name_prompt(self, span, found: LogProbabilities) -> None:
        """Record the log-probabilities that a span predicts for prompt tokens, except known ones: a preempted prompt is recomputed.

        Raises SamplingError for logits that are not finite.
        """
        sequence, top = span.sequence, span.sequence.params.prompt_logprobs
        if sequence.fault is not None:  # an earlier chunk failed; the sequence ends with its last one
            return
        if not sequence.prompt_logprobs:
            sequence.prompt_logprobs.append(None)  # nothing predicts the first token
        known, end = len(sequence.prompt_logprobs), min(span.start + span.length + 1, len(sequence.prompt_token_ids))
        for position in range(known, end):
            token_id, row = sequence.prompt_token_ids[position], position - span.start - 1
            if np.isnan(found.chosen[row]):
                raise self._not_finite(sequence, f"token {position + 1} of its prompt")
            sequence.prompt_logprobs.append(named_logprobs(found, row, token_id, top, self.tokenizer))

    def _not_finite(self, sequence: Sequence, place: str) -> SamplingError:
        """The error of a sequence with logits that hold NaN or infinity, which is counted. place: what the logits are for."""
        self.scheduler.num_corrupted_requests += 1
        return not_finite_error(sequence, place)


def named_logprobs(logprobs: LogProbabilities, row: int, token_id: int, top: int, tokenizer) -> dict[int, Logprob]:
    """The `top` likeliest tokens of one row, likeliest first, then the given one if it is not among them; with ranks and texts."""
    ranked = {int(logprobs.top_token_ids[row, i]): (float(logprobs.top[row, i]), i + 1) for i in range(top)}
    ranked.setdefault(token_id, (float(logprobs.chosen[row]), int(logprobs.rank[row])))
    return {token: Logprob(value, rank, tokenizer.text_of(token)) for token, (value, rank) in ranked.items()}
