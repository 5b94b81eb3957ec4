"""FlashAttention-2 in the simulator, with tiles small enough that a few tokens cross their edges."""

import ml_dtypes
import numpy as np
import pytest

from minllm.kernels.attention import flash_attention_2
from tests.kernels.attention.cases import AttentionCase, run_variant

TILES = (16, 16, 1)  # query rows, keys, warps
FLOAT32_TILES = (4, 8, 2, 2)  # 8 query rows, 16 keys
BFLOAT16, FLOAT16 = ml_dtypes.bfloat16, np.float16

TENSOR_CORE_CASES = [
    AttentionCase((1,), (1,), heads=2, head_dim=16, dtype=BFLOAT16),
    AttentionCase((2,), (2,), heads=2, head_dim=16, dtype=FLOAT16),
    AttentionCase((15,), (37,), heads=2, head_dim=40, dtype=BFLOAT16),  # 40 is padded to 48
    AttentionCase((16,), (16,), heads=2, head_dim=8, dtype=BFLOAT16, block_size=8),
    AttentionCase((17,), (31,), heads=2, head_dim=16, dtype=FLOAT16, block_size=1),
    AttentionCase((29,), (29,), heads=4, kv_heads=4, head_dim=16, dtype=BFLOAT16, block_size=256),
    AttentionCase((3, 0, 17, 1), (5, 4, 17, 0), heads=6, head_dim=16, dtype=BFLOAT16),  # a padding sequence, and one that rests
    AttentionCase((7,), (50,), heads=8, kv_heads=1, head_dim=16, dtype=BFLOAT16),
    AttentionCase((18,), (67,), heads=2, head_dim=16, dtype=BFLOAT16, sliding_window=7),
    AttentionCase((5,), (67,), heads=2, head_dim=16, dtype=FLOAT16, sliding_window=33, block_size=5),
    AttentionCase((5,), (40,), heads=2, head_dim=16, dtype=FLOAT16, sliding_window=1),
    AttentionCase((4,), (2,), heads=2, head_dim=16, dtype=BFLOAT16),  # two rows before the first key: they see nothing
    AttentionCase((9,), (30,), heads=2, head_dim=16, dtype=BFLOAT16, magnitude=200.0),  # logits beyond 1e5
]
FLOAT32_CASES = [
    AttentionCase((1,), (1,), heads=2, head_dim=8),
    AttentionCase((7,), (18,), heads=6, head_dim=40, block_size=1),
    AttentionCase((8, 9), (8, 16), heads=2, head_dim=16, block_size=8),
    AttentionCase((3, 0, 2, 1), (5, 4, 17, 0), heads=4, kv_heads=4, head_dim=8),
    AttentionCase((11,), (37,), heads=2, head_dim=8, sliding_window=6, block_size=256),
    AttentionCase((4,), (2,), heads=2, head_dim=8),
    AttentionCase((3,), (20,), heads=2, head_dim=16, magnitude=200.0),
]


@pytest.mark.parametrize("case", TENSOR_CORE_CASES, ids=str)
def test_tensor_cores(device, case):
    run_variant(device, flash_attention_2, case, tiles=TILES)


@pytest.mark.parametrize(
    "tiles", [(32, 16, 1), (32, 32, 2), (16, 48, 1), (16, 16, 1)], ids=lambda tiles: "x".join(map(str, tiles))
)
def test_tile_shapes(device, tiles):
    """Two 16-row tiles a warp, two warps, uneven tiles; head_dim 144 with 16 rows or more no longer keeps Q in registers."""
    run_variant(device, flash_attention_2, AttentionCase((35,), (41,), heads=2, head_dim=16, dtype=BFLOAT16), tiles=tiles)
    run_variant(device, flash_attention_2, AttentionCase((3,), (19,), heads=2, head_dim=144, dtype=BFLOAT16), tiles=tiles)


@pytest.mark.parametrize("case", FLOAT32_CASES, ids=str)
def test_float32(device, case):
    run_variant(device, flash_attention_2, case, tiles=FLOAT32_TILES)


def test_default_tiles(device):
    """The tiles that users get, once: 64 rows by 64 keys and four warps, and the register tiles of float32."""
    run_variant(device, flash_attention_2, AttentionCase((5,), (66,), heads=2, head_dim=16, dtype=BFLOAT16))
    run_variant(device, flash_attention_2, AttentionCase((3,), (5,), heads=2, kv_heads=2, head_dim=8))


def test_chunks_of_a_prompt_give_the_same_rows(device):
    """Chunked prefill: the rows of a prompt do not depend on how it was cut."""
    whole = run_variant(device, flash_attention_2, AttentionCase((33,), (33,), heads=2, head_dim=16, dtype=BFLOAT16), tiles=TILES)
    assert whole.shape == (33, 2, 16)
    from tests.kernels.attention.cases import make_arrays

    arrays = make_arrays(AttentionCase((33,), (33,), heads=2, head_dim=16, dtype=BFLOAT16))
    for start, stop in ((0, 7), (7, 23), (23, 33)):
        out = np.full((stop - start, 2, 16), np.nan, BFLOAT16)
        flash_attention_2.attention(
            np.ascontiguousarray(arrays.query[start:stop]), arrays.key_cache, arrays.value_cache, out,
            np.array([0, stop - start], np.int32), np.array([stop], np.int32), arrays.block_tables, arrays.scale, tiles=TILES,
        )  # fmt: skip
        # Tiles of keys are aligned to the context's start, so each row folds the same tiles in the same order, bit by bit.
        np.testing.assert_array_equal(out.view(np.uint16), np.ascontiguousarray(whole[start:stop]).view(np.uint16))
