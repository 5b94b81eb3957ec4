"""A tiny model directory with random weights and a tokenizer of bytes, for commands that load one."""

import json

import numpy as np
import pytest
import tokenizers
from safetensors.numpy import save_file

from minllm.models.config_reader import read_model_config
from minllm.models.random_checkpoint import RandomCheckpoint

CONFIG = dict(
    architectures=["LlamaForCausalLM"],
    model_type="llama",
    vocab_size=257,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    max_position_embeddings=512,
)
CHAT_TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory):
    """A Hugging Face directory of a Llama with one byte a token."""
    directory = tmp_path_factory.mktemp("model")
    (directory / "config.json").write_text(json.dumps(CONFIG))
    (directory / "generation_config.json").write_text(json.dumps(dict(do_sample=True, temperature=0.9, max_new_tokens=8)))
    (directory / "tokenizer_config.json").write_text(json.dumps(dict(chat_template=CHAT_TEMPLATE)))
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate([*alphabet, "<|end|>"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))
    checkpoint = RandomCheckpoint(read_model_config(directory))
    save_file({name: np.array(checkpoint.tensor(name)) for name in checkpoint.names()}, directory / "model.safetensors")
    return directory
