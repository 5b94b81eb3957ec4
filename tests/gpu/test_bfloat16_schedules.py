"""In bfloat16 on a GPU no schedule changes a score by more than rounding does: chunks, policies, company, preemption, graphs.

tests/engine/test_bfloat16_schedules.py has the same on a CPU, tests/engine/rounding.py derives the tolerance.
"""

import functools

import pytest

from minllm import LLM, SamplingParams
from minllm.engine.options import SCHEDULING_POLICIES
from tests.engine.models import model_directory
from tests.engine.rounding import check_scores, scores_alone
from tests.gpu.agreement import BLOCK_BYTES, KV_CACHE_BYTES
from tests.models.random_models import prompt

PROMPTS = [(prompt(32) + prompt(130, seed=i))[: 1 + 29 * i % 120] for i in range(12)]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=1 + 7 * i % 23, logprobs=5, prompt_logprobs=0, ignore_eos=True) for i in range(len(PROMPTS))
]
SMALL = dict(dtype="bfloat16", max_model_len=160, max_num_seqs=8)
GPU = SMALL | dict(device="cuda", kv_cache_memory_bytes=KV_CACHE_BYTES)
TEXT = prompt(150)
RUNNERS = {"graphs": {}, "eager": dict(enforce_eager=True)}


@functools.cache
def alone(device):
    """The Scores of an engine on "cuda" or "cpu"."""
    with LLM(model_directory("llama3"), **(GPU if device == "cuda" else SMALL | dict(device="cpu"))) as llm:
        return scores_alone(llm, PROMPTS, PARAMS, TEXT)


@pytest.mark.covering("runner", "budget")
@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("budget", [1, 7, 16, 64, 2048])
def test_chunks(runner, budget):
    with LLM(model_directory("llama3"), max_num_batched_tokens=budget, **RUNNERS[runner], **GPU) as llm:
        check_scores(llm, alone("cuda"))


@pytest.mark.covering("policy", "budget")
@pytest.mark.parametrize("budget", [7, 2048])
@pytest.mark.parametrize("policy", SCHEDULING_POLICIES)
def test_policies(policy, budget):
    with LLM(model_directory("llama3"), scheduling_policy=policy, max_num_batched_tokens=budget, **GPU) as llm:
        check_scores(llm, alone("cuda"))


@pytest.mark.covering("policy", "preemption")
@pytest.mark.parametrize("policy", SCHEDULING_POLICIES)
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_preemption(policy, preemption):
    """Twelve blocks for requests that need many more at a time."""
    options = GPU | dict(kv_cache_memory_bytes=12 * BLOCK_BYTES // 2, swap_space_bytes=64 << 20)  # BLOCK_BYTES counts float32
    options |= dict(max_num_batched_tokens=64, scheduling_policy=policy, preemption=preemption)
    with LLM(model_directory("llama3"), **options) as llm:
        check_scores(llm, alone("cuda"))
        assert llm.llm_engine.stats().num_preemptions > 0


def test_the_gpu_and_numpy_round_alike():
    """Their kernels differ too, and both are rounded computations of the same numbers."""
    with LLM(model_directory("llama3"), **GPU) as llm:
        check_scores(llm, alone("cpu"))
