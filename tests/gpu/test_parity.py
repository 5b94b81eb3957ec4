"""The forward on a GPU against transformers: the cases of tests/models/test_parity.py."""

import numpy as np
import pytest

from minllm.models.model import load_model
from tests.models.batches import logits_in_chunks, logits_of
from tests.models.parity import HALF_PRECISION_CASES, check_float32, check_half_precision, saved_model
from tests.models.random_models import FAMILIES, prompt


def cuda_ops(dtype: str):
    """The operations of the first GPU."""
    from minllm.ops.cuda_ops import CudaOps

    return CudaOps(dtype)


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_logits_equal_transformers(family):
    check_float32(cuda_ops("float32"), family)


@pytest.mark.parametrize(("family", "dtype"), HALF_PRECISION_CASES)
def test_half_precision_is_no_worse_than_transformers(family, dtype):
    check_half_precision(cuda_ops(dtype), family, dtype)


@pytest.mark.covering("family", "block_size")
@pytest.mark.parametrize("block_size", [1, 16, 256])
@pytest.mark.parametrize("family", ["llama3", "mistral", "qwen2_window", "qwen3", "gpt2"])
def test_decoding_token_by_token_equals_one_forward(family, block_size):
    ops = cuda_ops("float32")
    model = load_model(saved_model(family), ops)
    tokens = prompt(130)
    whole = logits_of(ops, model, tokens)
    for chunks in ([113] + [1] * 17, [64, 64, 2]):
        ours = logits_in_chunks(ops, model, tokens, chunks, block_size)
        np.testing.assert_allclose(ours, whole, rtol=0, atol=1e-4 * np.abs(whole).max())
