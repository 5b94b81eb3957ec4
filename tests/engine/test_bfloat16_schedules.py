"""In bfloat16 no schedule changes a score by more than rounding does: policies, chunk sizes, company, preemption and caches.

test_schedules.py has the same in float32, token for token.
"""

import numpy as np
import pytest

from minllm import LLM, SamplingParams
from minllm.engine.options import SCHEDULING_POLICIES
from tests.engine.checks import BLOCK_BYTES
from tests.engine.models import model_directory
from tests.engine.rounding import QUANTISED_BOUND, check_scores, log_likelihoods, logprob_tolerance, scores_alone
from tests.models.random_models import prompt

PROMPTS = [prompt(length, seed=length) for length in (1, 17, 70, 16, 33, 5)]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=tokens, logprobs=5, prompt_logprobs=0, ignore_eos=True) for tokens in (20, 12, 9, 20, 20, 1)
]
SMALL = dict(device="cpu", dtype="bfloat16", max_model_len=128)
TEXT = prompt(120)


@pytest.fixture(scope="module")
def alone():
    with LLM(model_directory("small"), **SMALL) as llm:
        return scores_alone(llm, PROMPTS, PARAMS, TEXT)


@pytest.mark.covering("budget", "policy")
@pytest.mark.parametrize("budget", [1, 7, 16, 64, 2048])
@pytest.mark.parametrize("policy", SCHEDULING_POLICIES)
def test_policies_and_chunks(alone, policy, budget):
    with LLM(model_directory("small"), scheduling_policy=policy, max_num_batched_tokens=budget, **SMALL) as llm:
        check_scores(llm, alone)


@pytest.mark.covering("preemption", "policy")
@pytest.mark.parametrize("policy", SCHEDULING_POLICIES)
@pytest.mark.parametrize("preemption", ["recompute", "swap", "auto"])
def test_preemption(alone, preemption, policy):
    """Nine blocks of 16 for requests that need 20 at a time."""
    memory = 9 * BLOCK_BYTES // 2  # BLOCK_BYTES counts float32
    options = dict(preemption=preemption, scheduling_policy=policy, kv_cache_memory_bytes=memory, swap_space_bytes=memory)
    with LLM(model_directory("small"), **options, **SMALL) as llm:
        assert llm.engine.cache_policy.num_blocks == 9
        check_scores(llm, alone)
        assert llm.llm_engine.stats().num_preemptions > 0


@pytest.mark.parametrize("cache", [dict(enable_prefix_caching="radix"), dict(kv_cache_policy="contiguous", max_num_seqs=3)], ids=str)
def test_caches(alone, cache):
    with LLM(model_directory("small"), max_num_batched_tokens=24, **cache, **SMALL) as llm:
        check_scores(llm, alone)


def test_the_tolerance_is_that_of_the_dtype(alone):
    """It is a small part of what tells tokens apart, and 16-bit floats with three bits more have an eighth of it."""
    logits, tolerance, layers = alone.logits, alone.tolerance, 2
    assert tolerance == logprob_tolerance("bfloat16", layers, logits) < 0.15 * np.std(logits, axis=1).mean()
    assert logprob_tolerance("float16", layers, logits) == pytest.approx(tolerance / 8)
    with LLM(model_directory("llama3"), **SMALL) as llm:
        assert QUANTISED_BOUND < logprob_tolerance("float16", 3, llm.logits(TEXT))


def test_a_wrong_mask_is_not_within_the_tolerance(alone):
    """What a text scores without its first token is further away: a key too few is an error, not rounding."""
    with LLM(model_directory("small"), **SMALL) as llm:
        shifted = llm.logits(TEXT[1:])
    difference = log_likelihoods(np.concatenate([alone.logits[:1], shifted]), TEXT) - log_likelihoods(alone.logits, TEXT)
    assert np.abs(difference).max() > 3 * alone.tolerance
