"""The longest right path of a tree, and its keys and values one after the other."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.catalogue.speculation.states import slots_of
from minllm.errors import KernelArgumentError
from minllm.kernels.kv.compact_path import compact_path, compact_path_reference
from minllm.kernels.speculation.accept import accept_reference
from minllm.kernels.speculation.accept_tree import accept_tree, accept_tree_reference
from tests.kernels.speculation.trees import ARRAYS, CHAIN, LEVELS, path_of, trees

RUNS = [(2, 10), (0, 4), (-1, 2), (5, 1), (3, 7)]


def right_paths(tree, computed, chosen):
    """All paths of a run along which every draft is what was chosen before it."""
    paths = [path_of(tree, node) for node in range(len(computed))]
    return [path for path in paths if all(computed[b] == chosen[a] for a, b in zip(path[:-1], path[1:], strict=True))]


@given(trees(), st.integers(1, 21), st.integers(0, 2**32 - 1))
def test_the_longest_right_path(tree, rows, seed):
    """Tokens are few, so siblings are often equal, and the best path is not always below the first that fits."""
    rows, random = min(rows, len(tree)), np.random.default_rng(seed)
    chosen, computed = random.integers(0, 2, (2, rows + 3), np.int32)
    slots = slots_of([(-1, 1), (4, rows), (1, 2)])
    tokens, path, counts = accept_tree_reference(chosen, computed, slots, np.array(tree.parents))
    candidates = right_paths(tree, computed[1 : rows + 1], chosen[1 : rows + 1])
    assert counts.tolist()[: rows + 1] == [0, max(map(len, candidates))] + [0] * (rows - 1)
    found = (path[1 : 1 + counts[1]] - 1).tolist()
    assert found in candidates and tokens[1 : 1 + counts[1]].tolist() == chosen[1:][found].tolist()
    left = slice(1 + counts[1], rows + 1)
    assert path[left].tolist() == list(range(left.start, left.stop)) and np.array_equal(tokens[left], chosen[left])


@pytest.mark.parametrize("seed", range(3))
def test_a_chain_is_accepted_as_drafts_without_a_tree(seed):
    chosen, computed = np.random.default_rng(seed).integers(0, 2, (2, 24), np.int32)
    tokens, path, counts = accept_tree_reference(chosen, computed, slots_of(RUNS), np.array(CHAIN.parents))
    np.testing.assert_array_equal(counts, accept_reference(chosen, computed, slots_of(RUNS)))
    np.testing.assert_array_equal(tokens, chosen)
    np.testing.assert_array_equal(path, np.arange(24))


def accepted(seed, tokens=24):
    """(slot_mapping, path, counts) of some runs: places in any order, paths of a tree of 10."""
    random, slots = np.random.default_rng(seed), slots_of(RUNS)
    chosen, computed = random.integers(0, 2, (2, len(slots)), np.int32)
    _, path, counts = accept_tree_reference(chosen, computed, slots, np.array(LEVELS.parents))
    return random.permutation(40)[:tokens].astype(np.int32), path, counts


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_path_is_read_before_anything_is_written(seed):
    slot_mapping, path, counts = accepted(seed)
    cache = np.random.default_rng(seed).normal(size=(3, 10, 4, 5))
    expected, by_token = cache.copy(), cache.reshape(3, 40, 5)
    for first in np.flatnonzero(counts):
        run = slice(first, first + counts[first])
        expected.reshape(3, 40, 5)[:, slot_mapping[run]] = by_token[:, slot_mapping[path[run]]].copy()
    compact_path_reference(cache, slot_mapping, path, counts)
    np.testing.assert_array_equal(cache, expected)


@pytest.mark.parametrize("heads, head_dim, dtype", [(2, 16, np.float32), (3, 8, np.float16), (1, 3, np.float16), (1, 5, np.float32)])
def test_kernels_and_reference_move_the_same(heads, head_dim, dtype, device):
    """Whole vectors, whole words, and odd bytes."""
    slot_mapping, path, counts = accepted(seed=3)
    assert (path[slots_of(RUNS) >= 0] != np.arange(24)[slots_of(RUNS) >= 0]).any()
    cache = np.random.default_rng(0).normal(size=(4, 10, 4, heads, head_dim)).astype(dtype)
    found, arrays = device.array(cache.copy()), [device.array(one) for one in (slot_mapping, path, counts)]
    compact_path(found, *arrays)
    compact_path_reference(cache, slot_mapping, path, counts)
    np.testing.assert_array_equal(device.host(found), cache)


def test_wrong_arguments():
    slot_mapping, path, counts = accepted(seed=0)
    with pytest.raises(KernelArgumentError, match=r"cache has shape \(4, 4, 3\); it must be \[layers, num_blocks, block_size"):
        compact_path(np.zeros((4, 4, 3)), slot_mapping, path, counts)
    with pytest.raises(KernelArgumentError, match="cache has gaps"):
        compact_path(np.zeros((4, 10, 4, 8))[:, :, :, ::2], slot_mapping, path, counts)
    with pytest.raises(KernelArgumentError, match="counts"):
        compact_path(np.zeros((4, 10, 4, 8)), slot_mapping, path, counts[1:])
    with pytest.raises(KernelArgumentError, match="path"):
        accept_tree(path, path, path, LEVELS.on(ARRAYS, 10), path, path[1:], path)
