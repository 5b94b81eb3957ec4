"""FlashAttention-2: what it refuses, and that the rows of a prompt do not depend on how it is cut."""

import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.attention.flash_attention_2 import flash_attention_2, float32
from tests.kernels.attention.case_lists import BFLOAT16
from tests.kernels.attention.cases import AttentionCase, make_arrays, run_variant


def test_float32_is_a_variant_of_its_own(device):
    with pytest.raises(KernelArgumentError, match="takes float32, not bfloat16: use flash_attention_2"):
        run_variant(device, float32, AttentionCase((3,), (5,), heads=2, head_dim=8, dtype=BFLOAT16))


def test_chunks_of_a_prompt_give_the_same_rows(device):
    """Chunked prefill: the rows of a prompt do not depend on how it was cut."""
    whole = run_variant(device, flash_attention_2, AttentionCase((33,), (33,), heads=2, head_dim=16, dtype=BFLOAT16), tiles=(16, 16, 1))
    assert whole.shape == (33, 2, 16)
    arrays = make_arrays(AttentionCase((33,), (33,), heads=2, head_dim=16, dtype=BFLOAT16))
    for start, stop in ((0, 7), (7, 23), (23, 33)):
        out = np.full((stop - start, 2, 16), np.nan, BFLOAT16)
        flash_attention_2.attention(
            np.ascontiguousarray(arrays.query[start:stop]), arrays.key_cache, arrays.value_cache, out,
            np.array([0, stop - start], np.int32), np.array([stop], np.int32), arrays.block_tables, arrays.scale, tiles=(16, 16, 1),
        )  # fmt: skip
        # Tiles of keys are aligned to the context's start, so each row folds the same tiles in the same order, bit by bit.
        np.testing.assert_array_equal(out.view(np.uint16), np.ascontiguousarray(whole[start:stop]).view(np.uint16))
