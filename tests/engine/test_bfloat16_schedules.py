"""In bfloat16 no schedule changes a score by more than rounding does: policies, chunk sizes, company, preemption and caches.

test_schedules.py has the same in float32, token for token.
"""

import numpy as np
import pytest

from minllm import LLM, SamplingParams
from minllm.engine.options import SCHEDULING_POLICIES
from tests.engine.checks import BLOCK_BYTES
from tests.engine.models import model_directory
from tests.engine.rounding import QUANTISED_BOUND, check_same_within, logprob_tolerance
from tests.models.random_models import prompt

PROMPTS = [prompt(length, seed=length) for length in (1, 17, 70, 16, 33, 5)]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=tokens, logprobs=5, prompt_logprobs=0, ignore_eos=True) for tokens in (20, 12, 9, 20, 20, 1)
]
SMALL = dict(device="cpu", dtype="bfloat16", max_model_len=128)
TEXT = prompt(120)


@pytest.fixture(scope="module")
def alone():
    """(Outputs of the requests one by one in whole prompts, the logits of a text, the tolerance)."""
    with LLM(model_directory("small"), **SMALL) as llm:
        outputs = [llm.generate([token_ids], params)[0] for token_ids, params in zip(PROMPTS, PARAMS, strict=True)]
        logits = llm.logits(TEXT)
        return outputs, logits, logprob_tolerance("bfloat16", len(llm.engine.model.weights.layers), logits)


def check(llm, alone):
    """All requests together, twice, and the perplexity of a text."""
    outputs, logits, tolerance = alone
    for _ in range(2):
        check_same_within(llm.generate(PROMPTS, PARAMS), outputs, tolerance)
    found = llm.logits(TEXT)
    assert np.abs(log_likelihoods(found) - log_likelihoods(logits)).max() <= tolerance
    perplexity = np.exp(-log_likelihoods(logits).mean())
    assert abs(np.log(llm.perplexity(TEXT) / perplexity)) <= tolerance
    assert llm.engine.cache_policy.usage().allocated == 0


def log_likelihoods(logits):
    """log p of TEXT's tokens after the first."""
    logits = logits[:-1].astype(np.float64)
    return logits[np.arange(len(logits)), TEXT[1:]] - np.log(np.exp(logits).sum(axis=1))


@pytest.mark.covering("budget", "policy")
@pytest.mark.parametrize("budget", [1, 7, 16, 64, 2048])
@pytest.mark.parametrize("policy", SCHEDULING_POLICIES)
def test_policies_and_chunks(alone, policy, budget):
    with LLM(model_directory("small"), scheduling_policy=policy, max_num_batched_tokens=budget, **SMALL) as llm:
        check(llm, alone)


@pytest.mark.covering("preemption", "policy")
@pytest.mark.parametrize("policy", SCHEDULING_POLICIES)
@pytest.mark.parametrize("preemption", ["recompute", "swap", "auto"])
def test_preemption(alone, preemption, policy):
    """Nine blocks of 16 for requests that need 20 at a time."""
    memory = 9 * BLOCK_BYTES // 2  # BLOCK_BYTES counts float32
    options = dict(preemption=preemption, scheduling_policy=policy, kv_cache_memory_bytes=memory, swap_space_bytes=memory)
    with LLM(model_directory("small"), **options, **SMALL) as llm:
        assert llm.engine.cache_policy.num_blocks == 9
        check(llm, alone)
        assert llm.llm_engine.stats().num_preemptions > 0


@pytest.mark.parametrize("cache", [dict(enable_prefix_caching="radix"), dict(kv_cache_policy="contiguous", max_num_seqs=3)], ids=str)
def test_caches(alone, cache):
    with LLM(model_directory("small"), max_num_batched_tokens=24, **cache, **SMALL) as llm:
        check(llm, alone)


def test_the_tolerance_is_that_of_the_dtype(alone):
    """It is a small part of what tells tokens apart, and 16-bit floats with three bits more have an eighth of it."""
    _, logits, tolerance = alone
    layers = 2
    assert tolerance == logprob_tolerance("bfloat16", layers, logits) < 0.15 * np.std(logits, axis=1).mean()
    assert logprob_tolerance("float16", layers, logits) == pytest.approx(tolerance / 8)
    with LLM(model_directory("llama3"), **SMALL) as llm:
        assert QUANTISED_BOUND < logprob_tolerance("float16", 3, llm.logits(TEXT))


def test_a_wrong_mask_is_not_within_the_tolerance(alone):
    """What a text scores without its first token is further away: a key too few is an error, not rounding."""
    _, logits, tolerance = alone
    with LLM(model_directory("small"), **SMALL) as llm:
        shifted = llm.logits(TEXT[1:])
    difference = log_likelihoods(np.concatenate([logits[:1], shifted])) - log_likelihoods(logits)
    assert np.abs(difference).max() > 3 * tolerance
