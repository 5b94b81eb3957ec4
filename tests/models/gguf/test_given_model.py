"""Qwen2.5-Coder-0.5B-Instruct in Q4_K_M, if MINLLM_QWEN2_5_CODER_GGUF names the file: its chats are transformers', turns' ends included."""

import os

import pytest
import torch
import transformers

from minllm import LLM, SamplingParams
from tests.models.gguf.converter import stored_name
from tests.models.gguf.given import Dequantised, given_file

VARIABLE = "MINLLM_QWEN2_5_CODER_GGUF"
SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
NEW_TOKENS = 32
QUESTIONS = [
    "What is the capital of France? Answer with one word.",
    "Write a Python function that returns the square of a number.",
    "Say hello in German.",
    "Is 91 a prime number?",
]
CHATS = [[dict(role="user", content=question)] for question in QUESTIONS]

pytestmark = pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} does not name a Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf")


@pytest.fixture(scope="module")
def path():
    return given_file(VARIABLE, SHA256)


@pytest.fixture(scope="module")
def llm(path):
    with LLM(path, device="cpu", dtype="float32", max_num_seqs=len(CHATS), max_model_len=256) as llm:
        yield llm


def reference(path):
    """transformers' model in float32, with the configuration that it reads and the weights that the gguf package dequantises."""
    model = transformers.Qwen2ForCausalLM(transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)).float().eval()
    tensors = Dequantised(path)
    for name, parameter in model.state_dict().items():
        stored = stored_name(name)
        parameter.copy_(tensors[stored if stored in tensors else "token_embd.weight"])  # the head is tied
    return model


@pytest.mark.timeout(600)  # transformers takes half a minute to read the tokenizer
def test_greedy_chats_are_transformers(path, llm):
    """Every token is the likeliest of transformers' logits after those before it, so that its own greedy text would be this one."""
    ours = llm.chat(CHATS, SamplingParams(temperature=0, max_tokens=NEW_TOKENS))
    tokenizer, model = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name), reference(path)
    for chat, output in zip(CHATS, ours, strict=True):
        prompt, completion = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False), output.outputs[0]
        assert output.prompt_token_ids == prompt
        with torch.no_grad():
            logits = model(torch.tensor([prompt + completion.token_ids[:-1]])).logits[0, len(prompt) - 1 :]
        assert completion.token_ids == logits.argmax(-1).tolist()
        assert completion.text == tokenizer.decode(completion.token_ids, skip_special_tokens=True)
        *before, last = completion.token_ids
        assert tokenizer.eos_token_id not in before
        assert completion.finish_reason == ("stop" if last == tokenizer.eos_token_id else "length")
    assert {output.outputs[0].finish_reason for output in ours} == {"stop", "length"}, "turns that end, and turns that are cut"


def test_turns_end_where_llama_cpp_ends_them(llm):
    texts = [llm.tokenizer.decode([token_id], skip_special_tokens=False) for token_id in sorted(llm.engine.eos_token_ids)]
    assert texts == ["<|endoftext|>", "<|im_end|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"]
