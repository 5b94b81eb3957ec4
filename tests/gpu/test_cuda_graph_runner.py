"""Generation on a GPU: graph replays against the plain runner, and both against NumPy."""

import pytest

from minllm import LLM, SamplingParams
from tests.engine.models import model_directory
from tests.gpu.agreement import KV_CACHE_BYTES
from tests.models.random_models import FAMILIES, prompt

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


def tokens(family, params, device, **options):
    options |= dict(dtype="float32", max_model_len=160, max_num_seqs=8, kv_cache_memory_bytes=KV_CACHE_BYTES)
    with LLM(model_directory(family), device=device, **options) as llm:
        prompts = [prompt(length) for length in (1, 17, 130)]
        first = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
        second = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
        assert first == second
        return first


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_those_of_numpy(family):
    assert tokens(family, GREEDY, "cuda") == tokens(family, GREEDY, "cpu")


SAMPLED = [
    SamplingParams(temperature=0.9, top_p=0.9, max_tokens=14, seed=3, ignore_eos=True),
    SamplingParams(temperature=1.1, top_k=20, max_tokens=9, seed=4, ignore_eos=True),
    SamplingParams(temperature=0.7, repetition_penalty=1.3, frequency_penalty=0.1, max_tokens=20, seed=5, ignore_eos=True),
]


def test_sampled_tokens_are_those_of_the_plain_runner_and_of_numpy():
    replayed = tokens("llama3", SAMPLED, "cuda")
    assert replayed == tokens("llama3", SAMPLED, "cuda", enforce_eager=True)
    assert replayed == tokens("llama3", SAMPLED, "cpu")
