"""Attention of draft trees: every node sees what it would see as the newest token of a text that is its path."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.errors import KernelArgumentError
from minllm.kernels.attention import VARIANTS
from minllm.kernels.attention.tree.reference import tree_attention_reference
from minllm.kernels.speculation.token_tree import TokenTree
from tests.kernels.attention.case_lists import BFLOAT16, FLOAT16
from tests.kernels.attention.cases import AttentionCase, make_arrays
from tests.kernels.speculation.trees import ARRAYS, LEVELS, LOOKAHEAD, path_of, trees


def oracle(arrays, case, tree, first_node, window=0):
    """Softmax in float64 over the keys before the tree and those of the node's path, one row at a time; NaN in rows of nobody."""
    out, group = np.full(arrays.query.shape, np.nan), case.heads // case.kv_heads
    for sequence, (rows, context) in enumerate(zip(case.query_lens, case.context_lens, strict=True)):
        before = context - rows - first_node
        for i in range(rows):
            row, places = arrays.query_start[sequence] + i, [*range(before), *(before + a for a in path_of(tree, first_node + i))]
            places = places[-window:] if window else places
            keys, values = (np.asarray(one[sequence], np.float64)[places] for one in (arrays.keys, arrays.values))
            for head in range(case.heads):
                scores = arrays.scale * keys[:, head // group] @ np.asarray(arrays.query[row, head], np.float64)
                weights = np.exp(scores - scores.max())
                out[row, head] = weights / weights.sum() @ values[:, head // group]
    return out


@settings(max_examples=25, deadline=None)
@given(trees(), st.integers(0, 30), st.data())
def test_the_equation(tree, before, data):
    first = data.draw(st.integers(0, len(tree) - 1))
    rows, window = data.draw(st.integers(1, len(tree) - first)), data.draw(st.sampled_from([0, 1, 3, 40]))
    case = AttentionCase((rows, rows), (before + first + rows, first + rows), 2, 1, 8, 4)
    arrays = make_arrays(case)
    tables = (arrays.query_start, arrays.context_lens, arrays.block_tables, tree.sees, first)
    found = tree_attention_reference(arrays.query, arrays.key_cache, arrays.value_cache, *tables, arrays.scale, window)
    np.testing.assert_allclose(found, oracle(arrays, case, tree, first, window), atol=2e-5)


CASES = [
    # context before the tree, tree, first node, rows of each sequence, head_dim, dtype, window
    ((70, 3), LEVELS, 0, (10, 6), 16, BFLOAT16, 0),
    ((130,), LOOKAHEAD, 0, (24,), 16, FLOAT16, 0),
    ((61,), LEVELS, 4, (3,), 40, BFLOAT16, 0),
    ((90,), LEVELS, 1, (8,), 16, BFLOAT16, 5),
    ((20, 0), LEVELS, 0, (10, 1), 24, np.float32, 0),
    ((37,), LOOKAHEAD, 0, (21,), 16, np.float32, 9),
]


def run_tree(device, case):
    """One case on a device, against the oracle."""
    before, tree, first, rows, head_dim, dtype, window = case
    shape = AttentionCase(rows, tuple(b + first + r for b, r in zip(before, rows, strict=True)), 2, 1, head_dim, 8, 0, dtype)
    arrays = make_arrays(shape)
    if window:
        for cache in (arrays.key_cache, arrays.value_cache):
            cache[:] = np.nan_to_num(cache)  # keys before the window may be loaded, and have weight 0
    out = device.array(np.full_like(arrays.query, np.nan))
    on_device = [device.array(getattr(arrays, name)) for name in ("query", "key_cache", "value_cache")]
    tables = [device.array(getattr(arrays, name)) for name in ("query_start", "context_lens", "block_tables")]
    VARIANTS["tree"].attention(*on_device, out, *tables, tree.on(device, 1000), first, arrays.scale, window, max(rows))
    tolerance = 1e-5 if dtype == np.float32 else 2e-2
    expected = oracle(arrays, shape, tree, first, window)
    np.testing.assert_allclose(np.asarray(device.host(out), np.float64), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernel_and_oracle_agree(case, device):
    run_tree(device, case)


# 96 rows: two tiles of 64, of which the second sees nodes of the first. It begins with a node of depth 2, whose window of 22 keys begins at
# key 64; the next nodes of depth 1 see key 63 too, which is of another tile of keys.
TALL_CASES = [((83,), TokenTree.lookahead(20, 4, 12), 0, (96,), 16, BFLOAT16, window) for window in (22, 0)]


@pytest.mark.parametrize("case", [TALL_CASES[0], pytest.param(TALL_CASES[1], marks=pytest.mark.results_only)], ids=str)
def test_a_tree_of_more_rows_than_a_tile(case, device):
    run_tree(device, case)


@pytest.mark.parametrize(
    "first, window, words", [(10, 0, "first_node is 10; the tree has 10 nodes"), (0, 3, "sliding_window is 3; the tree is 3 drafts deep")]
)
def test_wrong_arguments(first, window, words):
    arrays = make_arrays(AttentionCase((2,), (9,)))
    tables = (arrays.query_start, arrays.context_lens, arrays.block_tables, LEVELS.on(ARRAYS, 100), first, arrays.scale, window)
    with pytest.raises(KernelArgumentError, match=words):
        VARIANTS["tree"].attention(arrays.query, arrays.key_cache, arrays.value_cache, arrays.out, *tables)
