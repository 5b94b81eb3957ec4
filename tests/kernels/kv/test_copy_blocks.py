"""Copying blocks: reference and simulated kernel, lists of copies that depend on each other, and callers' mistakes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minllm.errors import KernelArgumentError, SimulationError
from minllm.kernels.kv.copy_blocks import copy_blocks, copy_blocks_of_layers, copy_blocks_reference
from minllm.kernels.kv.copy_rounds import in_rounds


def pairs(*copies):
    return np.array(copies, np.int32).reshape(-1, 2)


BLOCKS = st.integers(0, 4)


@given(copies=st.lists(st.tuples(BLOCKS, BLOCKS), max_size=12))
def test_rounds_give_what_one_copy_after_the_other_gives(copies):
    """Copies of a round may happen in any order: here all are read before any is written, and in the reverse order."""
    expected = np.arange(5)
    copy_blocks_reference(expected, copies)
    together, backwards = np.arange(5), np.arange(5)
    rounds = in_rounds(copies)
    assert sum(rounds, []) == copies
    for copied in map(np.array, rounds):
        together[copied[:, 1]] = together[copied[:, 0]]
        copy_blocks_reference(backwards, copied[::-1])
    np.testing.assert_array_equal(together, expected)
    np.testing.assert_array_equal(backwards, expected)


def test_copies_that_do_not_meet_are_one_round():
    assert in_rounds([]) == []
    assert len(in_rounds([(0, 1), (0, 2), (3, 4)])) == 1, "a block may be read twice"
    assert len(in_rounds([(0, 1), (1, 2)])) == len(in_rounds([(0, 1), (2, 0)])) == len(in_rounds([(0, 1), (2, 1)])) == 2


def test_the_simulator_finds_a_block_outside_the_cache():
    for row in (4, 3):
        with pytest.raises(SimulationError, match="out of bounds"):
            copy_blocks(np.zeros((2, row), np.float32), pairs((0, 2)))


def test_no_copies_are_no_launch(device):
    cache = np.ones((2, 3), np.float32)
    copy_blocks(cache, pairs())
    assert cache.all()


MISTAKES = {
    "triples": (dict(copies=np.zeros((1, 3), np.int32)), r"copies is int32 \[1, 3\]"),
    "64 bits": (dict(copies=np.zeros((1, 2), np.int64)), "copies is int64"),
    "one axis": (dict(cache=np.zeros(4, np.float32)), r"cache has shape \(4,\)"),
    "a layer among others": (dict(cache=np.zeros((4, 2, 3), np.float32)[:, 1]), "cache has gaps"),
    "too many": (dict(copies=np.zeros((65536, 2), np.int32)), "65536 copies are more than the 65535"),
}


@pytest.mark.parametrize("change,message", MISTAKES.values(), ids=MISTAKES)
def test_mistakes(change, message):
    with pytest.raises(KernelArgumentError, match=message):
        copy_blocks(**{"cache": np.zeros((4, 6), np.float32), "copies": pairs((0, 1)), **change})


LAYERS = np.zeros((2, 4, 6), np.float32)
MISTAKES_WITH_LAYERS = {
    "no layers": (dict(caches=LAYERS[0]), r"caches has shape \(4, 6\)"),
    "a half of each block": (dict(caches=LAYERS[..., :3]), "cache has gaps"),
    "fewer layers": (dict(to=LAYERS[:1]), "blocks of 2 layers cannot be copied to blocks of 1"),
    "other blocks": (dict(to=np.zeros((2, 4, 5), np.float32)), r"blocks of float32 \(6,\) cannot be copied to blocks of float32 \(5,\)"),
    "other numbers": (dict(to=np.zeros((2, 4, 6), np.int32)), r"cannot be copied to blocks of int32"),
    "too many layers": (dict(caches=np.zeros((65536, 2, 1), np.uint8)), "65536 layers are more than the 65535"),
}


@pytest.mark.parametrize("change,message", MISTAKES_WITH_LAYERS.values(), ids=MISTAKES_WITH_LAYERS)
def test_mistakes_with_layers(change, message):
    with pytest.raises(KernelArgumentError, match=message):
        copy_blocks_of_layers(**{"caches": LAYERS, "copies": pairs((0, 1)), **change})
