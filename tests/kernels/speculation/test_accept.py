"""Acceptance of drafts that are certain: by the first mismatch, and what that means for sampled text."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.catalogue.speculation.states import RUNS, slots_of
from minllm.kernels.sampling import SamplingKind, sample_reference
from minllm.kernels.speculation.accept import accept_reference
from minllm.kernels.speculation.row_sampling import row_sampling, row_sampling_reference
from minllm.kernels.speculation.state import DraftState
from tests.kernels.sampling.cases import PENALTIES, RULES, logits_of, tensors
from tests.kernels.slots.cases import to_device
from tests.kernels.speculation.cases import drafts_to_device, make_states

RUN_LISTS = st.lists(st.tuples(st.integers(-1, 5), st.integers(1, 6)), min_size=1, max_size=6, unique_by=lambda run: run[0])


@settings(max_examples=60, deadline=None)
@given(RUN_LISTS, st.integers(0, 2**32 - 1))
def test_drafts_count_up_to_the_first_mismatch(runs, seed):
    slots, random = slots_of(runs), np.random.default_rng(seed)
    chosen, computed = random.integers(0, 2, (2, len(slots)), np.int32)
    counts, row = accept_reference(chosen, computed, slots), 0
    for slot, rows in runs:
        expected = 1
        while expected < rows and computed[row + expected] == chosen[row + expected - 1]:
            expected += 1
        assert counts[row : row + rows].tolist() == [expected if slot >= 0 else 0] + [0] * (rows - 1)
        row += rows


@pytest.mark.parametrize("kind", [SamplingKind.RANDOM, SamplingKind.ADJUSTED])
@pytest.mark.parametrize("ahead, salt", [(0, 0), (2, 2**31 + 5)])
def test_parameters_of_rows(kind, ahead, salt, device):
    state, drafts = make_states(num_drafts=6)
    slots = slots_of(RUNS)
    expected, rows = row_sampling_reference(slots, state, drafts, kind, ahead, salt)
    found, found_rows = row_sampling(
        device.array(slots), to_device(state, device), drafts_to_device(drafts, device), kind,
        lambda shape, dtype: device.array(np.full(shape, 77, dtype)), ahead, salt,
    )  # fmt: skip
    np.testing.assert_array_equal(device.host(found_rows), rows)
    assert found.arrays().keys() == expected.arrays().keys() and found.kind is kind
    for name, array in expected.arrays().items():
        used = np.flatnonzero(slots >= 0)
        np.testing.assert_array_equal(device.host(found.arrays()[name])[used], array[used], err_msg=name)


def drafts_for(tokens, random, vocab, right):
    """Drafts of which each is the right token with this probability."""
    return np.where(random.random(len(tokens)) < right, tokens, random.integers(0, vocab, len(tokens))).astype(np.int32)


@pytest.mark.parametrize("vocab", [16, 111])
@pytest.mark.parametrize("rules", [RULES, PENALTIES], ids=["rules", "penalties"])
@pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
def test_verified_tokens_are_those_of_decoding_one_by_one(vocab, rules, right):
    """Under every rule: temperature, thresholds, penalties, bans and min_tokens. The model is a table of logits by position."""
    random = np.random.default_rng([vocab, int(10 * right)])
    table, count = logits_of("normal", 40, vocab), 24
    for rule in rules:
        plain, expected = tensors([rule], vocab, step=0), []
        slot = np.zeros(1, np.int32)
        for position in range(count + 4):
            expected += sample_reference(table[position : position + 1], plain, slot).tolist()
            plain.advance(slot, np.int32(expected[-1:]))
        state = tensors([rule], vocab, step=0)
        found = []
        while len(found) < count:
            drafted = drafts_for(expected[len(found) : len(found) + 4], random, vocab, right)
            rows = np.zeros(5, np.int32)
            given, row_slots = row_sampling_reference(rows, _slots(state), DraftState(drafted[None], None), state.kind)
            chosen = sample_reference(table[len(found) : len(found) + 5], given, row_slots)
            new = chosen[: accept_reference(chosen, np.int32([0, *drafted]), rows)[0]]
            for token in new:
                state.advance(slot, np.int32([token]))
            found += new.tolist()
            assert right < 1 or len(new) == 5
        assert found[:count] == expected[:count], rule


class _slots:  # noqa: N801 - only what row_sampling_reference reads of a SlotState
    def __init__(self, sampling):
        self.sampling = sampling
