"""Quantised caches on a GPU, in the engine."""

import pytest

from minllm import SamplingParams
from minllm.kernels.quantization.formats import TOKEN_FORMATS
from tests.gpu.agreement import engines_that_agree, share_of_same


@pytest.mark.parametrize("name", TOKEN_FORMATS)
def test_the_engine_agrees_with_numpy(name, token_ids):
    """Logits of a text, whole and in chunks; and greedy tokens as graphs and kernel by kernel."""
    options = dict(kv_cache_dtype=name, dtype="bfloat16", max_num_seqs=4, max_model_len=320)
    params = SamplingParams(temperature=0.0, max_tokens=12)
    assert share_of_same([tokens for _, tokens in engines_that_agree(token_ids, params, **options)]) > 0.5
