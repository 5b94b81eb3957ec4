"""States of slots with drafts, and rows of runs."""

from types import SimpleNamespace

import numpy as np

from minllm.catalogue.speculation import states
from minllm.kernels.speculation.state import DraftState


def make_states(num_slots=7, width=6, block_size=4, num_drafts=4, vocab=50, seed=0):
    """(slots with sequences that have room for their drafts, their drafts); the history holds few different tokens."""
    return states.make_states(np.random.default_rng([seed, num_slots]), num_slots, width, block_size, num_drafts, vocab)


def batch_of(lengths, columns=6, array=np.array, more=2):
    """A batch's arrays, all -7, for sequences with these numbers of rows; more: rows of others behind them."""
    rows = sum(lengths) + more
    named = {name: array(np.full(rows, -7, np.int32)) for name in ("token_ids", "positions", "slot_mapping")}
    of_sequences = dict(context_lens=np.full(len(lengths), -7, np.int32), block_tables=np.full((len(lengths), columns), -7, np.int32))
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    return SimpleNamespace(query_start=array(starts), **named, **{name: array(one) for name, one in of_sequences.items()})


def drafts_to_device(drafts: DraftState, device) -> DraftState:
    """A copy on the device."""
    return DraftState(device.array(drafts.drafts), device.array(drafts.token_history))
