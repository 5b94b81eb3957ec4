"""Runs the model on a static batch: one prefill, then one token per step for every sequence.

The runner handles arrays, not texts: the engine reads each step's tokens, decides which sequences have ended, and retires them. This
runner works on any `Ops`, one operation after the other. A runner that replays a CUDA graph has the same interface, and can compute
step n + 1 before step n is read.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

import numpy as np

from minllm.cache.block_pool import blocks_needed
from minllm.cache.kv_cache import KVCache
from minllm.engine.batch_arrays import decode_batch, padded_block_tables, prefill_chunks, to_backend
from minllm.engine.sequence import Sequence
from minllm.kernels.sampling.log_probabilities import LogProbabilities, log_probabilities_reference
from minllm.kernels.sampling.parameters import build_sampling_tensors
from minllm.kernels.sampling.tensors import SamplingTensors
from minllm.models.decoder import forward


@dataclass(frozen=True)
class Step:
    """One token for each of the B sequences passed to `start`, in that order.

    A runner that works ahead returns its own class with these two methods, which wait for the device.
    """

    tokens: np.ndarray  # int32 [B]
    logprobs: LogProbabilities | None

    def token_ids(self) -> np.ndarray:
        """The new tokens, int32 [B]; -1 for retired sequences."""
        return self.tokens

    def log_probabilities(self) -> LogProbabilities | None:
        """Log-probabilities of the new and the likeliest tokens, B rows; None if no sequence of the batch requested them."""
        return self.logprobs


class ModelRunner:
    """Computes static batches, one at a time: start, prefill, any number of decode_step with retire between, finish.

    `steps_ahead` is how many steps may be launched before the first of them is read; a retirement then takes effect that much later,
    so a sequence may be computed that many steps beyond its end (its tokens are dropped; its block table has room for them).
    """

    steps_ahead = 0

    def __init__(self, ops, model, cache: KVCache, max_num_batched_tokens: int):
        self.ops = ops
        self.model = model
        self.cache = cache
        self.max_num_batched_tokens = max_num_batched_tokens
        self._sequences: list[Sequence] = []

    def start(self, sequences: Many[Sequence]) -> None:
        """Take a batch: sequences with prompts, parameters, and block tables with room for their prompts."""
        self._sequences = list(sequences)
        self._sampling = self.sampling_tensors(self._sequences)
        self._top = max((s.params.logprobs for s in self._sequences if s.params.logprobs is not None), default=None)
        self._active = np.arange(len(self._sequences))  # indices of the sequences that still run
        widest = max(blocks_needed(s.num_reserved_tokens, self.cache.block_size) for s in self._sequences)
        self._block_tables = padded_block_tables([s.block_table for s in self._sequences], widest)
        self._token_ids = np.full(len(self._sequences), -1, np.int32)  # the newest token of each
        self._positions = np.array([len(s.prompt_token_ids) for s in self._sequences], np.int32)  # position of the newest token

    def sampling_tensors(self, sequences: Many[Sequence]) -> SamplingTensors:
        """The sampling parameters of the sequences as host arrays, one row per sequence."""
        return build_sampling_tensors(
            [s.params for s in sequences],
            self.model.config.vocab_size,
            prompts=[s.prompt_token_ids for s in sequences],
            stop_token_ids=[sorted(s.ending_token_ids) for s in sequences],
        )

    def prefill(self) -> Step:
        """Compute the uncached part of all prompts, in chunks, and the first token of every sequence."""
        tokens = np.empty(len(self._sequences), np.int32)
        logprobs = []
        prompts, tables = [s.prompt_token_ids for s in self._sequences], [s.block_table for s in self._sequences]
        cached = [s.num_cached_tokens for s in self._sequences]
        row_of = {s.request_id: row for row, s in enumerate(self._sequences)}
        served_by = [row_of[(s.forked_from or s).request_id] for s in self._sequences]
        window = self.cache.shape.residual_window
        for chunk in prefill_chunks(
            prompts,
            tables,
            self.cache.block_size,
            max_num_batched_tokens=self.max_num_batched_tokens,
            cached=cached,
            served_by=served_by,
            residual_window=window,
        ):
            logits = forward(self.ops, self.model, to_backend(chunk.batch, self.ops), self.cache.layers)
            if chunk.completed:
                sampling = rows_of(self._sampling, np.array(chunk.completed))
                tokens[chunk.completed], chunk_logprobs = self._sample(logits, sampling)
                logprobs.append(chunk_logprobs)
        forks = [(by, row) for row, by in enumerate(served_by) if by != row]
        if window and forks:
            self.cache.copy_rings(self.ops, forks)
        return self._advance(tokens, None if self._top is None else LogProbabilities(*map(np.concatenate, zip(*logprobs, strict=True))))

    def block_tables_changed(self, rows: Many[int]) -> None:
        """Read the block tables of the sequences with these indices into the batch again, for the steps launched from now on."""
        for row in rows:
            table = self._sequences[row].block_table
            self._block_tables[row, : len(table)] = table

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        """Copy blocks of the cache, (source, destination) one after the other, before the steps launched from now on."""
        self.cache.copy_blocks(self.ops, copies)

    def decode_step(self) -> Step:
        """Compute the next token of every sequence that is not retired."""
        active = self._active
        arrays = (self._token_ids[active], self._positions[active], self._block_tables[active])
        batch = decode_batch(*arrays, self.cache.block_size, active, self.cache.shape.residual_window)
        logits = forward(self.ops, self.model, to_backend(batch, self.ops), self.cache.layers)
        tokens, logprobs = self._sample(logits, self._sampling)
        self._positions[active] += 1
        return self._advance(tokens, logprobs)

    def retire(self, rows: Many[int]) -> None:
        """Stop computing the sequences with these indices into the batch."""
        keep = ~np.isin(self._active, rows)
        self._active, self._sampling = self._active[keep], rows_of(self._sampling, np.flatnonzero(keep))

    def finish(self) -> None:
        """Drop the batch, whether it is complete or not."""
        self._sequences, self._sampling = [], None

    def _sample(self, logits, sampling: SamplingTensors) -> tuple[np.ndarray, LogProbabilities | None]:
        slots = np.arange(logits.shape[0], dtype=np.int32)
        tokens = self.ops.to_host(self.ops.sample(logits, sampling.to(self.ops.array), self.ops.array(slots)))
        return tokens, None if self._top is None else log_probabilities_reference(self.ops.to_host(logits), tokens, self._top)

    def _advance(self, tokens: np.ndarray, logprobs: LogProbabilities | None) -> Step:
        """Record the new tokens of the active sequences, and scatter them to the rows of the whole batch."""
        self._token_ids[self._active] = tokens
        self._sampling.advance(np.arange(len(tokens)), tokens)
        if len(self._active) == len(self._sequences):
            return Step(tokens, logprobs)
        spread = np.full(len(self._sequences), -1, np.int32)
        spread[self._active] = tokens
        return Step(spread, None if logprobs is None else LogProbabilities(*(self._spread(array) for array in logprobs)))

    def _spread(self, array: np.ndarray) -> np.ndarray:
        whole = np.zeros((len(self._sequences), *array.shape[1:]), array.dtype)
        whole[self._active] = array
        return whole


def rows_of(sampling: SamplingTensors, rows: np.ndarray) -> SamplingTensors:
    """A copy of some rows of sampling tensors on the host."""
    return replace(sampling, **{name: array[rows] for name, array in sampling.arrays().items()})
