"""Lookahead decoding: the window moves on, the pool keeps each n-gram once, and the newest that fit are drafted."""

import numpy as np
import pytest

from minllm.catalogue.speculation.states import slots_of
from minllm.errors import KernelArgumentError
from minllm.kernels.speculation import lookahead as module
from minllm.kernels.speculation.lookahead import LookaheadState, add_ngram, find_ngrams, lookahead, lookahead_reference
from minllm.kernels.speculation.state import DraftState

W, N, G = 4, 3, 2
NODES, DRAFTS = W * (N - 1), W * (N - 1) - 1 + G * (N - 1)


def states(num_slots=6, seed=0, added=0, device=None):
    """(drafts, pools), with `added` random n-grams of three tokens in each pool."""
    random, make = np.random.default_rng(seed), np.zeros
    drafts, state = DraftState.make(make, num_slots, DRAFTS, 1), LookaheadState.make(make, num_slots, W, N, G)
    drafts.drafts[:] = random.integers(0, 3, drafts.drafts.shape)
    for slot in range(num_slots):
        for ngram in random.integers(0, 9, (added, N)):
            add_ngram(state, slot, ngram)
    return drafts, state


def test_a_step_by_hand():
    """Levels 0 and 1 of four columns; the rows' tokens are 10 .. 17 and the model says 20 .. 27."""
    drafts, state = states(num_slots=1)
    computed, chosen = np.arange(10, 10 + DRAFTS + 1, dtype=np.int32), np.arange(20, 21 + DRAFTS, dtype=np.int32)
    counts = lookahead_reference(slots_of([(0, DRAFTS + 1)]), np.int32([12]), drafts, computed, chosen, state)
    assert state.pool[0, :4].tolist() == [[10, 14, 24], [11, 15, 25], [12, 16, 26], [13, 17, 27]] and state.added[0] == 4
    assert drafts.drafts[0, : NODES - 1].tolist() == [15, 16, 17, 24, 25, 26, 27], "level 1 is level 0 now, without its first column"
    assert counts.tolist() == [NODES - 1 + N - 1] + [0] * DRAFTS and drafts.drafts[0, NODES - 1 : NODES + 1].tolist() == [16, 26]


def test_a_run_without_its_window_only_drafts():
    drafts, state = states(num_slots=1)
    add_ngram(state, 0, np.int32([5, 6, 7]))
    before = drafts.drafts.copy()
    counts = lookahead_reference(slots_of([(0, 1)]), np.int32([5]), drafts, np.int32([3]), np.int32([5]), state)
    assert counts.tolist() == [NODES + 1] and np.array_equal(drafts.drafts[0, : NODES - 1], before[0, : NODES - 1])
    assert drafts.drafts[0, NODES - 1 : NODES + 1].tolist() == [6, 7] and state.added[0] == 1


def test_pools_keep_the_newest_of_each(monkeypatch):
    monkeypatch.setattr(module, "POOL", 4)
    state = LookaheadState(np.zeros((1, 4, N), np.int32), np.zeros(1, np.int32), W, N, G)
    for last in (1, 2, 1, 3, 4, 5):
        add_ngram(state, 0, np.int32([7, 8, last]))
    assert state.added[0] == 5, "one was there already"
    assert find_ngrams(state, 0, 7).tolist() == [[8, 5], [8, 4]] and find_ngrams(state, 0, 8).size == 0
    assert sorted(state.pool[0, :, 2].tolist()) == [2, 3, 4, 5]


def test_wrong_arguments():
    drafts, state = states(num_slots=1)
    row = np.zeros(1, np.int32)
    with pytest.raises(KernelArgumentError, match="drafts has room for 10 of a slot; W, N and G make 11"):
        lookahead(row, row, DraftState(drafts.drafts[:, 1:], drafts.token_history), row, row, state, row)
