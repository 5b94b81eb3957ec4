"""The algebra of attention states: any partition of the keys, merged in any order, is one pass over all of them."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.kernels.attention.common.online_softmax import merge_reference, state_reference

HEAD_DIM = 5


def output(state):
    """o / l of a state, zeros where it holds no keys."""
    return np.where(state[1] > 0, state[2] / np.where(state[1] > 0, state[1], 1), 0)


def assert_same(first, second):
    """Two states of the same keys: equal maxima, and the same sums and outputs to float64 rounding."""
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_allclose(first[1], second[1], rtol=1e-12)
    np.testing.assert_allclose(first[2], second[2], rtol=0, atol=1e-12 * (1 + np.abs(second[2]).max()))


@st.composite
def states(draw):
    """The state of some random keys, perhaps none, with logits from tiny to huge."""
    count, seed, size = draw(st.integers(0, 6)), draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from([1e-3, 1.0, 30.0, 1e4]))
    rng = np.random.default_rng(seed)
    return state_reference(size * rng.standard_normal(count), rng.standard_normal((count, HEAD_DIM)))


@given(states(), states(), states())
def test_merge_is_associative_and_commutative(a, b, c):
    assert_same(merge_reference(a, b), merge_reference(b, a))
    assert_same(merge_reference(merge_reference(a, b), c), merge_reference(a, merge_reference(b, c)))


@settings(max_examples=50, deadline=None)
@given(states())
def test_no_keys_are_the_identity(state):
    nothing = (np.float64(-np.inf), np.float64(0), np.zeros(HEAD_DIM))
    assert_same(merge_reference(state, nothing), state)
    assert_same(merge_reference(nothing, state), state)
    assert_same(merge_reference(nothing, nothing), nothing)
    np.testing.assert_array_equal(output(nothing), np.zeros(HEAD_DIM))


@given(st.data(), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_any_partition_in_any_order_is_one_pass(data, count, seed):
    rng = np.random.default_rng(seed)
    scores, values = 20 * rng.standard_normal(count), rng.standard_normal((count, HEAD_DIM))
    parts = data.draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    order = data.draw(st.permutations(range(5)))
    merged = (np.float64(-np.inf), np.float64(0), np.zeros(HEAD_DIM))
    for part in order:
        chosen = np.array(parts) == part
        merged = merge_reference(merged, state_reference(scores[chosen], values[chosen]))
    assert_same(merged, state_reference(scores, values))
    weights = np.exp(scores - scores.max())
    np.testing.assert_allclose(output(merged), weights @ values / weights.sum(), rtol=0, atol=1e-12)
