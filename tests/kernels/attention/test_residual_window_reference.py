"""Attention over codes and recent tokens in NumPy, against the definition in float64; and that chunks change nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minllm.catalogue.attention.windows import residual_window
from minllm.catalogue.noise import SHORT, Noise
from minllm.kernels.attention.residual_window.reference import window_start
from tests.kernels.attention.oracles import residual_window as oracle
from tests.kernels.guarded import FLOAT32, assert_close

# In float32, which kernels do not take: (new tokens, keys, format, window, heads, KV heads, head_dim, dtype, sliding window, block size).
CASES = [
    ((1,), (1,), "kivi_int4", 32, 4, 2, 32, FLOAT32),
    ((1, 1, 1), (63, 64, 95), "kivi_int4", 32, 4, 2, 32, FLOAT32),  # the first two groups become codes at 64 and 96
    ((1, 1, 1), (200, 0, 31), "kivi_int4", 64, 4, 2, 32, FLOAT32, 0, 64),
    ((100,), (100,), "kivi_int4", 32, 4, 2, 32, FLOAT32, 0, 96),
    ((40, 33), (150, 33), "kivi_int4", 64, 6, 1, 32, FLOAT32),
    ((300,), (300,), "kivi_int4", 128, 2, 1, 32, FLOAT32),  # two chunks of queries
    ((70, 5), (170, 90), "int4", 32, 4, 2, 32, FLOAT32, 50),
    ((1, 1), (170, 90), "kivi_int4", 32, 4, 2, 32, FLOAT32, 100),
    ((17, 1), (97, 130), "int8", 32, 4, 2, 32, FLOAT32, 0, 16),
    ((17, 1), (97, 130), "fp8_e4m3", 32, 4, 2, 32, FLOAT32, 0, 16),
]


@pytest.mark.parametrize("sizes", CASES, ids=str)
def test_each_query_sees_its_own_window(sizes):
    launch = residual_window(*sizes)
    arrays = launch.arrays(Noise(length=SHORT))
    found, right = launch.reference(**arrays)["out"], oracle(launch.shape, **arrays)["out"]
    assert_close(found, right, FLOAT32, launch.slack)


def test_the_window_holds_whole_groups():
    starts = [int(window_start(p, 64)) for p in range(200)]
    exact = [p + 1 - start for p, start in enumerate(starts)]
    assert exact[:64] == list(range(1, 65)) and set(exact[63:]) == set(range(64, 96)) and all(start % 32 == 0 for start in starts)


@given(st.integers(0, 500), st.integers(0, 500), st.sampled_from([32, 64, 128]))
def test_the_rule_of_recent_positions_is_the_rule_of_positions(first, more, window):
    """What kernels that read recent tokens alone rely on: shifted by the window's start of the first new token, the rule is itself."""
    base = window_start(first, window)
    assert window_start(first + more, window) - base == window_start(first + more - base, window)
