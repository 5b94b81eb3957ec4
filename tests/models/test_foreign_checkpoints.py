"""config.json as others write it: minllm gives the logits that transformers gives for the same directory, or refuses it."""

import json
import shutil

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from minllm.errors import CheckpointError, UnsupportedModelError
from minllm.models.model import load_model
from minllm.ops.numpy_ops import NumpyOps
from tests.models.batches import logits_of
from tests.models.parity import saved_model
from tests.models.random_models import prompt, reference_logits

TOKENS = prompt(60)
LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
FULL, SLIDING = "full_attention", "sliding_attention"
REMOVED = object()


def edited(family, tmp_path, changes):
    """A copy of a random model whose config.json has these changes."""
    directory = shutil.copytree(saved_model(family), tmp_path / "model")
    path = directory / "config.json"
    values = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not REMOVED}))
    return directory


def transformers_logits(directory):
    return reference_logits(transformers.AutoModelForCausalLM.from_pretrained(directory).eval(), TOKENS)


def our_logits(directory):
    ops = NumpyOps("float32")
    return logits_of(ops, load_model(directory, ops, max_positions=len(TOKENS)), TOKENS)


def check_logits(directory):
    theirs = transformers_logits(directory)
    assert np.abs(our_logits(directory) - theirs).max() <= 1e-4 * np.abs(theirs).max()


LIKE_TRANSFORMERS = {
    "rope_scaling replaces rope_parameters": ("llama3", dict(rope_scaling=LINEAR)),
    "and its rope_theta": ("llama3", dict(rope_scaling={**LINEAR, "rope_theta": 3000.0}, rope_theta=200.0)),
    "and takes the one outside": ("llama3", dict(rope_scaling=LINEAR, rope_theta=200.0)),
    "an empty rope_scaling does not": ("llama3", dict(rope_scaling={})),
    "trained length outside": ("llama2", dict(rope_parameters=REMOVED, rope_scaling=LLAMA3, original_max_position_embeddings=32)),
    "trained length inside and outside": (
        "llama2",
        dict(rope_parameters=LLAMA3 | {"original_max_position_embeddings": 128}, original_max_position_embeddings=32),
    ),
    "trained length nowhere": ("llama2", dict(rope_parameters=LLAMA3)),
    "mistral of full attention": ("mistral", dict(layer_types=[FULL] * 3)),
    "mistral of both": ("mistral", dict(layer_types=[SLIDING, FULL, SLIDING])),
    "mistral, null layer_types": ("mistral", dict(layer_types=None)),
    "qwen2 without a window": ("qwen2_window", dict(sliding_window=None, layer_types=REMOVED, max_window_layers=0)),
    "qwen2 without a window, null layer_types": ("qwen2_window", dict(sliding_window=None, layer_types=None, max_window_layers=0)),
    "qwen2 of full attention": ("qwen2_window", dict(sliding_window=None, layer_types=[FULL] * 3)),
    "qwen3 without a window": (
        "qwen3",
        dict(use_sliding_window=True, sliding_window=None, layer_types=REMOVED, max_window_layers=0),
    ),
    "qwen3 with one": ("qwen3", dict(use_sliding_window=True, sliding_window=7, layer_types=REMOVED, max_window_layers=1)),
    "llama of full attention": ("llama2", dict(layer_types=[FULL] * 3)),
    "attention_bias of a family without": ("mistral", dict(attention_bias=True)),
}  # fmt: skip


@pytest.mark.parametrize("name", LIKE_TRANSFORMERS)
def test_the_logits_are_transformers(name, tmp_path):
    family, changes = LIKE_TRANSFORMERS[name]
    check_logits(edited(family, tmp_path, changes))


REFUSED = {
    "yarn beside rope_parameters": ("llama3", dict(rope_scaling={"rope_type": "yarn", "factor": 2.0}), "yarn"),
    "rope by layer among flat keys": ("llama3", dict(rope_parameters={"rope_type": "default", FULL: LINEAR}), "kinds of layers"),
    "llama in chunks": ("llama2", dict(attention_chunk_size=8), "attention_chunk_size"),
    "llama of one kind": ("llama2", dict(layer_types=["chunked_attention"] * 3), "chunked_attention.*full_attention"),
    "llama with windows": ("llama2", dict(layer_types=[SLIDING] * 3), "sliding_attention"),
    "llama with a window": ("llama2", dict(sliding_window=8), "sliding_window = 8.*remove the key"),
    "layers without rotation": ("llama2", dict(no_rope_layers=[1, 1, 0]), "no_rope_layers"),
    "every fourth layer without rotation": ("llama2", dict(no_rope_layer_interval=4), "no_rope_layer_interval"),
    "no rotation": ("llama2", dict(use_rope=False), "use_rope"),
    "not causal": ("llama2", dict(is_causal=False), "is_causal"),
    "another gpt2": ("gpt2", dict(use_parallel_residual=True), "use_parallel_residual"),
    "gpt2 by another name": ("gpt2", dict(num_attention_heads=3), "num_attention_heads"),
    "qwen2 windows of no size": ("qwen2_window", dict(sliding_window=None, layer_types=[FULL, SLIDING, FULL]), "sliding_window"),
    "qwen2 windows switched off": ("qwen2_window", dict(use_sliding_window=False, layer_types=[FULL, SLIDING, FULL]), "sliding_window"),
    "mistral windows of no size": ("mistral", dict(sliding_window=None, layer_types=[FULL, SLIDING, FULL]), "sliding_window"),
    "mistral in chunks": ("mistral", dict(layer_types=["chunked_attention"] * 3), "chunked_attention"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_computed_is_refused_by_name(name, tmp_path):
    family, changes, match = REFUSED[name]
    with pytest.raises((UnsupportedModelError, CheckpointError), match=match):
        load_model(edited(family, tmp_path, changes), NumpyOps("float32"))


@pytest.mark.parametrize("family", ["smollm", "gpt2"])
def test_a_head_of_its_own_counts_although_config_json_ties_it(family, tmp_path):
    directory = edited(family, tmp_path, dict(tie_word_embeddings=True))
    path = directory / "model.safetensors"
    tensors = load_file(path)
    embedding = next(values for name, values in tensors.items() if "embed_tokens" in name or "wte" in name)
    tied = our_logits(directory)
    tensors["lm_head.weight"] = embedding.flip(0).contiguous()
    save_file(tensors, path, metadata={"format": "pt"})
    check_logits(directory)
    assert np.abs(our_logits(directory) - tied).max() > 0.1
    tensors["lm_head.weight"] = torch.zeros(7, embedding.shape[1])
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="lm_head.weight"):
        our_logits(directory)
