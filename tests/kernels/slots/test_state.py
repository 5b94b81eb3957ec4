"""The flat state: every field is a view of it, and pairs name the right words."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minllm.catalogue.sampling import parameters
from minllm.errors import KernelArgumentError
from minllm.kernels.sampling.parameters import sampling_entries
from minllm.kernels.slots.state import SlotState, slot_layout
from minllm.kernels.slots.write_slots import write_slots, write_slots_reference

WRITERS = [write_slots, write_slots_reference]


@given(st.integers(1, 9), st.integers(1, 7))
def test_every_word_belongs_to_one_field(num_slots, width):
    layout = slot_layout(num_slots, width)
    owned = np.concatenate([np.arange(field.start, field.start + field.size) for field in layout.values()])
    state = SlotState.make(np.zeros, num_slots, width)
    np.testing.assert_array_equal(np.sort(owned), np.arange(len(state.words)))
    assert state.words.nbytes == 4 * num_slots * (14 + width)


@pytest.mark.parametrize("write", WRITERS)
def test_a_request_enters_a_slot_and_changes_no_other(write):
    state = SlotState.make(np.zeros, 3, 5)
    entries = sampling_entries(parameters(temperature=0.7, top_k=9, seed=2**63 + 5), 50, [1, 2], [3])
    write(state.words, state.pairs(1, newest_tokens=3, lengths=3, block_tables=[7, 8], **entries.words))
    assert state.newest_tokens.tolist() == [0, 3, 0] and state.lengths.tolist() == [0, 3, 0]
    assert state.block_tables.tolist() == [[0] * 5, [7, 8, 0, 0, 0], [0] * 5]
    sampling = state.sampling
    np.testing.assert_array_equal(sampling.temperature, np.float32([0, 0.7, 0]))
    assert sampling.top_k.tolist() == [0, 9, 0] and sampling.step.tolist() == [0, 1, 0]
    assert sampling.seed.tolist() == [[0, 0], [5, 2**31], [0, 0]] and sampling.seed.dtype == np.uint32
    write(state.words, state.block_pairs([1, 2], [2, 0], [4, 6]))
    assert state.block_tables[1:].tolist() == [[7, 8, 4, 0, 0], [6, 0, 0, 0, 0]]
    write(state.words, state.pairs(2))


def test_wrong_pairs_are_refused():
    with pytest.raises(KernelArgumentError, match="pairs is int64"):
        write_slots(np.zeros(9, np.int32), np.zeros((2, 2), np.int64))
    with pytest.raises(KernelArgumentError, match="two=2"):
        write_slots(np.zeros(9, np.int32), np.zeros((2, 3), np.int32))
