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
from minllm.ops.protocol import Batch

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


def slots_of(block_table: np.ndarray, positions: np.ndarray, block_size: int) -> np.ndarray:
    """Cache slots of the given positions of one sequence: block * block_size + offset."""
    return block_table[positions // block_size] * block_size + positions % block_size


def build_batch(spans: Sequence[NewTokens], logits_rows: Sequence[int], block_size: int, residual_window: int = 0) -> Batch:
    """The arrays, on the host, for the new tokens of B sequences. residual_window: the cache's, in tokens; 0 for none."""
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


def to_backend(batch: Batch, ops) -> Batch:
    """The batch with its arrays in the backend's memory."""
    recent = None if batch.recent is None else replace(batch.recent, **{n: ops.array(a) for n, a in batch.recent.arrays().items()})
    return replace(batch, recent=recent, **{name: ops.array(getattr(batch, name)) for name in BATCH_ARRAYS})


def behind_verifications(prompts: Batch | None, positions: Sequence[int], lengths: Sequence[int], block_size: int) -> Batch:
    """A batch, on the host, of B verifications, followed by `prompts`, which may be None.

    Verification b computes lengths[b] tokens from positions[b] on: the newest token and its drafts. The positions are upper bounds;
    `Ops.load_spans` writes all arrays of these rows.
    """
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    ends, rows = np.add(positions, lengths).astype(np.int32), int(starts[-1])
    count, columns = len(lengths), blocks_needed(int(ends.max()), block_size)
    if prompts is not None:
        columns = max(columns, prompts.block_tables.shape[1])
    tables, nothing = np.zeros((count, columns), np.int32), np.zeros(rows, np.int32)
    batch = Batch(
        token_ids=nothing, positions=nothing, slot_mapping=nothing, query_start=starts, context_lens=ends, block_tables=tables,
        logits_rows=np.arange(rows, dtype=np.int32), num_tokens=rows, num_sequences=count, max_query_len=max(lengths),
        max_context_len=int(ends.max()), num_decodes=count if rows == count else 0, num_verifications=count,
    )  # fmt: skip
    if prompts is None:
        return batch
    behind = np.zeros((prompts.num_sequences, columns), np.int32)
    behind[:, : prompts.block_tables.shape[1]] = prompts.block_tables
    named = ("token_ids", "positions", "slot_mapping", "context_lens")
    together: dict[str, Any] = {name: np.concatenate([getattr(batch, name), getattr(prompts, name)]) for name in named}
    return replace(
        batch, **together,
        query_start=np.concatenate([starts[:-1], prompts.query_start + np.int32(rows)]), block_tables=np.concatenate([tables, behind]),
        logits_rows=np.concatenate([batch.logits_rows, prompts.logits_rows + np.int32(rows)]), num_tokens=rows + prompts.num_tokens,
        num_sequences=count + prompts.num_sequences, max_query_len=max(batch.max_query_len, prompts.max_query_len),
        max_context_len=max(batch.max_context_len, prompts.max_context_len),
    )  # fmt: skip


def behind_decodes(prompts: Batch | None, positions: Sequence[int], block_size: int) -> Batch:
    """A batch, on the host, of sequences that decode at these positions, followed by `prompts`, which may be None.

    Only the positions of the rows that decode are known here; `Ops.load_rows` fills in their other arrays from the slots.
    """
    count = len(positions)
    context_lens = np.array(positions, np.int32) + np.int32(1)
    rows, nothing = np.arange(count + 1, dtype=np.int32), np.zeros(count, np.int32)
    columns = blocks_needed(int(context_lens.max(initial=0)), block_size)
    if prompts is None:
        return Batch(
            token_ids=nothing, positions=context_lens - 1, slot_mapping=nothing, query_start=rows, context_lens=context_lens,
            block_tables=np.zeros((count, columns), np.int32), logits_rows=rows[:-1], num_tokens=count, num_sequences=count,
            max_query_len=1, max_context_len=int(context_lens.max()), num_decodes=count,
        )  # fmt: skip
    tables = np.zeros((count + prompts.num_sequences, max(columns, prompts.block_tables.shape[1])), np.int32)
    tables[count:, : prompts.block_tables.shape[1]] = prompts.block_tables
    return Batch(
        token_ids=np.concatenate([nothing, prompts.token_ids]),
        positions=np.concatenate([context_lens - 1, prompts.positions]),
        slot_mapping=np.concatenate([nothing, prompts.slot_mapping]),
        query_start=np.concatenate([rows[:-1], prompts.query_start + np.int32(count)]),
        context_lens=np.concatenate([context_lens, prompts.context_lens]),
        block_tables=tables,
        logits_rows=np.concatenate([rows[:-1], prompts.logits_rows + np.int32(count)]),
        num_tokens=count + prompts.num_tokens,
        num_sequences=count + prompts.num_sequences,
        max_query_len=prompts.max_query_len,
        max_context_len=max(int(context_lens.max(initial=0)), prompts.max_context_len),
        recent=prompts.recent,
        num_decodes=count,
    )


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
