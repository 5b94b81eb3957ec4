"""The scheduler: which tokens of which sequences the next step computes.

Every step is one forward pass over at most `max_num_batched_tokens` tokens: first one token for each sequence that generates, then as much
of the prompts as fits (chunked prefill). A sequence enters and leaves between any two steps (in-flight batching; Yu et al. 2022, "Orca: A
Distributed Serving System for Transformer-Based Generative Models").

If blocks run out, the newest sequence gives its own back and waits, before all others, to be computed again (preemption). The oldest never
does, so it always makes progress, and every sequence becomes the oldest in time.
"""

from collections import deque

from minllm.errors import OutOfMemoryError, SamplingError
from minllm.nano.block_pool import NO_PREFIX, BlockPool
from minllm.nano.sequence import Sequence

Step = list[tuple[Sequence, int]]  # sequences, and for each the number of tokens to compute


class Scheduler:
    """Plans steps for the sequences that were added."""

    def __init__(self, pool: BlockPool, max_num_seqs: int, max_num_batched_tokens: int, eos_token_ids: frozenset[int], max_model_len: int):
        self.pool, self.max_num_seqs, self.max_num_batched_tokens = pool, max_num_seqs, max_num_batched_tokens
        self.eos_token_ids, self.max_model_len = eos_token_ids, max_model_len
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in the order in which they entered
        self.num_preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait. Raises OutOfMemoryError if it would not fit into all the blocks at its longest."""
        longest = min(len(sequence.prompt_token_ids) + sequence.params.max_tokens, self.max_model_len)
        needed, blocks = self.pool.blocks_for(longest), len(self.pool.holders)
        if needed > blocks:
            raise OutOfMemoryError(
                f"A prompt of {len(sequence.prompt_token_ids)} tokens may grow to {longest}, which take {needed} blocks of "
                f"{self.pool.block_size} tokens, and there are {blocks}: ask for fewer tokens, or give the engine more blocks."
            )
        self.waiting.append(sequence)

    def schedule(self) -> Step:
        """The next step; empty if no sequence is left."""
        step, budget = [], self.max_num_batched_tokens
        preemptions = self.num_preemptions
        for sequence in list(self.running):
            count = min(budget, sequence.num_tokens - sequence.num_computed_tokens)
            if count and sequence in self.running and self._make_room(sequence, count):
                step.append((sequence, count))
                budget -= count
        while budget and self.waiting and len(self.running) < self.max_num_seqs and self.num_preemptions == preemptions:
            sequence = self.waiting[0]
            if not self._enter(sequence):
                break
            count = min(budget, sequence.num_tokens - sequence.num_computed_tokens)
            step.append((sequence, count))
            budget -= count
        return step

    def take(self, step: Step, tokens: list[int]) -> list[Sequence]:
        """Give a computed step's sequences their tokens, one for each of `sampled(step)`, in order; returns those sequences."""
        moved = sampled(step)
        for sequence, count in step:
            sequence.num_computed_tokens += count
            self._share_full_blocks(sequence)
        for sequence, token in zip(moved, tokens, strict=True):
            self._append(sequence, token)
        return moved

    def _append(self, sequence: Sequence, token: int) -> None:
        if token < 0:
            sequence.error = SamplingError(
                f"The logits of token {len(sequence.output_token_ids) + 1} hold NaN or infinity: the weights are damaged, or too large for "
                "the dtype of the activations. Try dtype='float32'."
            )
            return self.finish(sequence, "error")
        sequence.output_token_ids.append(token)
        if token in self.eos_token_ids and not sequence.params.ignore_eos:
            self.finish(sequence, "stop")
        elif len(sequence.output_token_ids) == sequence.params.max_tokens or sequence.num_tokens == self.max_model_len:
            self.finish(sequence, "length")

    def finish(self, sequence: Sequence, reason: str) -> None:
        """End a sequence, wherever it is; its blocks are free."""
        sequence.finish_reason = reason
        (self.running if sequence in self.running else self.waiting).remove(sequence)
        self._give_back(sequence)

    def _enter(self, sequence: Sequence) -> bool:
        """Let the first waiting sequence run, on blocks that begin as it does, if there is memory for all of its tokens."""
        tokens, size = sequence.token_ids, self.pool.block_size
        while sequence.num_computed_tokens + size < len(tokens):  # its last token is always computed: the logits come from it
            start = sequence.num_computed_tokens
            found = self.pool.find(sequence.prefix, tuple(tokens[start : start + size]))
            if found is None:
                break
            block, sequence.prefix = found
            self.pool.hold(block)
            sequence.block_table.append(block)
            sequence.num_computed_tokens += size
            sequence.num_shared_blocks += 1
        needed = self.pool.blocks_for(len(tokens)) - len(sequence.block_table)
        if needed > self.pool.num_free:
            self._give_back(sequence)
            return False
        sequence.block_table += [self.pool.take() for _ in range(needed)]
        self.running.append(self.waiting.popleft())
        return True

    def _make_room(self, sequence: Sequence, count: int) -> bool:
        """Give a running sequence the blocks for `count` more tokens, of the newest ones if need be; False if it is the newest itself."""
        needed = self.pool.blocks_for(sequence.num_computed_tokens + count) - len(sequence.block_table)
        while needed > self.pool.num_free:
            newest = self.running.pop()
            self._give_back(newest)
            self.waiting.appendleft(newest)
            self.num_preemptions += 1
            if newest is sequence:
                return False
        sequence.block_table += [self.pool.take() for _ in range(needed)]
        return True

    def _give_back(self, sequence: Sequence) -> None:
        self.pool.give_back(sequence.block_table)
        sequence.block_table, sequence.num_computed_tokens, sequence.num_shared_blocks, sequence.prefix = [], 0, 0, NO_PREFIX

    def _share_full_blocks(self, sequence: Sequence) -> None:
        size, tokens = self.pool.block_size, sequence.token_ids
        while (sequence.num_shared_blocks + 1) * size <= sequence.num_computed_tokens:
            start = sequence.num_shared_blocks * size
            block = sequence.block_table[sequence.num_shared_blocks]
            sequence.prefix = self.pool.share(block, sequence.prefix, tuple(tokens[start : start + size]))
            sequence.num_shared_blocks += 1


def sampled(step: Step) -> list[Sequence]:
    """The sequences of a step that get a token: those of which it computes the last known one."""
    return [sequence for sequence, count in step if sequence.num_computed_tokens + count == sequence.num_tokens]
