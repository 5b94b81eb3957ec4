"""States of slots and the batches made from them."""

from types import SimpleNamespace

import numpy as np

from minllm.kernels.slots.state import SlotState

BATCH = ("token_ids", "positions", "slot_mapping", "context_lens", "block_tables")


def make_state(num_slots: int, width: int, block_size: int, vocab: int = 50, seed: int = 0) -> SlotState:
    """Slots of sequences of any length that fits their block tables; every third slot has penalties."""
    random = np.random.default_rng([seed, num_slots, width, block_size])
    state = SlotState.make(np.zeros, num_slots, width)
    state.words[:] = random.integers(0, 1000, state.words.shape)
    state.newest_tokens[:] = random.integers(0, vocab, num_slots)
    state.lengths[:] = random.integers(1, width * block_size + 1, num_slots)
    state.block_tables[:] = random.permutation(num_slots * width).reshape(num_slots, width)
    state.sampling = state.sampling.with_vocabulary_arrays(np.zeros, vocab)
    state.sampling.output_counts[:] = random.integers(0, 3, (num_slots, vocab))
    state.sampling.adjustments[:] = np.arange(num_slots) % 3 == 1
    return state


def make_slots(rows: int, num_slots: int, seed: int = 0) -> np.ndarray:
    """A different slot for each row, and -1 for every fourth one."""
    random = np.random.default_rng([seed, rows])
    slots = random.permutation(num_slots)[:rows].astype(np.int32)
    slots[3::4] = -1
    return slots


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


def assert_same_state(found: SlotState, expected: SlotState, device) -> None:
    """The words and the counts of two states, bit for bit."""
    np.testing.assert_array_equal(device.host(found.words), expected.words)
    np.testing.assert_array_equal(device.host(found.sampling.output_counts), expected.sampling.output_counts)
