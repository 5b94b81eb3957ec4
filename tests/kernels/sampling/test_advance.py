"""From one decode step's arrays to the next one's."""

import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.sampling.advance import advance, advance_reference
from tests.kernels.sampling.cases import tensors

NAMES = ("token_ids", "positions", "slot_mapping", "context_lens")


def state(rows, block_size, blocks=3):
    random = np.random.default_rng(rows)
    tables = random.permutation(rows * blocks).reshape(rows, blocks).astype(np.int32)
    positions = random.integers(0, 2 * block_size, rows).astype(np.int32)
    slots = tables[np.arange(rows), positions // block_size] * block_size + positions % block_size
    arrays = dict(token_ids=random.integers(0, 50, rows), positions=positions, slot_mapping=slots, context_lens=positions + 1)
    return {name: array.astype(np.int32) for name, array in arrays.items()}, tables


@pytest.mark.parametrize("move", [advance, advance_reference])
@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("rows", [1, 5, 129])
def test_every_row_moves_on_by_one(rows, block_size, move):
    before, tables = state(rows, block_size)
    after = {name: array.copy() for name, array in before.items()}
    limits = np.full(rows, 3 * block_size, np.int32)
    limits[-1] = before["positions"][-1] + 1  # its blocks end here
    limits[: rows // 3] = 0  # retired
    new_tokens = np.arange(rows, dtype=np.int32) % 50
    sampling = tensors([dict(presence_penalty=0.5)] * rows, 50, step=2)
    counts = sampling.output_counts.copy()
    move(new_tokens, *after.values(), tables, limits, sampling, block_size)
    for row in range(rows):
        position = before["positions"][row] + 1
        if position < limits[row]:
            slot = tables[row, position // block_size] * block_size + position % block_size
            assert [after[name][row] for name in NAMES] == [new_tokens[row], position, slot, position + 1]
        else:
            assert after["slot_mapping"][row] == -1 and after["context_lens"][row] == 0
            assert after["positions"][row] == before["positions"][row]
        counts[row, new_tokens[row]] += 1
    np.testing.assert_array_equal(sampling.step, 3)
    np.testing.assert_array_equal(sampling.output_counts, counts)


def test_a_row_that_is_off_stays_off_and_needs_no_counts():
    arrays, tables = state(2, 4)
    arrays["positions"][:] = 3
    limits = np.array([4, 9], np.int32)
    sampling = tensors([dict(), dict()], 50)
    for _ in range(3):
        advance(np.array([1, 2], np.int32), *arrays.values(), tables, limits, sampling, 4)
    np.testing.assert_array_equal(arrays["positions"], [3, 6])
    np.testing.assert_array_equal(arrays["context_lens"], [0, 7])
    np.testing.assert_array_equal(sampling.step, 4)


def test_wrong_arrays_are_refused():
    arrays, tables = state(2, 4)
    with pytest.raises(KernelArgumentError, match=r"limits is int32 \(3,\); it must be int32 \[2\]"):
        advance(np.zeros(2, np.int32), *arrays.values(), tables, np.zeros(3, np.int32), tensors([dict(), dict()], 50), 4)
