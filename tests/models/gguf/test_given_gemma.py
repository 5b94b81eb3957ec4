"""Gemma 3 270M in Q4_K_M, if MINLLM_GEMMA_3_270M_GGUF names the file: its texts and token ids are transformers'."""

import os
import random

import pytest
import torch
import transformers

from minllm import LLM, SamplingParams
from tests.models.gguf.converter import stored_name
from tests.models.gguf.given import Dequantised, given_file

VARIABLE = "MINLLM_GEMMA_3_270M_GGUF"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
NEW_TOKENS = 24
PROMPTS = [
    "The capital of France is", "Once upon a time, there was a", "def fibonacci(n):\n    ", "Die Hauptstadt von Deutschland ist",
    "1, 2, 3, 4, 5,", "The chemical symbol of gold is", "Water boils at", "In 1969, the first", "import numpy as np\n\n",
    "La vie est", "東京は", "The quick brown fox", "Q: What is 2 + 2?\nA:", "<html>\n<body>\n  <h1>", "Dear Sir or Madam,\n\n",
    "She opened the door and", "The three laws of motion", "E = mc", "SELECT name FROM", "To be, or not to be, " * 80,
]  # fmt: skip
PIECES = [
    *"abcxyz019.,;!?()[]{}<>/\\\"'#@&*-+= \t\n\r", *"éüßñ½€ⅫЖяا東京の한🎉\u0301\u200d",
    "👩\u200d👩\u200d👧", "the ", "ing", " and", "  ", "    ", "\n\n", "<b>", "</s>",
    "<start_of_turn>", "<end_of_turn>\n", "<eos>", "<unk>", "▁", "[multimodal]",
]  # fmt: skip

pytestmark = [
    pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} does not name a gemma-3-270m.Q4_K_M.gguf"),
    pytest.mark.timeout(600),  # transformers takes half a minute to read the tokenizer
]


@pytest.fixture(scope="module")
def path():
    return given_file(VARIABLE, SHA256)


@pytest.fixture(scope="module")
def llm(path):
    with LLM(path, device="cpu", dtype="float32", max_num_seqs=len(PROMPTS), max_model_len=704) as llm:
        yield llm


@pytest.fixture(scope="module")
def tokenizer(path):
    return transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def reference(path):
    """transformers' model in float32, with the configuration that it reads and the weights that the gguf package dequantises."""
    config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    model = transformers.Gemma3ForCausalLM(config).float().eval()
    tensors = Dequantised(path)
    for name, parameter in model.named_parameters():
        values = tensors[stored_name(name, is_gemma=True)]
        parameter.data.copy_(values - 1 if name.endswith("norm.weight") else values)
    return model


def test_greedy_texts_are_transformers(path, llm, tokenizer):
    """Every token is the likeliest of transformers' logits after those before it, so that its own greedy text would be this one."""
    ours, model = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=NEW_TOKENS)), reference(path)
    for prompt, output in zip(PROMPTS, ours, strict=True):
        token_ids, completion = tokenizer(prompt).input_ids, output.outputs[0]
        assert output.prompt_token_ids == token_ids
        with torch.no_grad():
            logits = model(torch.tensor([token_ids + completion.token_ids[:-1]])).logits[0, len(token_ids) - 1 :]
        assert completion.token_ids == logits.argmax(-1).tolist()
        assert completion.text == tokenizer.decode(completion.token_ids, skip_special_tokens=True)
    assert max(len(output.prompt_token_ids) for output in ours) > 512, "one prompt is longer than the window"


def test_token_ids_of_random_texts_are_transformers(llm, tokenizer):
    chosen = random.Random(0)
    for _ in range(500):
        text = "".join(chosen.choices(PIECES, k=chosen.randrange(40)))
        token_ids = tokenizer(text).input_ids
        assert llm.tokenizer.encode(text) == token_ids, text
        assert llm.tokenizer.decode(token_ids) == tokenizer.decode(token_ids, skip_special_tokens=True), text
