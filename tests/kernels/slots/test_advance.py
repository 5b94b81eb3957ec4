"""From one decode step's tokens to the next one's state; whole steps against lists of tokens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.errors import KernelArgumentError
from minllm.kernels.slots.advance import advance, advance_reference
from minllm.kernels.slots.load_rows import load_rows, load_rows_reference
from minllm.kernels.slots.state import SlotState
from minllm.kernels.slots.write_slots import write_slots, write_slots_reference
from tests.kernels.slots.cases import make_batch, make_slots, make_state

KERNELS, REFERENCES = (write_slots, load_rows, advance), (write_slots_reference, load_rows_reference, advance_reference)


@pytest.mark.parametrize("move", [advance, advance_reference])
@pytest.mark.parametrize("rows", [1, 5, 129])
def test_every_slot_of_a_row_moves_on_by_one(rows, move):
    state, slots = make_state(140, 2, 16), make_slots(rows, 140)
    tokens = np.arange(rows, dtype=np.int32) % 50
    before, counts = SlotState.make(lambda *_: state.words.copy(), 140, 2), state.sampling.output_counts.copy()
    move(tokens, slots, state)
    for row, slot in enumerate(slots):
        if slot >= 0:
            before.newest_tokens[slot] = tokens[row]
            before.lengths[slot] += 1
            before.sampling.step[slot] += 1
            counts[slot, tokens[row]] += slot % 3 == 1
    np.testing.assert_array_equal(state.words, before.words)
    np.testing.assert_array_equal(state.sampling.output_counts, counts)


def test_no_counts_are_needed_without_penalties():
    state = SlotState.make(np.zeros, 2, 1)
    advance(np.int32([9]), np.int32([1]), state)
    assert state.lengths.tolist() == [0, 1] and state.newest_tokens.tolist() == [0, 9]


STEPS = st.lists(st.tuples(st.integers(0, 3), st.permutations(range(4)), st.integers(0, 4)), min_size=1, max_size=12)


@settings(max_examples=25, deadline=None)
@given(STEPS, st.sampled_from([KERNELS, REFERENCES]))
def test_steps_with_changing_rows_follow_lists_of_tokens(steps, functions):
    """Each step a sequence enters a slot (and the one in it leaves), then some slots in any order compute their next token."""
    write, load, move = functions
    block_size, width, blocks = 2, 12, iter(range(10**6))
    state, sequences = SlotState.make(np.zeros, 4, width), {}  # sequences: slot -> (tokens, blocks)
    for number, (entering, order, rows) in enumerate(steps):
        prompt = list(range(1, 2 + (entering + number) % 4))
        sequences[entering] = prompt, [next(blocks) for _ in range(-(-len(prompt) // block_size))]
        pairs = state.pairs(entering, newest_tokens=prompt[-1], lengths=len(prompt), block_tables=sequences[entering][1], step=0)
        write(state.words, pairs)
        active = [slot for slot in order if slot in sequences and len(sequences[slot][0]) < 20][:rows]
        slots = np.array([*active, -1], np.int32)
        batch = make_batch(len(slots), width)
        load(slots, state, batch, block_size)
        for row, slot in enumerate(active):
            tokens, table = sequences[slot]
            assert batch.token_ids[row] == tokens[-1] and batch.context_lens[row] == len(tokens) == batch.positions[row] + 1
            assert batch.slot_mapping[row] == table[-1] * block_size + (len(tokens) - 1) % block_size
            assert batch.block_tables[row, : len(table)].tolist() == table
        new_tokens = np.arange(len(slots), dtype=np.int32) + 10 * number
        move(new_tokens, slots, state)
        grown = []
        for slot, token in zip(active, new_tokens, strict=False):
            tokens, table = sequences[slot]
            tokens.append(int(token))
            if len(tokens) > len(table) * block_size:
                table.append(next(blocks))
                grown.append((slot, len(table) - 1, table[-1]))
        if grown:
            write(state.words, state.block_pairs(*zip(*grown, strict=True)))
    for slot, (tokens, _) in sequences.items():
        assert state.lengths[slot] == len(tokens) and state.newest_tokens[slot] == tokens[-1]


def test_wrong_arrays_are_refused():
    with pytest.raises(KernelArgumentError, match=r"slots is int32 \[3\]; its shape must be \[rows=2\]"):
        advance(np.zeros(2, np.int32), np.zeros(3, np.int32), make_state(3, 2, 4))
