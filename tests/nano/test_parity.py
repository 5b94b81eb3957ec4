"""nano's tokens are transformers' and the engine's, however its requests are batched, in NumPy and in the simulator."""

import json
import shutil

import numpy as np
import pytest

from minllm import LLM
from minllm import SamplingParams as EngineParams
from minllm.errors import InvalidOptionError, InvalidRequestError, UnsupportedModelError
from minllm.nano import NanoLLM, SamplingParams
from minllm.nano.sampling import choose
from minllm.nano.sequence import Sequence
from tests.engine.models import model_directory, transformers_greedy
from tests.models.random_models import prompt

FAMILIES = ("llama3", "mistral", "qwen2", "qwen3")
TEXTS = ["def fibonacci(n):", "import os\n", "class Stack:\n    def push(self", "x = [", "for i in range(10):\n    print("]


@pytest.fixture(scope="module")
def bundled():
    return NanoLLM()


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_transformers(family):
    llm = NanoLLM(model_directory(family), num_blocks=64, block_size=8, max_num_batched_tokens=20)
    prompts = [prompt(length) for length in (1, 7, 23)]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=8, ignore_eos=True))
    assert [output.token_ids for output in outputs] == [transformers_greedy(family, tokens, 8) for tokens in prompts]


def test_greedy_equals_the_engine(bundled):
    with LLM(device="cpu", dtype="float32", max_model_len=256) as llm:
        expected = llm.generate(TEXTS, EngineParams(temperature=0, max_tokens=16))
    found = bundled.generate(TEXTS, SamplingParams(max_tokens=16))
    assert [output.text for output in found] == [output.outputs[0].text for output in expected]
    assert [output.finish_reason for output in found] == [output.outputs[0].finish_reason for output in expected]


def test_a_text_ends_where_the_tokenizer_alone_says_so(tmp_path):
    shutil.copytree(model_directory("small"), tmp_path, dirs_exist_ok=True)
    second = NanoLLM(tmp_path).generate([[5]], SamplingParams(max_tokens=2))[0].token_ids[1]
    name = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {one: text for text, one in name.items()}[second]}))
    with LLM(tmp_path, device="cpu", max_model_len=64) as llm:
        expected = llm.generate([[5]], EngineParams(temperature=0, max_tokens=9))[0].outputs[0]
    [found] = NanoLLM(tmp_path).generate([[5]], SamplingParams(max_tokens=9))
    assert (found.finish_reason, found.token_ids) == (expected.finish_reason, expected.token_ids) and found.finish_reason == "stop"


@pytest.mark.parametrize("family, tokens", [("small qwen2", 1), ("small qwen3", 2)])
def test_the_simulators_tokens_are_the_equations(family, tokens):
    """The kernels as they run on a GPU; qwen2 has biases, qwen3 normalises heads."""
    prompts, params = [prompt(3), prompt(5)], SamplingParams(max_tokens=tokens, ignore_eos=True)
    sizes = dict(num_blocks=8, block_size=8, max_num_seqs=2, max_num_batched_tokens=8)
    on_cpu, simulated = (NanoLLM(model_directory(family), device, **sizes).generate(prompts, params) for device in ("cpu", "simulator"))
    assert simulated == on_cpu


@pytest.mark.parametrize("sizes", [dict(max_num_seqs=1), dict(max_num_batched_tokens=16), dict(num_blocks=16, block_size=4)], ids=str)
def test_how_requests_are_batched_changes_no_token(bundled, sizes):
    params = SamplingParams(max_tokens=12)
    assert NanoLLM(**sizes).generate(TEXTS, params) == bundled.generate(TEXTS, params)


def test_seeded_requests_repeat_and_ignore_their_neighbours(bundled):
    params = SamplingParams(temperature=1, top_k=50, top_p=0.9, seed=3, max_tokens=10)
    [alone] = bundled.generate(TEXTS[:1], params)
    assert bundled.generate(TEXTS, params)[0] == alone
    assert len({bundled.generate(TEXTS[:1], SamplingParams(temperature=1, max_tokens=10))[0].text for _ in range(4)}) > 1


def test_a_stream_is_the_text_of_generate(bundled):
    params = SamplingParams(max_tokens=20)
    assert "".join(bundled.stream(TEXTS[0], params)) == bundled.generate(TEXTS[:1], params)[0].text
    stream = bundled.stream(TEXTS[0], params)
    next(stream)
    stream.close()
    assert bundled.scheduler.pool.num_free == 1024 and not bundled.scheduler.running


def test_draws_follow_the_softmax_of_the_tokens_kept():
    logits, draws = np.array([2.0, 1.0, 0.0, -1.0], np.float32), np.zeros(4)
    params = dict(temperature=0.5, top_p=0.95, max_tokens=1)
    for seed in range(3000):
        draws[choose(logits, Sequence([0], SamplingParams(**params, seed=seed)))] += 1
    kept = np.exp(logits[:2] / 0.5)  # 0.86 of all, and 0.12: the first two reach top_p
    expected = 3000 * kept / kept.sum()
    assert draws[2:].sum() == 0 and ((draws[:2] - expected) ** 2 / expected).sum() < 10.8  # chi-squared, one degree, p = 0.001
    assert choose(np.array([0, np.nan], np.float32), Sequence([0], SamplingParams(temperature=1))) == -1


def test_what_it_cannot_do_is_named(bundled):
    for prompt_given, params, message in (
        ([], SamplingParams(), "has 0 tokens"), ([5000], SamplingParams(), "0 to 4095"), ("x", SamplingParams(top_p=0), "top_p above 0"),
        *(("x", SamplingParams(temperature=wrong), "temperature, top_k") for wrong in (-1, float("nan"), float("inf"))),
        ("x", SamplingParams(temperature=1, seed=-1), "seed 0 or more"),
    ):  # fmt: skip
        with pytest.raises(InvalidRequestError, match=message):
            bundled.generate([prompt_given], params)
    with pytest.raises(InvalidOptionError, match="'tpu'; give one of cpu, simulator, cuda"):
        NanoLLM(device="tpu")
    with pytest.raises(InvalidOptionError, match="max_num_batched_tokens 3"):
        NanoLLM(max_num_batched_tokens=3)
    with pytest.raises(UnsupportedModelError, match="computes llama, mistral"):
        NanoLLM(model_directory("gpt2"))
