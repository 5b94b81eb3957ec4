"""Build the arrays of a forward pass from sequences: a flattened batch of T tokens, all int32 (the names are vLLM's).

A chunk of prompts and a decode step are the same arrays with other numbers. Prompts longer than `max_num_batched_tokens`, or more
prompts than fit it, are computed in several chunks; each sees the keys and values that earlier chunks left in the cache.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from minllm.engine.recent_tokens import recent_of_decode, recent_of_spans
from minllm.ops.protocol import Batch


@dataclass(frozen=True)
class Span:
    """New tokens of one sequence: `token_ids` at positions from `start` on, in the cache blocks of `block_table`."""

    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    ring: int = 0  # number of the ring that holds the sequence's newest tokens, if the cache has a residual window


@dataclass(frozen=True)
class PrefillChunk:
    """Some prompt tokens of some sequences; for those in `completed` (indices into the prompts) the last prompt token is here."""

    batch: Batch
    completed: list[int]


def padded_block_tables(tables: Sequence[Sequence[int]], width: int = 1) -> np.ndarray:
    """Stack block tables: int32 [B, max_blocks], at least `width` wide.

    The padding is block 0, which is never read: context_lens ends before it.
    """
    padded = np.zeros((len(tables), max(width, *map(len, tables))), np.int32)
    for row, table in enumerate(tables):
        padded[row, : len(table)] = table
    return padded


def slots_of(block_table: np.ndarray, positions: np.ndarray, block_size: int) -> np.ndarray:
    """Cache slots of the given positions of one sequence: block * block_size + offset."""
    return block_table[positions // block_size] * block_size + positions % block_size


def build_batch(spans: Sequence[Span], logits_rows: Sequence[int], block_size: int, residual_window: int = 0) -> Batch:
    """The arrays, on the host, for the new tokens of B sequences. residual_window: that of the cache."""
    lengths = [len(span.token_ids) for span in spans]
    ends = [span.start + length for span, length in zip(spans, lengths, strict=True)]
    positions = [np.arange(span.start, end) for span, end in zip(spans, ends, strict=True)]
    slots = [slots_of(np.asarray(span.block_table), at, block_size) for span, at in zip(spans, positions, strict=True)]
    return Batch(
        token_ids=np.concatenate([span.token_ids for span in spans]).astype(np.int32),
        positions=np.concatenate(positions).astype(np.int32),
        slot_mapping=np.concatenate(slots).astype(np.int32),
        query_start=np.cumsum([0, *lengths]).astype(np.int32),
        context_lens=np.array(ends, np.int32),
        block_tables=padded_block_tables([span.block_table for span in spans]),
        logits_rows=np.array(logits_rows, np.int32),
        num_tokens=sum(lengths),
        num_sequences=len(spans),
        max_query_len=max(lengths),
        max_context_len=max(ends),
        recent=recent_of_spans(spans, residual_window) if residual_window else None,
    )


def prefill_chunks(
    prompts: Sequence[Sequence[int]],
    block_tables: Sequence[Sequence[int]],
    block_size: int,
    max_num_batched_tokens: int,
    cached: Sequence[int],
    served_by: Sequence[int],
    residual_window: int = 0,
) -> Iterator[PrefillChunk]:
    """Split the prompts into chunks of at most `max_num_batched_tokens` tokens, in order; each prompt's last row needs logits.

    The first `cached[i]` tokens of prompt i, fewer than all, are in the cache and are not computed. A prompt may rely on tokens of
    earlier prompts: their keys and values are written by an earlier chunk, or earlier in each layer of the same chunk.
    `served_by[i]` is i, or an equal earlier prompt that is computed for both: then the logits of its last row are used twice.

    residual_window: that of the cache; prompt i has ring i.
    A chunk that completes no prompt computes the logits of its last row, which are not used, so that no array is ever empty.
    """
    spans: list[Span] = []
    completed: list[int] = []
    rows: list[int] = []
    used = 0
    for index, prompt in enumerate(prompts):
        start = cached[index] if served_by[index] == index else len(prompt)
        while start < len(prompt):
            end = min(len(prompt), start + max_num_batched_tokens - used)
            spans.append(Span(prompt[start:end], start, block_tables[index], index))
            used += end - start
            if end == len(prompt):
                served = [i for i, by in enumerate(served_by) if by == index]
                completed.extend(served)
                rows.extend([used - 1] * len(served))
            start = end
            if used == max_num_batched_tokens:
                yield PrefillChunk(build_batch(spans, rows or [used - 1], block_size, residual_window), completed)
                spans, completed, rows, used = [], [], [], 0
    if spans:
        yield PrefillChunk(build_batch(spans, rows, block_size, residual_window), completed)


def decode_batch(
    token_ids: np.ndarray, positions: np.ndarray, block_tables: np.ndarray, block_size: int, rings: np.ndarray | None = None,
    residual_window: int = 0,
) -> Batch:  # fmt: skip
    """The arrays, on the host, for one new token of each of B sequences: token_ids, positions int32 [B], block_tables [B, max_blocks].

    rings: int32 [B], the ring of each sequence if the cache has a residual_window.
    """
    count = len(token_ids)
    rows = np.arange(count + 1, dtype=np.int32)
    slots = block_tables[rows[:-1], positions // block_size] * block_size + positions % block_size
    return Batch(
        token_ids=token_ids,
        positions=positions,
        slot_mapping=slots.astype(np.int32),
        query_start=rows,
        context_lens=positions + np.int32(1),
        block_tables=block_tables,
        logits_rows=rows[:-1],
        num_tokens=count,
        num_sequences=count,
        max_query_len=1,
        max_context_len=int(positions.max()) + 1,
        recent=recent_of_decode(positions, rings, residual_window) if residual_window else None,
    )


def to_backend(batch: Batch, ops) -> Batch:
    """The batch with its arrays in the backend's memory."""
    names = ("token_ids", "positions", "slot_mapping", "query_start", "context_lens", "block_tables", "logits_rows")
    recent = None if batch.recent is None else replace(batch.recent, **{n: ops.array(a) for n, a in batch.recent.arrays().items()})
    return replace(batch, recent=recent, **{name: ops.array(getattr(batch, name)) for name in names})
