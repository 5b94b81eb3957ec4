"""Outputs over two parts of the keys, merged by their log-sum-exp, are the attention over all; and what the kernel refuses."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.errors import KernelArgumentError
from minllm.kernels.attention.common.merge_states import merge_states, merge_states_reference
from tests.kernels.attention.case_lists import BFLOAT16, FLOAT16


def attend_part(scores, values):
    """(output, log-sum-exp to base 2) of scores [..., keys], to base 2, and values [keys, head_dim], in float64."""
    largest = scores.max(axis=-1, initial=-np.inf)
    weights = np.exp2(scores - np.where(np.isneginf(largest), 0, largest)[..., None])
    total = weights.sum(axis=-1)
    with np.errstate(divide="ignore"):
        return weights @ values / np.where(total == 0, 1, total)[..., None], largest + np.log2(total)


@settings(deadline=None)
@given(keys=st.integers(0, 9), cut=st.integers(0, 9), magnitude=st.sampled_from([1.0, 300.0]), seed=st.integers(0, 5))
def test_two_parts_make_the_whole(keys, cut, magnitude, seed):
    """Wherever the keys are cut, and if a part has none."""
    random, cut = np.random.default_rng(seed), min(keys, cut)
    scores, values = magnitude * random.standard_normal((3, 2, keys)), random.standard_normal((keys, 8))
    whole, _ = attend_part(scores, values)
    parts = [attend_part(scores[..., part], values[part]) for part in (slice(cut), slice(cut, keys))]
    np.testing.assert_allclose(merge_states_reference(*parts[0], *parts[1]), whole, atol=1e-12)


def test_what_it_does_not_take():
    out, lse = np.zeros((3, 2, 16), BFLOAT16), np.zeros((3, 2), np.float32)
    states, query_start = dict(first=out, first_lse=lse, second=out, second_lse=lse), np.array([0, 3], np.int32)

    def refused(match, out=out, **changes):
        with pytest.raises(KernelArgumentError, match=match):
            merge_states(**(states | changes), out=out, query_start=query_start)

    refused("second is float16", second=out.astype(FLOAT16))
    refused("first_lse is float64", first_lse=lse.astype(np.float64))
    refused("its shape must be", second_lse=lse[:2])
    refused("out is float32", out=out.astype(np.float32))
