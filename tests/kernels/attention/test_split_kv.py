"""Flash-Decoding: what it refuses, and how it chooses the number of splits."""

import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.attention.split_kv import split_kv
from minllm.kernels.attention.split_kv.choice import MAX_SPLITS
from tests.kernels.attention.cases import AttentionCase, make_arrays


def test_several_new_tokens_are_refused():
    arrays = make_arrays(AttentionCase((2,), (5,)))
    inputs = (arrays.query, arrays.key_cache, arrays.value_cache, arrays.out, arrays.query_start, arrays.context_lens, arrays.block_tables)
    with pytest.raises(KernelArgumentError, match="one new token per sequence"):
        split_kv.attention(*inputs, arrays.scale)
    with pytest.raises(KernelArgumentError, match="splits is"):
        single = make_arrays(AttentionCase((1,), (5,)))
        split_kv.attention(
            single.query, single.key_cache, single.value_cache, single.out, single.query_start, single.context_lens,
            single.block_tables, single.scale, splits=MAX_SPLITS + 1,
        )  # fmt: skip


def test_the_number_of_splits_fills_the_gpu():
    """Few sequences are split until the blocks fill the multiprocessors; many are not split at all; short contexts hardly."""
    assert 264 <= split_kv.choose_splits(sequences=1, kv_heads=8, group=4, max_context_len=131072, sm_count=132) * 8 <= 3 * 132
    assert split_kv.choose_splits(sequences=256, kv_heads=8, group=4, max_context_len=8192, sm_count=132) == 1
    assert split_kv.choose_splits(sequences=1, kv_heads=8, group=4, max_context_len=16, sm_count=132) == 1
    assert split_kv.choose_splits(sequences=1, kv_heads=1, group=1, max_context_len=2**20, sm_count=132) <= MAX_SPLITS
