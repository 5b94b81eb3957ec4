"""The rows of a draft model: one per run, a token ahead each time, within the room that there is."""

import numpy as np
import pytest

from minllm.catalogue.speculation.states import RUNS, slots_of
from minllm.kernels.speculation.draft_rows import run_slots, run_slots_reference, store_drafts, store_drafts_reference
from minllm.kernels.speculation.load_spans import load_spans, load_spans_reference
from minllm.kernels.speculation.state import DraftState
from tests.kernels.slots.cases import to_device
from tests.kernels.speculation.cases import batch_of, drafts_to_device, make_states
from tests.kernels.speculation.test_spans import BLOCK_SIZE


@pytest.mark.parametrize("missing", [-1, 0, 3])
@pytest.mark.parametrize("runs", [RUNS, [(3, 2), (1, 1)], [(-1, 2)], [(slot, 3) for slot in range(200)]])
def test_the_slot_of_each_run(runs, missing, device):
    slots = slots_of(runs)
    every = [slot for slot, rows in runs for _ in range(rows if slot < 0 else 1)]
    expected = np.int32((every + [-1] * 3)[: len(every) + missing])
    np.testing.assert_array_equal(run_slots_reference(slots, len(expected)), expected)
    out = device.array(np.full(len(expected), -7, np.int32))
    run_slots(device.array(slots), out)
    np.testing.assert_array_equal(device.host(out), expected)


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_rows_ahead_within_their_room(ahead, device):
    state, drafts = make_states()
    slots, count = np.int32([2, -1, 0, 5, 6]), 5
    room = state.lengths[slots] + np.int32([4, 0, ahead, 1, 0])
    batch, found = batch_of([1] * count, more=0), batch_of([1] * count, array=device.array, more=0)
    load_spans_reference(slots, state, drafts, batch, BLOCK_SIZE, ahead, room)
    states = to_device(state, device), drafts_to_device(drafts, device)
    load_spans(device.array(slots), *states, found, BLOCK_SIZE, ahead, device.array(room))
    for name, array in vars(batch).items():
        np.testing.assert_array_equal(device.host(getattr(found, name)), array, err_msg=name)
    for row, slot in enumerate(slots):
        position = state.lengths[slot] - 1 + ahead
        if slot < 0:
            assert (batch.token_ids[row], batch.slot_mapping[row], batch.context_lens[row]) == (0, -1, 0)
        elif position >= room[row]:
            assert batch.slot_mapping[row] == -1 and batch.context_lens[row] == room[row]
        else:
            assert batch.slot_mapping[row] == state.block_tables[slot, position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
            assert batch.context_lens[row] == position + 1
            assert batch.token_ids[row] == (drafts.drafts[slot, ahead - 1] if ahead else state.newest_tokens[slot])


@pytest.mark.parametrize("is_drawn", [False, True])
def test_drafts_are_stored_by_slot(is_drawn, device):
    random = np.random.default_rng(1)
    drafts = DraftState.make(np.zeros, 6, 3, 4, vocab=300)
    drafts.log_q[:] = random.normal(size=drafts.log_q.shape)
    found = DraftState(device.array(drafts.drafts), device.array(drafts.token_history), device.array(drafts.log_q))
    slots, tokens = np.int32([4, -1, 0]), np.int32([7, 8, 9])
    log_q = random.normal(size=(3, 300)).astype(np.float32) if is_drawn else None
    store_drafts_reference(tokens, slots, 2, drafts, log_q)
    store_drafts(device.array(tokens), device.array(slots), 2, found, None if log_q is None else device.array(log_q))
    np.testing.assert_array_equal(device.host(found.drafts), drafts.drafts)
    np.testing.assert_array_equal(device.host(found.log_q), drafts.log_q)
    assert drafts.drafts.tolist() == [[0, 0, 9], [0] * 3, [0] * 3, [0] * 3, [0, 0, 7], [0] * 3]
    assert not is_drawn or np.array_equal(drafts.log_q[4, 2], log_q[0])
