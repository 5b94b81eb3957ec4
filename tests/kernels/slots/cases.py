"""Batches made from states of slots, and copies of states."""

from types import SimpleNamespace

import numpy as np

from minllm.catalogue import slots
from minllm.catalogue.slots import BATCH
from minllm.kernels.slots.state import SlotState


def make_state(num_slots, width, block_size, vocab=50, seed=0):
    """catalogue.slots.make_state of a seed."""
    return slots.make_state(np.random.default_rng([seed, num_slots, width, block_size]), num_slots, width, block_size, vocab)


def make_slots(rows, num_slots, seed=0):
    """catalogue.slots.slots_of_rows of a seed."""
    return slots.slots_of_rows(np.random.default_rng([seed, rows]), rows, num_slots)


def make_batch(rows: int, columns: int, array=np.array) -> SimpleNamespace:
    """A batch's arrays, all -7."""
    shapes = {name: (rows, columns) if name == "block_tables" else (rows,) for name in BATCH}
    return SimpleNamespace(**{name: array(np.full(shape, -7, np.int32)) for name, shape in shapes.items()})


def to_device(state: SlotState, device) -> SlotState:
    """A copy whose arrays are views of one array on the device, as those of the original are."""
    words = device.array(state.words)
    copied = SlotState.make(lambda shape, dtype: words, *state.block_tables.shape)
    wide = {name: device.array(getattr(state.sampling, name)) for name in ("token_flags", "output_counts", "logit_bias")}
    for name, array in wide.items():
        setattr(copied.sampling, name, array)
    return copied
