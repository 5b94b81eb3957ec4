"""The generation loop: static batches, all in and all out.

As many waiting sequences as `max_num_seqs` and the cache allow make a batch; it is prefilled, then every step gives each of its sequences
a token until all have ended; then the next batch begins. A sequence reserves every block that it may need on entry, and keeps
them until the whole batch is out, so nothing can run short half-way.
"""

from collections import deque
from collections.abc import Iterable, Iterator

from minllm.cache.block_pool import BlockPool, blocks_needed
from minllm.engine.outputs import Logprob
from minllm.engine.sequence import Sequence
from minllm.errors import EngineBusyError, OutOfMemoryError
from minllm.kernels.sampling.log_probabilities import LogProbabilities


class StaticBatching:
    """Runs sequences on a model runner, batch after batch; one `run` may be open at a time."""

    def __init__(self, runner, pool: BlockPool, block_size: int, max_num_seqs: int, tokenizer):
        self.runner = runner
        self.pool = pool
        self.block_size = block_size
        self.max_num_seqs = max_num_seqs
        self.tokenizer = tokenizer
        self._is_running = False

    def check_fits(self, sequence: Sequence) -> None:
        """Raises OutOfMemoryError when not even the empty cache could hold this sequence."""
        needed = blocks_needed(sequence.num_reserved_tokens, self.block_size)
        if needed > self.pool.num_blocks:
            raise OutOfMemoryError(
                f"A prompt of {len(sequence.prompt_token_ids)} tokens and max_tokens={sequence.max_tokens} need {needed} blocks of "
                f"{self.block_size} tokens, and the KV cache has {self.pool.num_blocks}: lower max_tokens, shorten the prompt, "
                "or raise gpu_memory_utilization."
            )

    def run(self, sequences: Iterable[Sequence]) -> Iterator[list[Sequence]]:
        """Computes the sequences to their ends. Yields, after each step, those that got a token. Closing the iterator early, or
        any error, gives all blocks back."""
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
        try:
            while waiting and len(batch) < self.max_num_seqs:
                needed = blocks_needed(waiting[0].num_reserved_tokens, self.block_size)
                if batch and needed > self.pool.num_free:
                    break  # the rest is for the next batch; a first sequence without room is the pool's error to raise
                waiting[0].block_table = self.pool.reserve(waiting[0].request_id, needed)
                batch.append(waiting.popleft())
            self.runner.start(batch)
            yield from self._steps(batch)
        finally:
            self.runner.finish()
            for sequence in batch:
                self.pool.release(sequence.request_id)
                sequence.block_table = []

    def _steps(self, batch: list[Sequence]) -> Iterator[list[Sequence]]:
        """Prefill and decode steps until all sequences of the batch have ended, `steps_ahead` of them launched before they are read."""
        launched = deque([self.runner.prefill()])
        left_to_launch = max(sequence.max_tokens for sequence in batch) - 1
        running = dict(enumerate(batch))  # row of the batch -> sequence
        while running:
            while left_to_launch and len(launched) <= self.runner.steps_ahead:
                launched.append(self.runner.decode_step())
                left_to_launch -= 1
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
                launched.append(self.runner.decode_step())
                left_to_launch -= 1

    def _take_tokens(self, step, running: dict[int, Sequence]) -> None:
        token_ids = step.token_ids().tolist()
        logprobs = step.log_probabilities()
        for row, sequence in running.items():
            wanted = sequence.params.logprobs
            named = None if wanted is None else named_logprobs(logprobs, row, token_ids[row], wanted, self.tokenizer)
            sequence.append(token_ids[row], named)


def named_logprobs(logprobs: LogProbabilities, row: int, token_id: int, top: int, tokenizer) -> dict[int, Logprob]:
    """The `top` likeliest tokens of one row, likeliest first, then the chosen one if it is not among them; with ranks and texts."""
    ranked = {int(logprobs.top_token_ids[row, i]): (float(logprobs.top[row, i]), i + 1) for i in range(top)}
    ranked.setdefault(token_id, (float(logprobs.chosen[row]), int(logprobs.rank[row])))
    return {token: Logprob(value, rank, tokenizer.decode([token])) for token, (value, rank) in ranked.items()}
