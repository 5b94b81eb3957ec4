"""Batches for the forward pass, built without the engine: which rows go where in a paged cache."""

from typing import Any

import numpy as np

from minllm.models.config import ModelConfig
from minllm.models.decoder import forward
from minllm.models.model import Model
from minllm.ops.batch import Batch, LayerCache
from minllm.ops.protocol import Ops


class PagedSequences:
    """Several sequences in one paged cache whose blocks are dealt out in a shuffled order, as a long-running engine's are."""

    def __init__(self, ops: Ops, config: ModelConfig, max_lengths: list[int], block_size: int = 16):
        self.ops, self.block_size = ops, block_size
        counts = [-(-length // block_size) for length in max_lengths]
        blocks = np.random.default_rng(0).permutation(sum(counts)).astype(np.int32)
        self.tables = np.zeros((len(counts), max(counts)), np.int32)
        for row, (count, start) in enumerate(zip(counts, np.cumsum([0, *counts]), strict=False)):
            self.tables[row, :count] = blocks[start : start + count]
        shape = (sum(counts), block_size, config.num_key_value_heads, config.head_dim)
        self.cache = [LayerCache(ops.zeros(shape, ops.dtype), ops.zeros(shape, ops.dtype)) for _ in range(config.num_hidden_layers)]
        self.lengths = [0] * len(counts)

    def append(self, chunks: list[list[int]], last_row_only: bool = False) -> Batch:
        """The batch that adds `chunks[b]` to sequence b; counts them as cached from then on."""
        positions = [np.arange(start, start + len(chunk)) for start, chunk in zip(self.lengths, chunks, strict=True)]
        slots = [self.tables[b, p // self.block_size] * self.block_size + p % self.block_size for b, p in enumerate(positions)]
        self.lengths = [start + len(chunk) for start, chunk in zip(self.lengths, chunks, strict=True)]
        ends = np.cumsum([len(chunk) for chunk in chunks])
        rows = ends - 1 if last_row_only else np.arange(ends[-1])
        return Batch(
            token_ids=self._array(np.concatenate(chunks)),
            positions=self._array(np.concatenate(positions)),
            slot_mapping=self._array(np.concatenate(slots)),
            query_start=self._array(np.concatenate([[0], ends])),
            context_lens=self._array(self.lengths),
            block_tables=self._array(self.tables),
            logits_rows=self._array(rows),
            max_query_len=max(len(chunk) for chunk in chunks),
            max_context_len=max(self.lengths),
            num_decodes=len(chunks) if ends[-1] == len(chunks) else 0,
        )

    def _array(self, values: Any) -> Any:
        return self.ops.array(np.asarray(values, np.int32))


def logits_in_chunks(ops: Ops, model: Model, token_ids: list[int], chunks: list[int], block_size: int = 16) -> np.ndarray:
    """The logits of every position of one sequence, [tokens, vocab], computed in forwards of the given numbers of tokens."""
    sequences = PagedSequences(ops, model.config, [len(token_ids)], block_size)
    ends = np.cumsum(chunks)
    assert ends[-1] == len(token_ids)
    parts = [token_ids[end - count : end] for end, count in zip(ends, chunks, strict=True)]
    return np.concatenate([ops.to_host(forward(ops, model, sequences.append([part]), sequences.cache)) for part in parts])


def logits_of(ops: Ops, model: Model, token_ids: list[int], block_size: int = 16) -> np.ndarray:
    """The logits of every position of one sequence in one forward, [tokens, vocab]."""
    return logits_in_chunks(ops, model, token_ids, [len(token_ids)], block_size)
