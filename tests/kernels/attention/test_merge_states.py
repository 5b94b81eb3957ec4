"""Outputs over two parts of the keys, merged by their log-sum-exp: in NumPy the attention over all, simulated the reference rounded."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.errors import KernelArgumentError
from minllm.kernels.attention.common.merge_states import merge_states, merge_states_reference
from tests.kernels.attention.case_lists import BFLOAT16, FLOAT16
from tests.kernels.attention.state_cases import attend_part, make_states, run_merge


@settings(deadline=None)
@given(keys=st.integers(0, 9), cut=st.integers(0, 9), magnitude=st.sampled_from([1.0, 300.0]), seed=st.integers(0, 5))
def test_two_parts_make_the_whole(keys, cut, magnitude, seed):
    """Wherever the keys are cut, and if a part has none."""
    random, cut = np.random.default_rng(seed), min(keys, cut)
    scores, values = magnitude * random.standard_normal((3, 2, keys)), random.standard_normal((keys, 8))
    whole, _ = attend_part(scores, values)
    parts = [attend_part(scores[..., part], values[part]) for part in (slice(cut), slice(cut, keys))]
    np.testing.assert_allclose(merge_states_reference(*parts[0], *parts[1]), whole, atol=1e-12)


@pytest.mark.covering("head_dim", "dtype")
@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16], ids=str)
@pytest.mark.parametrize(("tokens", "heads", "head_dim"), [(1, 1, 8), (7, 3, 80), (33, 2, 128)])
def test_merged_outputs(device, tokens, heads, head_dim, dtype):
    run_merge(device, tokens, heads, head_dim, dtype)


@pytest.mark.parametrize("place", [None, "first", "second"])
def test_in_place_and_rows_of_no_sequence(device, place):
    """The last two rows belong to nobody, and stay as they are."""
    run_merge(device, 9, 2, 64, BFLOAT16, rows=7, place=place)


def test_what_it_does_not_take():
    states, query_start = make_states(3, 2, 16, BFLOAT16), np.array([0, 3], np.int32)
    out = np.zeros_like(states["first"])

    def refused(match, out=out, **changes):
        with pytest.raises(KernelArgumentError, match=match):
            merge_states(**(states | changes), out=out, query_start=query_start)

    refused("second is float16", second=states["second"].astype(FLOAT16))
    refused("first_lse is float64", first_lse=states["first_lse"].astype(np.float64))
    refused("its shape must be", second_lse=states["second_lse"][:2])
    refused("out is float32", out=out.astype(np.float32))
