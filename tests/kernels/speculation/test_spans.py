"""From the slots to the rows of a verification, and from its tokens back to the slots."""

import numpy as np
import pytest

from minllm.catalogue.speculation.states import RUNS, slots_of
from minllm.errors import KernelArgumentError
from minllm.kernels.slots.advance import advance_reference
from minllm.kernels.slots.load_rows import load_rows_reference
from minllm.kernels.speculation.advance_spans import advance_spans, advance_spans_reference
from minllm.kernels.speculation.load_spans import load_spans, load_spans_reference
from minllm.kernels.speculation.runs import runs_of
from tests.kernels.slots.cases import make_batch
from tests.kernels.speculation.cases import batch_of, make_states

BLOCK_SIZE = 4
VERIFIED = [run for run in RUNS if run[0] >= 0]


def test_rows_hold_the_newest_token_and_the_drafts():
    state, drafts = make_states()
    batch, lengths = batch_of([rows for _, rows in VERIFIED]), [rows for _, rows in VERIFIED]
    load_spans_reference(slots_of(VERIFIED), state, drafts, batch, BLOCK_SIZE)
    row = 0
    for number, (slot, rows) in enumerate(VERIFIED):
        start = state.lengths[slot] - 1
        assert batch.token_ids[row : row + rows].tolist() == [state.newest_tokens[slot], *drafts.drafts[slot, : rows - 1]]
        assert batch.positions[row : row + rows].tolist() == list(range(start, start + rows))
        assert batch.context_lens[number] == start + rows
        places = [state.block_tables[slot, at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE for at in range(start, start + rows)]
        assert batch.slot_mapping[row : row + rows].tolist() == places
        blocks = -(-(start + rows) // BLOCK_SIZE)
        assert batch.block_tables[number, :blocks].tolist() == state.block_tables[slot, :blocks].tolist()
        assert (batch.block_tables[number, blocks:] == -7).all()
        row += rows
    assert (batch.token_ids[sum(lengths) :] == -7).all(), "rows of prompts stay as they are"


def test_runs_of_one_row_are_plain_decodes():
    state, drafts = make_states()
    slots = np.int32([3, 0, 6])
    batch, plain = batch_of([1, 1, 1], more=0), make_batch(3, 6)
    load_spans_reference(slots, state, drafts, batch, BLOCK_SIZE)
    load_rows_reference(slots, state, plain, BLOCK_SIZE)
    for name, array in vars(plain).items():
        np.testing.assert_array_equal(getattr(batch, name), array)
    other, _ = make_states()
    tokens = np.int32([7, 8, 9])
    advance_spans_reference(tokens, np.ones(3, np.int32), slots, state, drafts)
    advance_reference(tokens, slots, other)
    np.testing.assert_array_equal(state.words, other.words)
    np.testing.assert_array_equal(state.sampling.output_counts, other.sampling.output_counts)


def counts_of(slots, seed):
    """Any number of new tokens for each run."""
    counts, random = np.zeros(len(slots), np.int32), np.random.default_rng(seed)
    for first, rows in runs_of(slots):
        counts[first] = random.integers(1, rows + 1)
    return counts


@pytest.mark.parametrize("seed", range(3))
def test_new_tokens_enter_their_slots(seed):
    state, drafts = make_states(seed=seed)
    slots = slots_of(RUNS)
    tokens, counts = np.arange(len(slots), dtype=np.int32) % 9, counts_of(slots, seed)
    lengths, steps = state.lengths.copy(), state.sampling.step.copy()
    before = state.sampling.output_counts.copy()
    advance_spans_reference(tokens, counts, slots, state, drafts)
    for first, _ in runs_of(slots):
        slot, new = slots[first], tokens[first : first + counts[first]]
        assert state.newest_tokens[slot] == new[-1] and state.lengths[slot] == lengths[slot] + len(new)
        assert state.sampling.step[slot] == steps[slot] + len(new)
        assert drafts.token_history[slot, lengths[slot] : state.lengths[slot]].tolist() == new.tolist()
        expected = before[slot] + (np.bincount(new, minlength=50) if slot % 3 == 1 else 0)
        np.testing.assert_array_equal(state.sampling.output_counts[slot], expected)


def test_wrong_arrays_are_refused():
    state, drafts = make_states()
    with pytest.raises(KernelArgumentError, match=r"counts is int32 \[2\]; its shape must be \[rows=3\]"):
        advance_spans(np.zeros(3, np.int32), np.zeros(2, np.int32), np.zeros(3, np.int32), state, drafts)
    with pytest.raises(KernelArgumentError, match="block_tables has 7 columns; it may have up to 6"):
        load_spans(np.zeros(1, np.int32), state, drafts, batch_of([1], columns=7), BLOCK_SIZE)
