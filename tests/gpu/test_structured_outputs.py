"""Structured outputs on a GPU: masks that the host fills while a graph computes the forward give the tokens of NumPy and of eager steps."""

import json
from functools import partial

import jsonschema
import pytest

from minllm import LLM, SamplingParams
from tests.engine.models import ending_model_directory
from tests.engine.schemas import SCHEMAS, structured_params
from tests.engine.test_speculation import ngrams
from tests.gpu.agreement import KV_CACHE_BYTES

pytest.importorskip("llguidance")
SIZES = dict(dtype="float32", max_model_len=160, max_num_seqs=8, kv_cache_memory_bytes=KV_CACHE_BYTES)
FREE = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
ENGINES = {"graphs": {}, "eager": dict(enforce_eager=True), "drafts": dict(speculative_config=ngrams())}


params = partial(structured_params, max_tokens=100)


MIX = [
    params(regex="(?:abc|d){9}", temperature=0), FREE, params(choice=["abcabc", "b"], temperature=0, repetition_penalty=1.2),
    params(json=SCHEMAS["a call of a tool"], disable_any_whitespace=True, temperature=0, logprobs=2), FREE,
] * 3  # fmt: skip
PROMPTS = [[3 + i] * (1 + 7 * i % 20) for i in range(len(MIX))]


def tokens(llm):
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, MIX)]


@pytest.fixture(scope="module")
def expected():
    with LLM(ending_model_directory("llama3"), device="cpu", **SIZES) as llm:
        return tokens(llm)


@pytest.mark.parametrize("name", ENGINES)
def test_tokens_are_those_of_numpy(expected, name):
    with LLM(ending_model_directory("llama3"), device="cuda", **SIZES, **ENGINES[name]) as llm:
        assert tokens(llm) == tokens(llm) == expected
        assert llm.engine.cache_policy.usage().allocated == 0


def test_sampled_outputs_parse():
    schema = SCHEMAS["a list of people"]
    with LLM(ending_model_directory("llama3"), device="cuda", **SIZES) as llm:
        outputs = llm.generate([[5 + i] for i in range(64)], params(json=schema, disable_any_whitespace=True))
    ended = [output.outputs[0].text for output in outputs if output.outputs[0].finish_reason == "stop"]
    assert len(ended) > 50
    for text in ended:
        jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
