"""Model directories as they come, and what is wrong with some: single file, shards, dtypes, ties, missing and surplus tensors."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from minllm.errors import CheckpointError
from minllm.models.checkpoint import Checkpoint
from minllm.models.model import load_model
from minllm.ops.numpy_ops import NumpyOps
from tests.models.batches import logits_of
from tests.models.parity import saved_model
from tests.models.random_models import prompt, save_random_model

INDEX = "model.safetensors.index.json"


@pytest.fixture
def llama(tmp_path):
    """A copy of a random Llama that a test may damage."""
    return shutil.copytree(saved_model("llama2"), tmp_path / "model")


@pytest.fixture
def shards(tmp_path):
    """A random Qwen2 in several shards."""
    save_random_model("qwen2", tmp_path, max_shard_size="1MB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    return tmp_path


def edit(directory, change):
    """Rewrites model.safetensors after `change` worked on its tensors."""
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def edit_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def load(directory, dtype="float32", **options):
    return load_model(directory, NumpyOps(dtype), **options)


def same_logits(a, b):
    ops = NumpyOps("float32")
    np.testing.assert_array_equal(logits_of(ops, a, prompt(17)), logits_of(ops, b, prompt(17)))


def refuse(directory, match):
    """Loading fails with our error, and before any weight was made."""

    class Untouched(NumpyOps):
        def weight(self, host_array, dtype=None):
            raise AssertionError("a weight was read before everything was checked")

    with pytest.raises(CheckpointError, match=match):
        load_model(directory, Untouched("float32"))


def test_shards_equal_one_file(shards):
    same_logits(load(shards), load(saved_model("qwen2")))


def test_progress_counts_every_byte_once(llama):
    seen = []
    load(llama, progress=lambda done, total: seen.append((done, total)))
    done, totals = zip(*seen, strict=True)
    size = sum(tensor.numel() * 4 for tensor in load_file(llama / "model.safetensors").values())
    assert set(totals) == {size} and done[-1] == size
    assert list(done) == sorted(set(done))


def test_a_tied_head_is_not_copied(tmp_path):
    tied, untied = load(saved_model("smollm")), load(saved_model("llama2"))
    assert tied.weights.lm_head.weight is tied.weights.embedding
    assert untied.weights.lm_head.weight is not untied.weights.embedding
    save_random_model("smollm", tmp_path)  # some writers store the head all the same
    edit(tmp_path, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))
    same_logits(load(tmp_path), tied)


@pytest.mark.parametrize(("family", "prefix"), [("smollm", "model."), ("gpt2", "transformer.")])
def test_tensors_of_the_bare_decoder(family, prefix, tmp_path):
    """The first GPT-2 checkpoints have no "transformer." before their names, and carry their masks."""
    shutil.copytree(saved_model(family), tmp_path, dirs_exist_ok=True)

    def strip(tensors):
        for name in list(tensors):
            tensors[name.removeprefix(prefix)] = tensors.pop(name)
        if family == "gpt2":
            tensors["h.0.attn.bias"] = torch.ones(1, 1, 160, 160, dtype=torch.uint8)
            tensors["h.0.attn.masked_bias"] = torch.tensor(-1e4)
        else:
            tensors["layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(32)

    edit(tmp_path, strip)
    same_logits(load(tmp_path), load(saved_model(family)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_stored_dtypes(dtype, tmp_path):
    model = save_random_model("qwen2", tmp_path, dtype)
    assert str(Checkpoint(tmp_path).dtype()) == dtype
    layer = load(tmp_path).weights.layers[1]
    attention = model.model.layers[1].self_attn
    qkv = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
    np.testing.assert_array_equal(layer.attention.qkv.weight, qkv.detach().float().numpy())
    bias = torch.cat([attention.q_proj.bias, attention.k_proj.bias, attention.v_proj.bias])
    np.testing.assert_array_equal(layer.attention.qkv.bias, bias.detach().float().numpy())


def test_float64_is_computed_in_float32(tmp_path):
    save_random_model("llama2", tmp_path, "float64")
    assert Checkpoint(tmp_path).dtype() == np.float32
    same_logits(load(tmp_path), load(saved_model("llama2")))


def test_a_shorter_rotary_table(llama):
    assert load(llama).ropes.whole.shape == (256, 40)
    assert load(llama, max_positions=100).ropes.whole.shape == (100, 40)
    assert load(llama, max_positions=10_000).ropes.whole.shape == (256, 40)


def test_weights_beyond_float16(llama):
    edit(llama, lambda tensors: tensors["model.norm.weight"].mul_(1e6))
    load(llama, "bfloat16")
    with pytest.raises(CheckpointError, match="model.norm.weight.*float16"):
        load(llama, "float16")


def test_directories_without_weights(tmp_path, llama):
    refuse(tmp_path / "nowhere", "config.json is missing")
    with pytest.raises(CheckpointError, match="not a directory"):
        Checkpoint(tmp_path / "nowhere")
    (llama / "model.safetensors").unlink()
    refuse(llama, "holds no weights")
    (llama / "pytorch_model.bin").write_bytes(b"\x80\x02.")
    refuse(llama, "pickle")


def test_a_damaged_file(llama):
    path = llama / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    refuse(llama, "cut short")
    path.write_bytes(content[:4])
    refuse(llama, "too short")


def test_tensors_that_contradict_the_configuration(llama):
    edit(llama, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    refuse(llama, "lacks tensor 'model.layers.1.mlp.up_proj.weight'")
    edit(llama, lambda tensors: tensors.update({"model.layers.1.mlp.up_proj.weight": torch.zeros(344, 239)}))
    refuse(llama, r"shape \[344, 239\], and config.json makes it \[344, 240\]")


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("num_hidden_layers", 4, "lacks 9 tensors"),
        ("num_hidden_layers", 2, "does not have"),
        ("vocab_size", 1004, "embed_tokens"),
        ("num_key_value_heads", 3, "k_proj"),
        ("head_dim", 42, "q_proj"),
        ("tie_word_embeddings", None, None),
        ("attention_bias", True, "lacks 12 tensors"),
    ],
)
def test_a_configuration_that_contradicts_the_tensors(key, value, match, llama):
    edit_json(llama / "config.json", **{key: value})
    if match is None:  # null is the family's default, which these tensors are
        load(llama)
    else:
        refuse(llama, match)


def test_surplus_tensors_are_not_ignored(llama):
    edit(llama, lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(240)}))
    refuse(llama, "q_proj.bias")


def test_an_untied_model_without_its_head(llama):
    edit(llama, lambda tensors: tensors.pop("lm_head.weight"))
    refuse(llama, "lm_head.weight")


def test_a_missing_shard(shards):
    sorted(shards.glob("*.safetensors"))[1].unlink()
    refuse(shards, "is missing")


def test_shards_and_index_that_disagree(shards):
    index = json.loads((shards / INDEX).read_text())["weight_map"]
    shards_of = list(index.values())
    one = next(name for name, shard in index.items() if shards_of.count(shard) > 1)  # not alone in its shard
    other = next(shard for shard in shards_of if shard != index[one])
    for weight_map, match in (
        ({**index, one: other}, "which lacks it"),
        ({name: shard for name, shard in index.items() if name != one}, "does not list"),
        ({**index, "more": index[one]}, "which lacks it"),
        ({**index, one: "../x.safetensors"}, "beside it"),
        ({**index, one: "pytorch_model.bin"}, "beside it"),
        ({**index, one: 3}, "weight_map"),
        ({}, "weight_map"),
        (None, "weight_map"),
    ):
        (shards / INDEX).write_text(json.dumps({"weight_map": weight_map}))
        refuse(shards, match)
    (shards / INDEX).write_text("{")
    refuse(shards, "not valid JSON")
