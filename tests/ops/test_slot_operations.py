"""The operations on slots: kernels in the simulator and NumPy leave the same arrays; decode steps by slots, end to end."""

from dataclasses import replace

import numpy as np
import pytest

from minllm.kernels.sampling.parameters import sampling_entries
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.kernels.slots.state import SlotState
from minllm.ops.cuda_ops import CudaOps
from minllm.ops.numpy_ops import NumpyOps
from tests.kernels.sampling.cases import PENALTIES, logits_of, parameters
from tests.ops.decode_batches import decode_batch

pytestmark = [pytest.mark.results_only, pytest.mark.usefixtures("small_tiles")]

VOCAB, BLOCK_SIZE = 111, 4


@pytest.fixture(params=[NumpyOps, lambda: CudaOps("float32", simulated=True)], ids=["numpy", "simulator"])
def ops(request):
    return request.param()


def decode(ops, slots, window):
    """A decode batch of rows in these slots, whose arrays are not loaded yet."""
    rows, zeros = len(slots), np.zeros(len(slots), np.int32)
    batch = decode_batch(zeros, zeros, np.zeros((rows, 3), np.int32), BLOCK_SIZE, rings=np.maximum(slots, 0), residual_window=window)
    recent = batch.recent and replace(batch.recent, **{name: ops.array(array.copy()) for name, array in batch.recent.arrays().items()})
    names = ("token_ids", "positions", "slot_mapping", "context_lens", "block_tables")
    return replace(batch, recent=recent, **{name: ops.array(np.full_like(getattr(batch, name), -7)) for name in names})


@pytest.mark.parametrize("window", [0, 32])
def test_a_batch_loaded_from_slots_is_that_of_its_sequences(ops, window):
    state = SlotState.make(ops.zeros, 4, 12)
    lengths, tables = [0, 9, 1, 40], np.arange(48).reshape(4, 12)[::-1]
    for slot in (1, 2, 3):
        ops.write_slots(state, ops.array(state.pairs(slot, newest_tokens=50 + slot, lengths=lengths[slot], block_tables=tables[slot])))
    slots = np.int32([3, 1])
    batch = decode(ops, slots, window)
    batch.block_tables = ops.zeros((2, 12), np.int32)
    ops.load_rows(ops.array(slots), state, batch, BLOCK_SIZE, window)
    positions = np.int32([39, 8])
    expected = decode_batch(np.int32([53, 51]), positions, tables[slots].astype(np.int32), BLOCK_SIZE, slots, window)
    for name in ("token_ids", "positions", "slot_mapping", "context_lens"):
        np.testing.assert_array_equal(getattr(batch, name), getattr(expected, name), err_msg=name)
    if window:
        for name in ("slot_mapping", "context_lens", "block_tables"):
            np.testing.assert_array_equal(getattr(batch.recent, name), getattr(expected.recent, name), err_msg=name)


def test_a_padding_row_has_no_recent_tokens(ops):
    state, batch = SlotState.make(ops.zeros, 2, 3), decode(ops, np.int32([-1]), 32)
    ops.load_rows(ops.array(np.int32([-1])), state, batch, BLOCK_SIZE, 32)
    assert batch.recent.slot_mapping[0] == -1 and batch.recent.context_lens[0] == 0 and batch.recent.block_tables.min() >= 0


def test_sequences_sample_in_slots_what_they_sample_alone(ops):
    """Three steps of four requests in changing rows, and in NumPy in the same ones: counts, steps and seeds follow the slot."""
    rules = [parameters(**rule) for rule in (*PENALTIES[1:4], dict(temperature=1.3, top_k=5))]
    logits = [logits_of("normal", 4, VOCAB, seed=step) for step in range(3)]

    def generate(ops, slots_of_requests, order_of_step):
        state = SlotState.make(ops.zeros, 6, 2)
        state.sampling = state.sampling.with_vocabulary_arrays(ops.zeros, VOCAB).of_kind(SamplingKind.ADJUSTED)
        for slot, params in zip(slots_of_requests, rules, strict=True):
            entries = sampling_entries(params, VOCAB, [1, 2], ending_token_ids=[3])
            ops.write_slots(state, ops.array(state.pairs(slot, lengths=2, **entries.words)))
            for name, array in entries.vocabulary.items():
                getattr(state.sampling, name)[slot] = array
        texts = {request: [] for request in range(4)}
        for step, order in enumerate(order_of_step):
            slots = ops.array(np.array([slots_of_requests[request] for request in order], np.int32))
            tokens = ops.sample(ops.array(logits[step][list(order)]), state.sampling, slots)
            ops.advance(tokens, slots, state)
            for request, token in zip(order, tokens, strict=True):
                texts[request].append(int(token))
        assert state.lengths[slots_of_requests[0]] == 5
        return texts

    expected = generate(NumpyOps(), [0, 1, 2, 3], [(0, 1, 2, 3)] * 3)
    assert generate(ops, [5, 2, 4, 0], [(3, 1, 0, 2), (0, 1, 2, 3), (2, 3, 1, 0)]) == expected


def test_log_probabilities(ops):
    logits, token_ids = logits_of("normal", 3, VOCAB), np.int32([0, 110, 7])
    found, expected = (one.log_probabilities(logits, token_ids, 20) for one in (ops, NumpyOps()))
    np.testing.assert_array_equal(found.rank, expected.rank)
    np.testing.assert_array_equal(found.top_token_ids, expected.top_token_ids)
    np.testing.assert_allclose(found.chosen, expected.chosen, rtol=2e-6)
