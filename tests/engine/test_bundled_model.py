"""The model that comes with the package, against transformers on the same files."""

import functools
from importlib import resources

import numpy as np
import pytest
import torch
import transformers

from minllm import LLM, SamplingParams, held_out_text
from minllm.models.source import bundled_model
from tests.engine.bits_per_byte import bits_per_byte

PROMPTS = ["def fibonacci(n):\n", "import os\nimport sys\n\n\nclass", "x"]


@pytest.fixture(scope="module")
def llm():
    with LLM(device="cpu", dtype="float32", max_model_len=256, max_num_seqs=4) as llm:
        yield llm


@functools.cache
def reference():
    model = transformers.AutoModelForCausalLM.from_pretrained(bundled_model(), dtype=torch.float32).eval()
    model.generation_config = transformers.GenerationConfig()  # without the suggestions for sampling
    return model


def test_greedy_equals_transformers(llm):
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True))
    tokenizer = transformers.AutoTokenizer.from_pretrained(bundled_model())
    for text, output in zip(PROMPTS, outputs, strict=True):
        inputs = tokenizer(text, return_tensors="pt")
        assert inputs.input_ids[0].tolist() == output.prompt_token_ids
        with torch.no_grad():
            expected = reference().generate(
                input_ids=inputs.input_ids, attention_mask=inputs.attention_mask, do_sample=False, max_new_tokens=24
            )
        completion = output.outputs[0]
        assert completion.token_ids == expected[0, inputs.input_ids.shape[1] :].tolist()
        assert completion.text == tokenizer.decode(completion.token_ids, clean_up_tokenization_spaces=False)


def test_it_has_learned_python(llm):
    text = held_out_text()
    assert 150_000 < len(text.encode()) < 250_000
    piece = text[60_000:61_000]
    tokens = llm.tokenizer.encode(piece)
    bits = np.log2(llm.perplexity(tokens, window=256, stride=128)) * (len(tokens) - 1)
    assert bits / len(piece.encode()) < 1.5, "xz needs 1.8 bits a byte for all of it, and thousands of bytes to warm up"
    endings = {"if x is not": " None", "try:\n    import json\nexcept": " ImportError", "class Foo(object):\n    def __init__(": "self,"}
    for output in llm.generate(list(endings), SamplingParams(temperature=0, max_tokens=4)):
        assert output.outputs[0].text.startswith(endings[output.prompt])


def test_perplexity_equals_transformers(llm):
    tokens = llm.tokenizer.encode(held_out_text()[1000:2200])
    with torch.no_grad():
        expected = float(torch.exp(reference()(torch.tensor([tokens[:256]]), labels=torch.tensor([tokens[:256]])).loss))
    assert llm.perplexity(tokens[:256]) == pytest.approx(expected, rel=1e-4)


def test_the_default_is_the_bundled_model_as_stored():
    with LLM(device="cpu", max_model_len=64) as llm:
        assert str(llm.engine.ops.dtype) == "bfloat16"
        text = "".join(llm.stream("def f(", SamplingParams(max_tokens=8, seed=0)))
        assert text == llm.generate("def f(", SamplingParams(max_tokens=8, seed=0))[0].outputs[0].text


# The beginning is harder than the rest; tests/gpu/test_held_out_text.py reads the whole text.
@pytest.mark.parametrize("name, allowed", [("bundled", {16_000: 1.22, 40_000: 1.01}), ("draft", {16_000: 1.54, 40_000: 1.33})])
def test_the_bundled_models_predict_held_out_code(name, allowed, request):
    length = 40_000 if request.config.option.exhaustive else 16_000
    with LLM(str(resources.files("minllm") / "data/models" / name), device="cpu") as llm:
        assert bits_per_byte(llm, held_out_text()[:length]) < allowed[length]
