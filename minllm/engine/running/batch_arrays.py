"""Build the arrays of a forward pass from sequences: a flattened batch of T tokens, all int32 (the names are vLLM's).

A chunk of a prompt and a decode step use the same arrays with different contents; each reads the keys and values that earlier ones left in
the cache.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minllm.cache.block_pool import blocks_needed
from minllm.engine.running.block_tables import padded_block_tables
from minllm.engine.running.recent_tokens import recent_of_spans
from minllm.engine.running.step_graphs import GraphKey
from minllm.engine.scheduling.step import Span
from minllm.ops.batch import Batch

BATCH_ARRAYS = ("token_ids", "positions", "slot_mapping", "query_start", "context_lens", "block_tables", "logits_rows")


@dataclass(frozen=True)
class NewTokens:
    """New tokens of one sequence: `token_ids` at positions from `start` on, in the cache blocks of `block_table`."""

    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    ring: int = 0  # the ring that holds the sequence's newest tokens, if the cache has a residual window


def chunks(token_ids: Sequence[int], length: int, block_table: Sequence[int], ring: int = 0) -> Iterator[NewTokens]:
    """Split a text into NewTokens of up to `length` tokens each."""
    for start in range(0, len(token_ids), length):
        yield NewTokens(token_ids[start : start + length], start, block_table, ring)


def in_pieces(spans: Iterable[Span], most: int) -> Iterator[list[Span]]:
    """Group spans into lists of up to `most` tokens; a span that does not fit the rest of a group is split."""
    piece, room = [], most
    for span in spans:
        start, end = span.start, span.start + span.length
        while start < end:
            length = min(room, end - start)
            piece.append(span._replace(start=start, length=length))
            start, room = start + length, room - length
            if not room:
                yield piece
                piece, room = [], most
    if piece:
        yield piece


def build_batch(spans: Sequence[NewTokens], logits_rows: Sequence[int], block_size: int, residual_window: int = 0) -> Batch:
    """The arrays, on the host, for the new tokens of B sequences. residual_window: the cache's, in tokens; 0 for none."""
    token_ids = np.concatenate([np.array(span.token_ids) for span in spans])  # concatenate takes twice as long over lists
    tables = padded_block_tables([span.block_table for span in spans])
    recent = recent_of_spans(spans, residual_window) if residual_window else None
    starts, lengths = (np.array(one, np.int32) for one in ([span.start for span in spans], [len(span.token_ids) for span in spans]))
    return _batch_of(starts, lengths, token_ids, tables, logits_rows, block_size, recent=recent)


