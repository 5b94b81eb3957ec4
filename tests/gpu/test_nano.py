"""nano's kernels on a GPU give the tokens of its equations, and of the engine."""

from minllm import LLM
from minllm import SamplingParams as EngineParams
from minllm.nano import NanoLLM, SamplingParams
from tests.nano.test_parity import TEXTS


def test_greedy_equals_the_engine():
    params = SamplingParams(max_tokens=16)
    found = NanoLLM(device="cuda").generate(TEXTS, params)
    assert found == NanoLLM(device="cpu").generate(TEXTS, params)
    with LLM(dtype="float32", max_model_len=256) as llm:
        expected = llm.generate(TEXTS, EngineParams(temperature=0, max_tokens=16))
    assert [output.text for output in found] == [output.outputs[0].text for output in expected]
