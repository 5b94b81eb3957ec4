"""Residual windows on a GPU: the engine with them."""

import numpy as np
import pytest

from minllm import LLM, SamplingParams
from minllm.kernels.sampling.log_probabilities import log_softmax
from tests.gpu.agreement import KV_CACHE_BYTES, engines_that_agree, share_of_same

FORMATS = [("kivi_int4", 64), ("int4", 32), ("int8", 128), ("fp8_e4m3", 64)]


@pytest.mark.parametrize(("name", "window"), FORMATS)
def test_the_engine_agrees_with_numpy(name, window, token_ids):
    """Logits of a text, whole and in chunks; and greedy tokens as graphs and kernel by kernel, across several groups."""
    options = dict(kv_cache_dtype=name, kv_cache_residual_window=window, dtype="bfloat16", max_num_seqs=4, max_model_len=320)
    params, tokens = SamplingParams(temperature=0.0, max_tokens=80, ignore_eos=True), []
    for llm, generated in engines_that_agree(token_ids, params, **options):
        tokens.append(generated)
        for prompt, found in zip((token_ids[:20], token_ids[5:100]), generated, strict=True):
            likeliest = llm.logits(prompt + list(found)).argmax(axis=1)[len(prompt) - 1 : -1]
            assert np.mean(likeliest == found) > 0.9  # decode steps read what prompts read
    assert share_of_same(tokens) > 0.3


def test_forks_have_windows_of_their_own(token_ids):
    """Each completion of a prompt is likely: drawn from the distribution that the scores of its own text give."""
    options = dict(kv_cache_dtype="int8", kv_cache_residual_window=32, dtype="bfloat16", max_num_seqs=4, max_model_len=320)
    with LLM(device="cuda", kv_cache_memory_bytes=KV_CACHE_BYTES, **options) as llm:
        (forked,) = llm.generate([token_ids[:70]], SamplingParams(n=3, temperature=1.0, seed=3, max_tokens=70, ignore_eos=True, logprobs=0))
        for one in forked.outputs:
            scores = log_softmax(llm.logits(token_ids[:70] + list(one.token_ids))[69:-1])
            found = np.array([step[token].logprob for step, token in zip(one.logprobs, one.token_ids, strict=True)])
            assert np.abs(found - scores[np.arange(70), one.token_ids]).mean() < 0.2
