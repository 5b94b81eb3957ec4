"""Slots, drafts and rows in runs of the launches of speculation."""

from types import SimpleNamespace

import numpy as np

from minllm.catalogue.slots import make_state, state_of
from minllm.kernels.speculation.state import DraftState

RUNS = ((2, 3), (0, 1), (-1, 2), (5, 1), (3, 5), (-1, 1), (4, 2))
SLOTS, WIDTH, BLOCK_SIZE, DRAFTS, VOCABULARY = 7, 6, 4, 4, 50
LONGEST = 1000  # tokens of a sequence with a tree
HOST = SimpleNamespace(array=np.array)


def slots_of(runs):
    """The slot of each row: int32 [R]."""
    return np.concatenate([np.full(rows, slot, np.int32) for slot, rows in runs])


def make_states(random, num_slots=SLOTS, width=WIDTH, block_size=BLOCK_SIZE, num_drafts=DRAFTS, vocabulary=VOCABULARY):
    """(slots with sequences that have room for their drafts, their drafts); the history holds few different tokens."""
    state = make_state(random, num_slots, width, block_size, vocabulary)
    state.lengths[:] = random.integers(1, width * block_size - num_drafts, num_slots)
    state.sampling.step[:], state.sampling.min_tokens[:] = random.integers(0, 9, (2, num_slots))
    drafts = DraftState.make(np.zeros, num_slots, num_drafts, width * block_size)
    drafts.drafts[:] = random.integers(0, vocabulary, drafts.drafts.shape)
    drafts.token_history[:] = random.integers(0, 3, drafts.token_history.shape)
    return state, drafts


def of_state(words, width=WIDTH, **arrays):
    """The SlotState of these words."""
    return state_of(words, SLOTS, width, **arrays)


def random_tokens(noise, *shape, most=3):
    """Tokens below `most`, so that some are equal."""
    return noise.random.integers(0, most, shape).astype(np.int32)
