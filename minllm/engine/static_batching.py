"""The generation loop: static batches, which start and end as a whole.

As many waiting sequences as `max_num_seqs` and the cache allow form a batch; it is prefilled, then every step gives each of its sequences
a token until all have ended; then the next batch begins. Sequences are never preempted, so a sequence enters only if the cache
guarantees room for all that it may ever generate. Blocks themselves are allocated as tokens come, and kept until the whole batch ends.
"""

from collections import deque
from collections.abc import Iterable, Iterator

from minllm.cache.policy import CachePolicy
from minllm.engine.outputs import Logprob
from minllm.engine.sequence import Sequence
from minllm.errors import EngineBusyError, OutOfMemoryError
from minllm.kernels.sampling.log_probabilities import LogProbabilities

STEPS_OF_ROOM = 16  # decode steps for which room is made at a time: otherwise block tables of a large batch would change at every step


class StaticBatching:
    """Runs sequences on a model runner, batch after batch; one `run` may be open at a time."""

    def __init__(self, runner, policy: CachePolicy, max_num_seqs: int, tokenizer):
        self.runner = runner
        self.policy = policy
        self.max_num_seqs = max_num_seqs
        self.tokenizer = tokenizer
        self._is_running = False

    def check_fits(self, sequence: Sequence) -> None:
        """Raise OutOfMemoryError if not even the empty cache could hold this sequence."""
        if sequence.num_reserved_tokens > self.policy.max_sequence_tokens:
            raise OutOfMemoryError(
                f"A prompt of {len(sequence.prompt_token_ids)} tokens and max_tokens={sequence.max_tokens} need room for "
                f"{sequence.num_reserved_tokens} tokens, and the KV cache has room for {self.policy.max_sequence_tokens} of a sequence: "
                "lower max_tokens or shorten the prompt."
            )

    def run(self, sequences: Iterable[Sequence]) -> Iterator[list[Sequence]]:
        """Compute the sequences to their ends. After each step, yields the sequences that got a token.

        Closing the iterator early, or any error, frees all blocks.
        """
        if self._is_running:
            raise EngineBusyError("This LLM is still generating: read the open stream to its end or close() it before the next call.")
        self._is_running = True
        try:
            waiting = deque(sequences)
            while waiting:
                yield from self._run_batch(waiting)
        finally:
            self._is_running = False

    def _run_batch(self, waiting: deque[Sequence]) -> Iterator[list[Sequence]]:
        batch: list[Sequence] = []
        first_step = None
        try:
            while waiting and len(batch) < self.max_num_seqs and self._admit(waiting[0], batch):
                batch.append(waiting.popleft())
            self.runner.start(batch)
            first_step = self.runner.prefill()
            yield from self._steps(batch, first_step)
        finally:
            self.runner.finish()
            if first_step is None:
                self.policy.forget_prefixes()  # prompts that were committed in advance were never computed
            self.policy.take_copies()  # drop copies of forks that ended before their first decode step
            for sequence in batch:
                self.policy.free(sequence.request_id)
                sequence.block_table = []

    def _admit(self, sequence: Sequence, batch: list[Sequence]) -> bool:
        """Whether the sequence got its blocks and a guarantee for all it may need; if not, it waits for the next batch.

        For the first sequence of a batch the error is raised instead, because no other sequence could free memory.
        A further completion of a prompt is a fork of the first one. Shared blocks that need a copy are copied before the first decode
        step, when the prompt has been computed.
        """
        name, prompt = sequence.request_id, sequence.prompt_token_ids
        sequence.forked_from = next((other for other in batch if other is sequence.sibling), None)
        try:
            self._reserve(sequence)
        except OutOfMemoryError:
            if not batch:
                raise
            return False
        sequence.block_table = self.policy.table(name)
        self.policy.commit(name, len(prompt))  # prompts are computed in the order of admission, so the next one may rely on this one
        return True

    def _reserve(self, sequence: Sequence) -> None:
        """Reserve blocks for a sequence's prompt and its first token, or for a fork of its sibling's; all or nothing."""
        name = sequence.request_id
        if sequence.forked_from is None:
            prompt = sequence.prompt_token_ids
            sequence.num_cached_tokens = self.policy.reserve(name, prompt, sequence.max_tokens, sequence.cache_salt)
        else:
            self.policy.fork(sequence.forked_from.request_id, name)
        try:
            self._make_room(sequence, step=0)
        except BaseException:
            self.policy.free(name)
            raise

    def _make_room(self, sequence: Sequence, step: int, steps: int = 1) -> bool:
        """Make room for what `steps` decode steps from `step` on (0 is the prefill) write. Returns whether the block table changed.

        Step i of a sequence with a prompt of p tokens writes position p + i - 1. The room includes the token that the last step chooses,
        because a sequence that has ended is switched off one step late.
        """
        length = min(len(sequence.prompt_token_ids) + step + steps, sequence.num_reserved_tokens)
        return self.policy.make_room(sequence.request_id, length)

    def _decode_step(self, running: dict[int, Sequence], number: int):
        """Launch decode step `number`, counted from 1."""
        if number % STEPS_OF_ROOM == 1:
            changed = [row for row, sequence in running.items() if self._make_room(sequence, number, STEPS_OF_ROOM)]
            for row in changed:
                running[row].block_table = self.policy.table(running[row].request_id)
            if changed:
                self.runner.block_tables_changed(changed)
        if copies := self.policy.take_copies():
            self.runner.copy_blocks(copies)
        return self.runner.decode_step()

    def _steps(self, batch: list[Sequence], first_step) -> Iterator[list[Sequence]]:
        """Run decode steps until all sequences of the batch have ended, with `steps_ahead` of them launched before they are read."""
        launched, number = deque([first_step]), 0
        last = max(sequence.max_tokens for sequence in batch) - 1
        running = dict(enumerate(batch))  # row of the batch -> sequence
        while running:
            while number < last and len(launched) <= self.runner.steps_ahead:
                number += 1
                launched.append(self._decode_step(running, number))
            step = launched.popleft()
            self._take_tokens(step, running)
            moved = list(running.values())
            ended = [row for row, sequence in running.items() if sequence.is_finished]
            for row in ended:
                del running[row]
            if ended and running:
                self.runner.retire(ended)
            yield moved
            if running and not launched:
                number += 1
                launched.append(self._decode_step(running, number))

    def _take_tokens(self, step, running: dict[int, Sequence]) -> None:
        """Read a step. The room for its tokens was made before its launch, so no block table changes here."""
        token_ids = step.token_ids().tolist()
        logprobs = step.log_probabilities()
        for row, sequence in running.items():
            wanted = sequence.params.logprobs
            named = None if wanted is None else named_logprobs(logprobs, row, token_ids[row], wanted, self.tokenizer)
            sequence.append(token_ids[row], named)
            self.policy.append(sequence.request_id, token_ids[row : row + 1])
            known = len(sequence.prompt_token_ids) + len(sequence.output_token_ids)
            self.policy.commit(sequence.request_id, known - 1)  # the next step computes the newest token


def named_logprobs(logprobs: LogProbabilities, row: int, token_id: int, top: int, tokenizer) -> dict[int, Logprob]:
    """The `top` likeliest tokens of one row, likeliest first, then the chosen one if it is not among them; with ranks and texts."""
    ranked = {int(logprobs.top_token_ids[row, i]): (float(logprobs.top[row, i]), i + 1) for i in range(top)}
    ranked.setdefault(token_id, (float(logprobs.chosen[row]), int(logprobs.rank[row])))
    return {token: Logprob(value, rank, tokenizer.decode([token])) for token, (value, rank) in ranked.items()}
