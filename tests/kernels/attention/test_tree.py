"""Attention of any draft tree in NumPy: every node sees what it would see as the newest token of a text that is its path."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.errors import KernelArgumentError
from minllm.kernels.attention import VARIANTS
from minllm.kernels.attention.tree.reference import tree_attention_reference
from tests.kernels.attention.cases import AttentionCase, make_arrays
from tests.kernels.attention.oracles import weighted_values
from tests.kernels.speculation.trees import ARRAYS, LEVELS, path_of, trees


def oracle(arrays, case, tree, first_node, window):
    """One row at a time over the keys before the tree and those of the node's path."""
    out = np.zeros(arrays.query.shape)
    lens = arrays.query_start, case.query_lens, case.context_lens
    for start, rows, context, *caches in zip(*lens, arrays.keys, arrays.values, strict=False):
        before = context - rows - first_node
        for i in range(rows):
            places = [*range(before), *(before + node for node in path_of(tree, first_node + i))]
            places = places[-window:] if window else places
            out[start + i] = weighted_values(arrays.query[start + i], *(cache[places].astype(np.float64) for cache in caches))
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


@pytest.mark.parametrize(
    "first, window, words", [(10, 0, "first_node is 10; the tree has 10 nodes"), (0, 3, "sliding_window is 3; the tree is 3 drafts deep")]
)
def test_wrong_arguments(first, window, words):
    arrays = make_arrays(AttentionCase((2,), (9,)))
    tables = (arrays.query_start, arrays.context_lens, arrays.block_tables, LEVELS.on(ARRAYS, 100), first, arrays.scale, window)
    with pytest.raises(KernelArgumentError, match=words):
        VARIANTS["tree"].attention(arrays.query, arrays.key_cache, arrays.value_cache, arrays.out, *tables)
