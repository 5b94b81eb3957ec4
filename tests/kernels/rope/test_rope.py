"""Rotary positions beside what tests/kernels/test_launches.py checks: the table, what RoPE promises, and callers' mistakes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.errors import KernelArgumentError
from minllm.kernels.rope.ladder.rope import rope
from minllm.kernels.rope.reference import rope_reference, rope_table
from tests.kernels.guarded import DTYPES, random
from tests.kernels.rope.oracles import frequencies


def test_the_table_is_exact_at_far_positions():
    table = rope_table(131_072, 4, [1.0, 0.37], attention_factor=1.5)
    assert table.shape == (131_072, 4) and table.dtype == np.float32
    angles = np.float64(131_071) * np.array([1.0, 0.37])
    np.testing.assert_allclose(table[-1], 1.5 * np.concatenate([np.cos(angles), np.sin(angles)]), rtol=0, atol=1e-7)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_in_place(dtype, device):
    x, positions, cos_sin = random((2, 3, 10), dtype, 0), np.array([1, 5], np.int32), rope_table(6, 8, frequencies(8))
    expected = rope_reference(x, positions, cos_sin)
    rope(x, positions, cos_sin, x)
    np.testing.assert_allclose(x.astype(np.float32), expected.astype(np.float32), rtol=1e-2, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 100), st.booleans(), st.integers(0, 2**32 - 1))
def test_a_product_depends_on_the_distance_alone(query_position, key_position, shift, interleaved, seed):
    query, key = random((2, 1, 1, 16), np.float64, seed)
    cos_sin = rope_table(700, 16, frequencies(16))

    def product(by):
        turned_query = rope_reference(query, np.array([query_position + by]), cos_sin, interleaved)
        return (turned_query * rope_reference(key, np.array([key_position + by]), cos_sin, interleaved)).sum()

    np.testing.assert_allclose(product(shift), product(0), atol=1e-5)
    result = rope_reference(query, np.array([query_position]), cos_sin, interleaved)
    np.testing.assert_allclose((result**2).sum(), (query**2).sum(), rtol=1e-6)


X, POSITIONS, TABLE = np.zeros((2, 3, 8), np.float32), np.zeros(2, np.int32), np.zeros((9, 8), np.float32)
MISTAKES = {
    "two axes": (dict(x=np.zeros((2, 8), np.float32)), r"x is float32 \[2, 8\]; its shape must be \[tokens, heads, head_dim\]"),
    "positions of 64 bits": (dict(positions=np.zeros(2, np.int64)), "positions is int64"),
    "a position too few": (dict(positions=np.zeros(1, np.int32)), r"positions is int32 \[1\]; its shape must be \[tokens=2\]"),
    "a table in float16": (dict(cos_sin=TABLE.astype(np.float16)), "cos_sin is float16 .* must be float32"),
    "a wider table": (dict(cos_sin=np.zeros((9, 10), np.float32)), "turns 10 components of a head of 8"),
    "an odd table": (dict(cos_sin=np.zeros((9, 7), np.float32)), "must be even"),
    "another output": (dict(out=np.zeros((2, 3, 7), np.float32)), "out is float32"),
}


@pytest.mark.parametrize("change, message", MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_explained(change, message):
    with pytest.raises(KernelArgumentError, match=message):
        rope(**dict(x=X, positions=POSITIONS, cos_sin=TABLE, out=X.copy()) | change)


@pytest.mark.parametrize("rotary_dim, count", [(8, 3), (7, 3), (7, 4)])
def test_a_table_needs_a_frequency_for_each_pair(rotary_dim, count):
    with pytest.raises(KernelArgumentError, match="one frequency for each pair"):
        rope_table(4, rotary_dim, np.ones(count))
