"""The flat state: every field is a view of it, and pairs name the right words."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minllm.errors import KernelArgumentError
from minllm.kernels.sampling.parameters import sampling_entries
from minllm.kernels.slots.state import SlotState, slot_layout
from minllm.kernels.slots.write_slots import write_slots, write_slots_reference
from tests.kernels.sampling.cases import parameters

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


@pytest.mark.parametrize("count", [1, 127, 300])
def test_kernel_and_reference_write_the_same(count, device):
    random = np.random.default_rng(count)
    words = random.integers(0, 100, 500).astype(np.int32)
    pairs = np.stack([random.permutation(500)[:count], random.integers(-9, 9, count)], axis=1).astype(np.int32)
    pairs[1::3, 0] = -1
    found = device.array(words)
    write_slots(found, device.array(pairs))
    write_slots_reference(words, pairs)
    np.testing.assert_array_equal(device.host(found), words)


def test_wrong_pairs_are_refused():
    with pytest.raises(KernelArgumentError, match="pairs is int64"):
        write_slots(np.zeros(9, np.int32), np.zeros((2, 2), np.int64))
    with pytest.raises(KernelArgumentError, match="two=2"):
        write_slots(np.zeros(9, np.int32), np.zeros((2, 3), np.int32))
