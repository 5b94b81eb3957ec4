"""What the cache policies set aside, by hand, and against each other on random lengths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minllm.costs import AllocationPolicy, batch_bytes, kv_bytes_per_token, wasted_share
from minllm.errors import InvalidOptionError
from minllm.models.shapes import named_config

TOKEN = kv_bytes_per_token(named_config("llama-3.1-8b"))  # 128 KiB
MIB = 2**20
lengths = st.lists(st.integers(1, 5000), min_size=1, max_size=20)


def test_one_sequence_of_the_8b_shape_by_hand():
    """A token's keys are 64 KiB over all layers, so 32 tokens fill a page of 2 MiB, and as many a page of values."""
    assert TOKEN == 131072
    assert AllocationPolicy("contiguous", max_model_len=4096).allocated_bytes(100, TOKEN) == 4096 * TOKEN
    assert AllocationPolicy("paged", 16).allocated_bytes(100, TOKEN) == 112 * TOKEN
    assert AllocationPolicy("virtual").allocated_bytes(32, TOKEN) == 2 * 2 * MIB
    assert AllocationPolicy("virtual").allocated_bytes(33, TOKEN) == 2 * 4 * MIB


@given(lengths, st.sampled_from([8, 16, 32, 64, 128, 256]), st.integers(1, 10**6))
def test_less_than_a_block_and_less_than_two_pages_wait_for_each_sequence(lengths, block_size, token_bytes):
    held = sum(lengths) * token_bytes
    paged = batch_bytes(AllocationPolicy("paged", block_size), lengths, token_bytes)
    assert held <= paged <= held + len(lengths) * (block_size - 1) * token_bytes
    virtual = batch_bytes(AllocationPolicy("virtual"), lengths, token_bytes)
    assert held <= virtual < held + len(lengths) * 4 * MIB and virtual % (4 * MIB) == 0


@given(lengths, st.integers(0, 6000))
def test_a_shared_beginning_is_stored_once(lengths, shared):
    """Counted block by block: the set of blocks that differ."""
    blocks = set()
    for number, length in enumerate(lengths):
        for block in range(-(-length // 16)):
            common = 16 * (block + 1) <= min(shared, *lengths)
            blocks.add((None if common else number, block))
    assert batch_bytes(AllocationPolicy("paged", 16), lengths, 3, shared) == 16 * 3 * len(blocks)


def test_the_waste_of_a_contiguous_cache_is_what_short_sequences_leave():
    assert wasted_share(AllocationPolicy("contiguous", max_model_len=2048), [512, 512], TOKEN) == 0.75
    assert wasted_share(AllocationPolicy("paged", 16), [16, 32], TOKEN) == 0
    assert wasted_share(AllocationPolicy("paged", 16), [15], TOKEN) == pytest.approx(1 / 16)


def test_policies_that_cannot_be_are_refused():
    for wrong, message in ((("sparse",), "contiguous, paged, virtual"), (("paged", 0), "block-size 0"), (("contiguous",), "max-model-len")):
        with pytest.raises(InvalidOptionError, match=message):
            AllocationPolicy(*wrong)
    with pytest.raises(InvalidOptionError, match="2,049 tokens"):
        AllocationPolicy("contiguous", max_model_len=2048).allocated_bytes(2049, TOKEN)
