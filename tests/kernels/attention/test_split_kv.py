"""Flash-Decoding in the simulator, with few warps, so that short contexts fill several splits and the last ones stay empty."""

import ml_dtypes
import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.attention import split_kv
from minllm.kernels.attention.split_merge import MAX_SPLITS
from tests.kernels.attention.cases import AttentionCase, make_arrays, run_variant

BFLOAT16, FLOAT16 = ml_dtypes.bfloat16, np.float16

CASES = [
    (AttentionCase((1,), (1,), heads=2, head_dim=16, dtype=BFLOAT16), 1),
    (AttentionCase((1, 1, 1), (31, 0, 33), heads=6, head_dim=16, dtype=BFLOAT16), 3),
    (AttentionCase((1,), (97,), heads=2, head_dim=40, dtype=FLOAT16, block_size=8), 2),  # 5 chunks of 16 bytes on 8 lanes
    (AttentionCase((1,), (37,), heads=8, kv_heads=1, head_dim=8, dtype=BFLOAT16, block_size=1), 5),  # a key is one lane's
    (AttentionCase((1,), (40,), heads=4, kv_heads=4, head_dim=8, block_size=256), 2),
    (AttentionCase((1, 1), (3, 41), heads=18, kv_heads=2, head_dim=16), 2),  # 9 heads a group: two blocks, one head too many
    (AttentionCase((1,), (67,), heads=2, head_dim=16, dtype=BFLOAT16, sliding_window=7), 3),
    (AttentionCase((1,), (67,), heads=2, head_dim=16, dtype=FLOAT16, sliding_window=50, block_size=5), 2),
    (AttentionCase((1, 0, 1), (5, 9, 12), heads=2, head_dim=16, dtype=BFLOAT16), 2),  # the second sequence brings no token
    (AttentionCase((1,), (30,), heads=2, head_dim=16, dtype=BFLOAT16, magnitude=200.0), 2),
    (AttentionCase((1,), (5,), heads=2, kv_heads=2, head_dim=136), 2),  # 34 chunks of float32 on 32 lanes: two each
    (AttentionCase((1,), (9,), heads=2, head_dim=256, dtype=BFLOAT16), 1),
]


@pytest.mark.parametrize(("case", "splits"), CASES, ids=str)
def test_splits(device, case, splits):
    run_variant(device, split_kv, case, workspace_options={"splits": splits}, splits=splits, warps=1)


@pytest.mark.parametrize(("warps", "keys_each"), [(1, 1), (2, 3), (4, 2)])
def test_block_shapes(device, warps, keys_each):
    case = AttentionCase((1,), (101,), heads=2, head_dim=32, dtype=BFLOAT16)
    run_variant(device, split_kv, case, workspace_options={"splits": 3}, splits=3, warps=warps, keys_each=keys_each)


def test_defaults(device):
    """The block and the number of splits that users get."""
    run_variant(device, split_kv, AttentionCase((1,), (130,), heads=2, head_dim=16, dtype=BFLOAT16))


def test_several_new_tokens_are_refused():
    arrays = make_arrays(AttentionCase((2,), (5,)))
    inputs = (arrays.query, arrays.key_cache, arrays.value_cache, arrays.out, arrays.query_start, arrays.context_lens, arrays.block_tables)
    with pytest.raises(KernelArgumentError, match="one new token a sequence"):
        split_kv.attention(*inputs, arrays.scale)
    with pytest.raises(KernelArgumentError, match="splits is"):
        single = make_arrays(AttentionCase((1,), (5,)))
        split_kv.attention(
            single.query, single.key_cache, single.value_cache, single.out, single.query_start, single.context_lens,
            single.block_tables, single.scale, splits=MAX_SPLITS + 1,
        )  # fmt: skip


def test_the_number_of_splits_fills_the_gpu():
    """Few sequences are split until the blocks fill the multiprocessors; many are not split at all; short contexts hardly."""
    assert 264 <= split_kv.choose_splits(sequences=1, kv_heads=8, group=4, max_context_len=131072) * 8 <= 3 * 132
    assert split_kv.choose_splits(sequences=256, kv_heads=8, group=4, max_context_len=8192) == 1
    assert split_kv.choose_splits(sequences=1, kv_heads=8, group=4, max_context_len=16) == 1
    assert split_kv.choose_splits(sequences=1, kv_heads=1, group=1, max_context_len=2**20) <= MAX_SPLITS
