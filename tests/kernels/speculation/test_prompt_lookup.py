"""n-grams: the longest match, the most recent one, and texts that repeat."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minllm.errors import KernelArgumentError
from minllm.kernels.speculation.prompt_lookup import lookup_reference, prompt_lookup
from tests.kernels.speculation.cases import make_states


@pytest.mark.parametrize(
    "text, longest, shortest, expected",
    [
        ([1, 2, 3, 4, 9, 1, 2], 3, 1, [3, 4, 9, 1]),
        ([1, 2, 3, 7, 2, 4, 9, 2], 1, 1, [4, 9, 2, 4]),  # the most recent 2, and the text goes on with its own continuation
        ([1, 2, 3, 7, 2, 4, 9, 1, 2], 2, 1, [3, 7, 2, 4]),  # two tokens match further back
        ([1, 2, 3, 4], 3, 1, []),
        ([1, 2, 3, 7, 2], 3, 2, []),
        ([5, 5, 5], 2, 1, [5, 5, 5, 5]),
        ([8, 9, 8, 9], 2, 2, [8, 9, 8, 9]),
        ([4], 2, 1, []),
    ],
)
def test_by_hand(text, longest, shortest, expected):
    assert lookup_reference(np.int32(text), 4, longest, shortest).tolist() == expected


@given(st.lists(st.integers(0, 2), min_size=1, max_size=24), st.integers(1, 4), st.integers(1, 4))
def test_drafts_continue_the_longest_and_latest_match(text, longest, shortest):
    shortest = min(longest, shortest)
    found = lookup_reference(np.int32(text), 3, longest, shortest).tolist()
    ends = {}
    for end in range(1, len(text)):
        matched = max((m for m in range(1, longest + 1) if m <= end and text[end - m : end] == text[len(text) - m :]), default=0)
        if matched >= shortest:
            ends[matched] = end
    if not ends:
        assert found == []
        return
    end = ends[max(ends)]
    whole = text + found
    assert found == [whole[end + i] for i in range(3)]


def test_wrong_lengths_are_refused():
    state, drafts = make_states()
    with pytest.raises(KernelArgumentError, match="n-grams of 3 to 2 tokens"):
        prompt_lookup(np.zeros(1, np.int32), state, drafts, 2, 3, np.zeros(1, np.int32))
