"""Attention over codes and recent tokens in NumPy, against the definition in float64; and that chunks change nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.kernels.attention.residual_window.reference import attention_with_window_reference, window_start
from tests.kernels.attention.window_cases import WindowCase, expected_output, make_window_arrays

CASES = [
    WindowCase((1,), (1,)),
    WindowCase((1, 1, 1), (63, 64, 95), residual_window=32),  # the first two groups become codes at 64 and 96
    WindowCase((1, 0, 1), (200, 0, 31), residual_window=64, block_size=64),
    WindowCase((100,), (100,), residual_window=32, block_size=96),
    WindowCase((40, 33), (150, 33), residual_window=64, heads=6, kv_heads=1),
    WindowCase((300,), (300,), residual_window=128, heads=2, kv_heads=1),  # two chunks of queries
    WindowCase((70, 5), (170, 90), "int4", sliding_window=50),
    WindowCase((1, 1), (170, 90), sliding_window=100),
    WindowCase((17, 1), (97, 130), "int8", block_size=16),
    WindowCase((17, 1), (97, 130), "fp8_e4m3", block_size=16),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_query_sees_its_own_window(case):
    arrays = make_window_arrays(case)
    found = attention_with_window_reference(*arrays.arguments, 0.2, case.residual_window, case.sliding_window)
    np.testing.assert_allclose(found, expected_output(case, arrays, 0.2), atol=2e-5)


def test_the_window_holds_whole_groups():
    starts = [int(window_start(p, 64)) for p in range(200)]
    exact = [p + 1 - start for p, start in enumerate(starts)]
    assert exact[:64] == list(range(1, 65)) and set(exact[63:]) == set(range(64, 96)) and all(start % 32 == 0 for start in starts)


@given(st.integers(0, 500), st.integers(0, 500), st.sampled_from([32, 64, 128]))
@settings(max_examples=200, deadline=None)
def test_the_rule_of_recent_positions_is_the_rule_of_positions(first, more, window):
    """What kernels that read recent tokens alone rely on: shifted by the window's start of the first new token, the rule is itself."""
    base = window_start(first, window)
    assert window_start(first + more, window) - base == window_start(first + more - base, window)
