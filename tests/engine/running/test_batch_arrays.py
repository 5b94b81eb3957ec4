"""The arrays of a batch against a plain loop over tokens."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.engine.running.batch_arrays import NewTokens, behind_slots, build_batch
from minllm.engine.running.block_tables import padded_block_tables

ARRAYS = ("token_ids", "positions", "slot_mapping", "query_start", "context_lens", "block_tables", "logits_rows")
SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40)), min_size=1, max_size=6)  # (start, length) of each
BLOCK_SIZES = st.sampled_from([1, 3, 16])


def spans_of(lengths, block_size):
    """NewTokens at these (start, length), in blocks that no other has, and the (token, position, slot) of each token."""
    numbers, spans, rows = iter(np.random.default_rng(0).permutation(700).tolist()), [], []
    for index, (start, length) in enumerate(lengths):
        table = [next(numbers) for _ in range(-(-(start + length) // block_size))]
        spans.append(NewTokens([100 * index + i for i in range(length)], start, table))
        positions = range(start, start + length)
        rows += [(100 * index + p - start, p, table[p // block_size] * block_size + p % block_size) for p in positions]
    return spans, rows


def rows_of(batch):
    """The (token, position, slot) of each token."""
    return list(zip(batch.token_ids.tolist(), batch.positions.tolist(), batch.slot_mapping.tolist(), strict=True))


def check(batch):
    """What holds of every batch."""
    assert all(getattr(batch, name).dtype == np.int32 for name in ARRAYS)
    queries = np.diff(batch.query_start)
    assert batch.query_start[0] == 0 and batch.query_start[-1] == batch.num_tokens == len(batch.token_ids)
    assert batch.num_sequences == len(queries) == len(batch.context_lens) == len(batch.block_tables)
    assert batch.max_query_len == queries.max() and batch.max_context_len == batch.context_lens.max()
    for sequence in range(batch.num_sequences):
        rows = slice(batch.query_start[sequence], batch.query_start[sequence + 1])
        end = batch.context_lens[sequence]
        assert batch.positions[rows].tolist() == list(range(end - queries[sequence], end))


@given(lengths=SPANS, block_size=BLOCK_SIZES)
def test_every_new_token_is_there_once_and_in_order(lengths, block_size):
    spans, rows = spans_of(lengths, block_size)
    batch = build_batch(spans, [3, 1], block_size)
    check(batch)
    assert rows_of(batch) == rows and batch.logits_rows.tolist() == [3, 1]
    assert [table[: len(span.block_table)].tolist() for table, span in zip(batch.block_tables, spans, strict=True)] == [
        span.block_table for span in spans
    ]


def decodes_before(prompts, positions, block_size):
    return behind_slots(prompts, positions, [1] * len(positions), block_size)


@given(lengths=SPANS, positions=st.lists(st.integers(0, 90), min_size=1, max_size=5), block_size=BLOCK_SIZES)
def test_decodes_come_before_prompts(lengths, positions, block_size):
    """Of a row that decodes only the position is known; `Ops.load_rows` fills in the rest, for which there must be room."""
    spans, rows = spans_of(lengths, block_size)
    batch, count = decodes_before(build_batch(spans, [len(rows) - 1, 0], block_size), positions, block_size), len(positions)
    check(batch)
    assert batch.num_decodes == count and batch.num_sequences == count + len(spans)
    assert batch.positions[:count].tolist() == positions and rows_of(batch)[count:] == rows
    assert batch.logits_rows.tolist() == [*range(count), count + len(rows) - 1, count]
    assert batch.block_tables.shape[1] * block_size > max(positions)
    assert [table[: len(span.block_table)].tolist() for table, span in zip(batch.block_tables[count:], spans, strict=True)] == [
        span.block_table for span in spans
    ]


@settings(max_examples=50, deadline=None)
@given(positions=st.lists(st.integers(0, 90), min_size=1, max_size=5), block_size=BLOCK_SIZES)
def test_decodes_alone(positions, block_size):
    batch = decodes_before(None, positions, block_size)
    check(batch)
    assert batch.num_decodes == batch.num_tokens == len(positions) and batch.positions.tolist() == positions
    assert batch.logits_rows.tolist() == list(range(len(positions)))
    assert batch.block_tables.shape[1] * block_size > max(positions)


@given(
    lengths=SPANS, verified=st.lists(st.tuples(st.integers(0, 90), st.integers(1, 5)), min_size=1, max_size=5), block_size=BLOCK_SIZES
)  # fmt: skip
def test_verifications_come_before_prompts(lengths, verified, block_size):
    """A verification has a row for the newest token and for each draft, all of which get logits."""
    spans, rows = spans_of(lengths, block_size)
    starts, counts = zip(*verified, strict=True)
    batch, total = behind_slots(build_batch(spans, [0], block_size), starts, counts, block_size, verifies=True), sum(counts)
    check(batch)
    assert batch.num_verifications == len(verified) and batch.num_sequences == len(verified) + len(spans)
    assert batch.num_decodes == (len(verified) if max(counts) == 1 else 0)
    assert rows_of(batch)[total:] == rows and batch.logits_rows.tolist() == [*range(total), total]
    assert batch.context_lens[: len(verified)].tolist() == [start + count for start, count in verified]


def test_block_tables_are_padded_with_block_0():
    tables = padded_block_tables([[7, 3], [5], [0, 1, 2]])
    assert tables.tolist() == [[7, 3, 0], [5, 0, 0], [0, 1, 2]] and tables.dtype == np.int32
