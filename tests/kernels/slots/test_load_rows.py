"""From the slots' state to a decode batch."""

import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.slots.load_rows import load_rows, load_rows_reference
from tests.kernels.slots.cases import BATCH, make_batch, make_slots, make_state


@pytest.mark.parametrize("load", [load_rows, load_rows_reference])
@pytest.mark.parametrize(("rows", "width", "block_size"), [(1, 1, 1), (6, 3, 16), (9, 140, 1)])
def test_each_row_is_its_slots(rows, width, block_size, load):
    state, slots, batch = make_state(11, width, block_size), make_slots(rows, 11), make_batch(rows, width)
    state.lengths[slots[0]] = width * block_size  # a full table
    before = state.words.copy()
    load(slots, state, batch, block_size)
    for row, slot in enumerate(slots):
        found = [getattr(batch, name)[row] for name in BATCH[:4]]
        if slot < 0:
            assert found == [0, 0, -1, 0] and (batch.block_tables[row] == -7).all()
            continue
        position = state.lengths[slot] - 1
        block, blocks = state.block_tables[slot, position // block_size], position // block_size + 1
        assert found == [state.newest_tokens[slot], position, block * block_size + position % block_size, position + 1]
        np.testing.assert_array_equal(batch.block_tables[row, :blocks], state.block_tables[slot, :blocks])
        assert (batch.block_tables[row, blocks:] == -7).all()
    np.testing.assert_array_equal(state.words, before)


@pytest.mark.parametrize("load", [load_rows, load_rows_reference])
def test_prompts_may_begin_in_the_rows_of_padding(load):
    state, slots, batch = make_state(11, 3, 16), make_slots(9, 11), make_batch(9, 3)
    padding = slots < 0
    before = {name: getattr(batch, name)[padding].copy() for name in BATCH}
    assert padding.any() and not padding.all()
    load(slots, state, batch, 16, pads=False)
    for name in BATCH:
        np.testing.assert_array_equal(getattr(batch, name)[padding], before[name], err_msg=name)
    np.testing.assert_array_equal(batch.token_ids[~padding], state.newest_tokens[slots[~padding]])


def test_narrower_tables_hold_shorter_contexts():
    state, slots, batch = make_state(3, 6, 4), np.int32([2, 0]), make_batch(2, 2)
    state.lengths[:] = [5, 24, 8]
    load_rows(slots, state, batch, 4)
    np.testing.assert_array_equal(batch.block_tables, state.block_tables[[2, 0], :2])


def test_wrong_arrays_are_refused():
    state = make_state(3, 2, 4)
    with pytest.raises(KernelArgumentError, match=r"positions.* is int32 \[2\]|token_ids is int32 \[2\]"):
        load_rows(np.zeros(3, np.int32), state, make_batch(2, 2), 4)
    with pytest.raises(KernelArgumentError, match="block_tables has 3 columns; it may have up to 2"):
        load_rows(np.zeros(2, np.int32), state, make_batch(2, 3), 4)


@pytest.mark.parametrize("load", [load_rows, load_rows_reference])
def test_padding_stays_as_it_is_where_prompts_begin(load):
    state, slots, batch, before = make_state(5, 3, 4), np.int32([3, -1, -1]), make_batch(3, 3), make_batch(3, 3)
    load(slots, state, batch, 4, pads=False)
    for name in BATCH:
        np.testing.assert_array_equal(getattr(batch, name)[1:], getattr(before, name)[1:], err_msg=name)
        assert (getattr(batch, name)[0] != getattr(before, name)[0]).any()
