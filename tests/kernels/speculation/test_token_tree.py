"""Trees of drafts as values: their paths, levels and bits, and the rows that a step makes of them."""

import numpy as np
import pytest
from hypothesis import given, settings

from minllm.catalogue.speculation.states import slots_of
from minllm.errors import KernelArgumentError
from minllm.kernels.sampling import SamplingKind
from minllm.kernels.speculation.draft_rows import run_slots, run_slots_reference, store_children, store_children_reference
from minllm.kernels.speculation.load_spans import load_spans, load_spans_reference
from minllm.kernels.speculation.row_sampling import row_sampling, row_sampling_reference
from minllm.kernels.speculation.token_tree import TokenTree
from tests.kernels.slots.cases import to_device
from tests.kernels.speculation.cases import batch_of
from tests.kernels.speculation.test_spans import BLOCK_SIZE
from tests.kernels.speculation.trees import ARRAYS, CHAIN, LEVELS, LOOKAHEAD, on_device, path_of, tree_states, trees

RUNS = [(2, 10), (0, 4), (-1, 2), (5, 1), (3, 7)]


@settings(max_examples=50, deadline=None)
@given(trees())
def test_depths_bits_and_longest_paths_are_those_of_the_paths(tree):
    paths = [path_of(tree, node) for node in range(len(tree))]
    assert tree.depths.tolist() == [len(path) - 1 for path in paths]
    assert [np.flatnonzero(row).tolist() for row in tree.sees] == [sorted(path) for path in paths]
    words = tree.on(ARRAYS, 100).words.view(np.uint32)
    bits = [[a for a in range(32 * words.shape[1]) if words[node, a // 32] >> (a % 32) & 1] for node in range(len(tree))]
    assert bits == [sorted(path) for path in paths]
    for count in range(1, len(tree) + 1):
        assert tree.most_new(count) == max(len(path) for path in paths[:count])


def test_a_tree_of_paths_is_in_the_order_of_its_levels():
    tree = TokenTree.parse("[(1,), (0, 0), (0,), (1, 0), (0, 1)]")
    assert tree.parents == (-1, 0, 0, 1, 1, 2) and tree.levels == [(0, 1), (1, 3)]
    arrays = tree.on(ARRAYS, 100)
    assert (arrays.first_child[:3].tolist(), arrays.num_children.tolist()) == ([1, 3, 5], [2, 2, 1, 0, 0, 0])
    assert TokenTree.parse("[(0,), (1,), (2,), (1, 0)]").levels == [(0, 1), (1, 3)], "a level is computed up to its last parent"
    assert CHAIN.levels == [(node, node + 1) for node in range(9)]


def test_the_rows_of_lookahead_decoding():
    """W = 5, N = 4: the mask of figure 3 of Fu et al., and three chains."""
    column_2 = [path_of(LOOKAHEAD, node) for node in (2, 7, 12)]
    assert column_2 == [[0, 1, 2], [0, 1, 2, 7], [0, 1, 2, 7, 12]]
    assert path_of(LOOKAHEAD, 5) == [0, 5] and path_of(LOOKAHEAD, 14) == [0, 1, 2, 3, 4, 9, 14]
    assert [path_of(LOOKAHEAD, node) for node in (17, 20, 23)] == [[0, 15, 16, 17], [0, 18, 19, 20], [0, 21, 22, 23]]
    assert len(LOOKAHEAD) == 24 and LOOKAHEAD.depths.max() == 6


@pytest.mark.parametrize(
    "text, words",
    [
        ("[(0,), (0, 1)]", r"the tree has the path \(0, 1\) and lacks \(0, 0\)"),
        ("[(0, 0)]", r"lacks \(0,\)"),
        ("[(0,), (0,)]", "a path twice"),
        ("[()]", "an empty one"),
        ("[(-1,)]", "lacks"),
        ("[]", "is not a list of paths"),
        ("[(0,), [1]]", "is not a list of paths"),
        ("[(True,)]", "is not a list of paths"),
        ("__import__('os')", "is not a list of paths"),
        ("[(0,", "is not a list of paths"),
    ],
)
def test_what_is_no_tree(text, words):
    with pytest.raises(KernelArgumentError, match=words):
        TokenTree.parse(text)


@pytest.mark.parametrize("parents", [(), (0,), (-1, 1), (-1, 0, -1)])
def test_parents_that_are_no_tree(parents):
    with pytest.raises(KernelArgumentError, match="are not a tree"):
        TokenTree(parents)


@pytest.mark.parametrize("tree", [LEVELS, LOOKAHEAD, CHAIN], ids=["levels", "lookahead", "chain"])
@pytest.mark.parametrize("longest", [1000, 20])
def test_rows_of_a_tree(tree, longest, device):
    """Places go on one by one, positions are depths; as a chain they are those of drafts without a tree."""
    state, drafts = tree_states(tree)
    drafts.tree = tree.on(ARRAYS, longest)
    runs = [run for run in RUNS if run[0] >= 0]
    lengths, slots = [rows for _, rows in runs], slots_of(runs)
    expected, found = batch_of(lengths, columns=12), batch_of(lengths, columns=12, array=device.array)
    load_spans_reference(slots, state, drafts, expected, BLOCK_SIZE)
    load_spans(device.array(slots), to_device(state, device), on_device(drafts, device), found, BLOCK_SIZE)
    for name, array in vars(expected).items():
        np.testing.assert_array_equal(device.host(getattr(found, name)), array, err_msg=name)
    for first, (slot, rows) in zip(np.cumsum([0, *lengths]), runs, strict=False):
        root = state.lengths[slot] - 1
        positions = [min(root + len(path_of(tree, node)) - 1, longest - 1) for node in range(rows)]
        assert expected.positions[first : first + rows].tolist() == positions
    drafts.tree, plain = None, batch_of(lengths, columns=12)
    load_spans_reference(slots, state, drafts, plain, BLOCK_SIZE)
    for name in ("token_ids", "slot_mapping", "context_lens", "block_tables", *(["positions"] if tree is CHAIN and longest > 20 else [])):
        np.testing.assert_array_equal(getattr(plain, name), getattr(expected, name), err_msg=name)


@pytest.mark.parametrize("kind", [SamplingKind.RANDOM, SamplingKind.ADJUSTED])
def test_a_row_is_sampled_as_if_its_path_were_accepted(kind, device):
    state, drafts = tree_states(LEVELS)
    slots = slots_of(RUNS)
    expected, _ = row_sampling_reference(slots, state, drafts, kind)
    states = to_device(state, device), on_device(drafts, device)
    found, _ = row_sampling(device.array(slots), *states, kind, lambda shape, dtype: device.array(np.full(shape, 7, dtype)))
    used = np.flatnonzero(slots >= 0)
    for name, array in expected.arrays().items():
        np.testing.assert_array_equal(device.host(found.arrays()[name])[used], array[used], err_msg=name)
    row = 0
    for slot, count in RUNS:
        for node in range(count if slot >= 0 else 0):
            path = path_of(LEVELS, node)
            assert expected.step[row + node] == state.sampling.step[slot] + len(path) - 1
            if kind is SamplingKind.ADJUSTED:
                counts = state.sampling.output_counts[slot].copy()
                np.add.at(counts, drafts.drafts[slot, np.array(path[1:], int) - 1], 1)
                np.testing.assert_array_equal(expected.output_counts[row + node], counts)
        row += count


def test_the_rows_of_a_level_and_their_children(device):
    state, drafts = tree_states(LEVELS)
    first, end = LEVELS.levels[1]
    slots = run_slots_reference(slots_of(RUNS), 6, end - first)
    assert slots.tolist() == [2] * 2 + [0] * 2 + [-1] * 4 + [5] * 2 + [3] * 2
    out = device.array(np.full(len(slots), -7, np.int32))
    run_slots(device.array(slots_of(RUNS)), out, each=end - first)
    np.testing.assert_array_equal(device.host(out), slots)
    tokens, before, found = np.arange(100, 124, dtype=np.int32).reshape(12, 2), drafts.drafts.copy(), on_device(drafts, device)
    store_children_reference(tokens, slots, first, drafts)
    store_children(device.array(tokens), device.array(slots), first, found)
    np.testing.assert_array_equal(device.host(found.drafts), drafts.drafts)
    assert drafts.drafts[0].tolist() == [*before[0, :3], 104, 105, 106, *before[0, 6:]], "two children of node 1, one of node 2"
    assert np.array_equal(drafts.drafts[1], before[1])
