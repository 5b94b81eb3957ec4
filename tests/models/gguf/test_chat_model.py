"""SmolLM2-135M-Instruct, the model of `make chat`: runs where `make chat` has downloaded it."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from minllm import LLM, SamplingParams
from minllm.models.gguf.gguf_file import GgufFile
from minllm.models.gguf.gguf_model import GgufModel
from tests.models.gguf.converter import permute, stored_name
from tests.models.gguf.llama_cpp_bpe import encode

PATH = Path(__file__).parents[3] / ".cache" / "chat" / "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT = "The capital of France is Paris, in 1234.\n\nGröße, naïve 東京 👩‍👩‍👧!  \tdef f(x):\n    return x + 12  # don't\n"
CHAT = [dict(role="user", content="What is the capital of France?")]

pytestmark = pytest.mark.skipif(not PATH.exists(), reason=f"there is no {PATH.name}: make chat downloads it")


@pytest.fixture(scope="module")
def llm():
    with LLM(PATH, device="cpu", dtype="float32", max_num_seqs=2) as llm:
        yield llm


def reference():
    """transformers' Llama in float32 with the dequantised weights, named and laid out by this test's own inverse of the converter."""
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
        max_position_embeddings=8192, rms_norm_eps=1e-5, rope_parameters=dict(rope_type="default", rope_theta=100000.0),
        tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    file, state = GgufFile(PATH), {}
    for name in model.state_dict():
        values = np.array(file.tensor("token_embd.weight" if name == "lm_head.weight" else stored_name(name)))
        if ".q_proj." in name or ".k_proj." in name:
            moved = permute(np.arange(len(values)), 9, 3 if ".k_proj." in name else 9)  # row r of the file is row moved[r]
            values[moved] = values.copy()
        state[name] = torch.from_numpy(values)
    model.load_state_dict(state)
    return model


def test_logits_are_those_of_the_dequantised_weights(llm):
    tokens = llm.tokenizer.encode(TEXT)
    with torch.no_grad():
        expected = reference()(torch.tensor([tokens])).logits[0].numpy()
    error = np.abs(llm.logits(tokens) - expected).max()
    assert error <= 1e-5 * np.abs(expected).max(), f"off by {error}"


@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_it_knows_the_capital_of_france(dtype):
    with LLM(PATH, device="cpu", dtype=dtype, max_num_seqs=1) as llm:
        answer = llm.chat(CHAT, SamplingParams(temperature=0, max_tokens=20))[0].outputs[0]
    assert answer.text == "The capital of France is Paris." and answer.finish_reason == "stop"


def test_the_chat_template_writes_the_models_format(llm):
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    question = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
    assert llm.tokenizer.apply_chat_template(CHAT) == f"{system}{question}<|im_start|>assistant\n"
    own = llm.tokenizer.apply_chat_template([dict(role="system", content="Be brief."), *CHAT], add_generation_prompt=False)
    assert own == f"<|im_start|>system\nBe brief.<|im_end|>\n{question}"
    assert llm.tokenizer.encode(own, add_special_tokens=False)[:2] == [1, 9690]  # <|im_start|>, system


def test_ids_are_llama_cpps(llm):
    metadata = GgufFile(PATH).metadata
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    for text in (TEXT, "<|im_start|>user\n1234567 and 0.5<|im_end|>\n", "   leading and trailing   ", "\n\n\n a  b"):
        assert llm.tokenizer.encode(text) == encode(text, "smollm", tokens, merges, tokens[:17])
        assert llm.tokenizer.decode(llm.tokenizer.encode(text), skip_special_tokens=False) == text
    assert llm.tokenizer.special_token_ids == set(range(17))


def test_the_tokens_that_end_a_text(llm):
    assert llm.engine.eos_token_ids == {0, 2, 4} and llm.tokenizer.eos_token_id == 2
    assert GgufModel(PATH).config().bos_token_ids == (1,) and llm.max_model_len <= 8192