def _batch_of(
    starts: np.ndarray, lengths: np.ndarray, token_ids: np.ndarray, block_tables: np.ndarray, logits_rows: Sequence[int] | np.ndarray,
    block_size: int, **more: Any,
) -> Batch:  # fmt: skip
    """The batch, on the host, of sequences with lengths[b] new tokens from position starts[b] on. more: other fields of Batch."""
    query_start, ends = np.zeros(len(lengths) + 1, np.int32), starts + lengths
    np.cumsum(lengths, out=query_start[1:])
    owners = np.repeat(np.arange(len(lengths)), lengths)  # the sequence of each token
    positions = np.arange(len(owners), dtype=np.int32) + (starts - query_start[:-1])[owners]
    slots = block_tables[owners, positions // block_size] * block_size + positions % block_size
    arrays: dict[str, Any] = dict(token_ids=token_ids, positions=positions, slot_mapping=slots, context_lens=ends, logits_rows=logits_rows)
    arrays = {name: np.asarray(array, np.int32) for name, array in arrays.items()}
    return Batch(
        **arrays, query_start=query_start, block_tables=block_tables, max_query_len=int(lengths.max()),
        max_context_len=int(ends.max()), **more,
    )  # fmt: skip


def to_backend(batch: Batch, ops) -> Batch:
    """The batch with its arrays in the backend's memory."""
    recent = None if batch.recent is None else replace(batch.recent, **{n: ops.array(a) for n, a in batch.recent.arrays().items()})
    return replace(batch, recent=recent, **{name: ops.array(getattr(batch, name)) for name in BATCH_ARRAYS})


def behind_slots(prompts: Batch | None, positions: Sequence[int], lengths: Sequence[int], block_size: int, verifies: bool = False) -> Batch:
    """A batch, on the host, of B sequences that continue from their slots, followed by `prompts`, which may be None.

    Sequence b computes lengths[b] tokens from positions[b] on: its newest token and the drafts that it verifies. Positions are upper bounds
    if it verifies. Here only the shapes of these rows and the positions are known; `Ops.load_rows` or `Ops.load_spans` fills in the rest.
    """
    starts, runs = np.array(positions, np.int32), np.array(lengths, np.int32)
    count, rows = len(runs), int(runs.sum())
    tables = np.zeros((count, blocks_needed(int((starts + runs).max()), block_size)), np.int32)
    nothing, every = np.zeros(rows, np.int32), np.arange(rows, dtype=np.int32)
    counts = dict(num_decodes=count if rows == count else 0, num_verifications=count if verifies else 0)
    batch = _batch_of(starts, runs, nothing, tables, every, block_size, **counts)
    return batch if prompts is None else _followed_by(batch, prompts)


def _followed_by(first: Batch, prompts: Batch) -> Batch:
    """The sequences of `first`, then those of `prompts`, as one batch on the host."""
    rows, columns = np.int32(first.num_tokens), max(first.block_tables.shape[1], prompts.block_tables.shape[1])
    tables = [np.pad(one.block_tables, ((0, 0), (0, columns - one.block_tables.shape[1]))) for one in (first, prompts)]
    named = ("token_ids", "positions", "slot_mapping", "context_lens")
    together: dict[str, Any] = {name: np.concatenate([getattr(first, name), getattr(prompts, name)]) for name in named}
    return replace(
        first, **together, query_start=np.concatenate([first.query_start[:-1], prompts.query_start + rows]),
        block_tables=np.concatenate(tables), logits_rows=np.concatenate([first.logits_rows, prompts.logits_rows + rows]),
        max_query_len=max(first.max_query_len, prompts.max_query_len), max_context_len=max(first.max_context_len, prompts.max_context_len),
        recent=prompts.recent,
    )  # fmt: skip


def padded_arrays(
    batch: Batch, slots: Sequence[int], num_decodes: int, key: GraphKey, room: Sequence[int] = ()
) -> dict[str, np.ndarray]:  # fmt: skip
    """The arrays of a batch, and the slots of its sampled rows, padded to the shapes of a graph.

    Padding follows the decodes, the prompts, and the tokens. Padding sequences have no tokens and no context. room: Batch.room.
    """
    arrays = {name: np.zeros(shape, np.int32) for name, shape in key.layout().items()}
    first, count, total = key.decodes, batch.num_sequences - num_decodes, batch.num_tokens
    decoded = int(batch.query_start[num_decodes])
    behind = decoded if key.query_len else first  # first sampled row of the prompts: verifications leave no gap before it
    for name in ("token_ids", "positions", "slot_mapping"):
        arrays[name][:total] = getattr(batch, name)
    arrays["slot_mapping"][total:] = -1
    for name, values in (("slots", slots), ("logits_rows", batch.logits_rows)):
        arrays[name][:] = -1 if name == "slots" else 0
        arrays[name][:decoded] = values[:decoded]
        arrays[name][behind : behind + len(values) - decoded] = values[decoded:]
    if key.query_len:
        arrays["room"][: len(room)] = room
    starts = arrays["query_start"]
    starts[:num_decodes], starts[num_decodes:first] = batch.query_start[:num_decodes], decoded
    starts[first : first + count + 1], starts[first + count + 1 :] = batch.query_start[num_decodes:], total
    arrays["context_lens"][:num_decodes] = batch.context_lens[:num_decodes]
    arrays["context_lens"][first : first + count] = batch.context_lens[num_decodes:]
    arrays["block_tables"][first : first + count, : batch.block_tables.shape[1]] = batch.block_tables[num_decodes:]
    return arrays
