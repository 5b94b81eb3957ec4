"""Attention with a soft cap against the equation in float64, and what it refuses."""

import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.attention import VARIANTS
from minllm.kernels.attention.reference import attention_reference
from tests.kernels.attention.case_lists import BFLOAT16, FLOAT16
from tests.kernels.attention.cases import AttentionCase, make_arrays

CASES = [  # rows and contexts of the sequences, heads, KV heads, head_dim, block size, window, dtype
    AttentionCase((1, 1), (37, 3), 4, 2, 40, 8, 0, np.float32),
    AttentionCase((7, 1), (7, 20), 2, 1, 24, 4, 5, np.float32),
    AttentionCase((1, 0, 1), (70, 0, 9), 3, 1, 40, 16, 13, BFLOAT16),
    AttentionCase((9,), (41,), 2, 2, 16, 5, 0, FLOAT16),
]


def inputs(arrays):
    return arrays.query, arrays.key_cache, arrays.value_cache


@pytest.mark.results_only
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("cap", [0.5, 50.0])
def test_the_kernel_is_the_equation(case, cap):
    """A cap below the scores' size, which changes the weights, and Gemma's, which hardly does."""
    arrays = make_arrays(case)
    tables, out = (arrays.query_start, arrays.context_lens, arrays.block_tables), np.zeros_like(arrays.query)
    VARIANTS["soft_capped"].attention(*inputs(arrays), out, *tables, arrays.scale, cap, case.sliding_window)
    exact = [one.astype(np.float64) for one in inputs(arrays)]
    expected = attention_reference(*exact, *tables, arrays.scale, case.sliding_window, cap)
    tolerance = {np.dtype(np.float32): 2e-5, np.dtype(FLOAT16): 3e-3}.get(np.dtype(case.dtype), 2e-2)
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=0, atol=tolerance)
    uncapped = attention_reference(*exact, *tables, arrays.scale, case.sliding_window)
    assert (np.abs(expected - uncapped).max() > 0.02) == (cap == 0.5)


@pytest.mark.parametrize("cap", [0.0, -1.0, float("inf"), float("nan")])
def test_a_cap_that_is_none_is_refused(cap):
    arrays = make_arrays(CASES[0])
    with pytest.raises(KernelArgumentError, match="soft_cap is .*; it must be a positive number"):
        tables = arrays.query_start, arrays.context_lens, arrays.block_tables
        VARIANTS["soft_capped"].attention(*inputs(arrays), np.zeros_like(arrays.query), *tables, arrays.scale, cap)
