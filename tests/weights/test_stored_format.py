"""A format that checkpoints store: several tensors for each matrix, modules left as they are, heads and shards in the same way."""

import shutil
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from safetensors import torch as torch_file
from safetensors.numpy import load_file, save_file

from minllm.errors import CheckpointError
from minllm.models.checkpoint import Checkpoint
from minllm.models.config_reader import read_model_config
from minllm.models.layout import layout_of
from minllm.models.model import load_model
from minllm.models.weights import WeightReader
from minllm.ops.numpy_ops import NumpyOps
from tests.models.batches import logits_of
from tests.models.parity import saved_model
from tests.models.random_models import prompt
from tests.weights.sign_and_scale import SIGN_AND_SCALE, SignAndScale, SignedRows


@dataclass(frozen=True)
class StoredSigns(SignAndScale):
    """NAME.signs, int8 [outputs, inputs], and NAME.scales, float32 [outputs], in the file."""

    def tensors(self, projection):
        return {f"{projection.name}.signs": (projection.outputs, projection.inputs), f"{projection.name}.scales": (projection.outputs,)}

    def load(self, projections, checkpoint, shard):
        signs = [one.cut(checkpoint.array(f"{one.name}.signs"), shard) for one in projections]
        scales = [one.cut(checkpoint.tensor(f"{one.name}.scales"), shard, inputs_axis=None) for one in projections]
        return SignedRows(np.concatenate(signs), np.concatenate(scales))


STORED = StoredSigns("stored", matrix_itemsize=1, excluded=("lm_head", "model.layers.1.mlp.down_proj"))


def checkpoint_in(directory, weight_format):
    """A copy of a random Llama whose matrices are stored in the format."""
    shutil.copytree(saved_model("smollm"), directory)
    tensors = load_file(directory / "model.safetensors")
    for name in [name for name in tensors if "layers" in name and tensors[name].ndim == 2]:
        module = name.removesuffix(".weight")
        if weight_format.covers(module):
            weight = SIGN_AND_SCALE.encode(tensors.pop(name))
            tensors |= {f"{module}.signs": weight.signs, f"{module}.scales": weight.scales}
    save_file(tensors, directory / "model.safetensors")
    return directory


@pytest.fixture
def stored(tmp_path):
    return checkpoint_in(tmp_path / "model", STORED)


def test_its_tensors_are_loaded_and_excluded_modules_are_plain(stored):
    ops = NumpyOps()
    model = load_model(stored, ops, weight_format=STORED)
    made = load_model(saved_model("smollm"), ops, weight_format=replace(SIGN_AND_SCALE, excluded=STORED.excluded))
    np.testing.assert_array_equal(logits_of(ops, model, prompt(9)), logits_of(ops, made, prompt(9)))
    assert [layer.mlp.down.format.name for layer in model.weights.layers] == ["stored", "float32", "stored"]
    assert model.weights.lm_head.weight is model.weights.embedding


def test_a_tied_head_may_be_covered_too():
    """Then the head is made of the embedding, which stays as it is."""
    weights = load_model(saved_model("smollm"), NumpyOps(), weight_format=replace(SIGN_AND_SCALE, excluded=())).weights
    np.testing.assert_array_equal(weights.lm_head.weight.signs, np.where(weights.embedding < 0, -1, 1))
    layout = layout_of(read_model_config(saved_model("smollm")), weight_format=replace(SIGN_AND_SCALE, excluded=()))
    plain_head = layout_of(layout.config, weight_format=SIGN_AND_SCALE).weight_bytes(4)
    assert layout.weight_bytes(4) == plain_head + SIGN_AND_SCALE.matrix_bytes(*weights.lm_head.shape)


def test_what_the_file_lacks_is_named(stored):
    tensors = load_file(stored / "model.safetensors")
    del tensors["model.layers.2.mlp.up_proj.scales"]
    save_file(tensors, stored / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks tensor 'model.layers.2.mlp.up_proj.scales'"):
        load_model(stored, NumpyOps(), weight_format=STORED)
    with pytest.raises(CheckpointError, match="lacks"):
        load_model(stored, NumpyOps())


def test_shards_are_cut_in_every_tensor(stored):
    ops, config = NumpyOps(), read_model_config(stored)
    layout = layout_of(config, weight_format=STORED)
    reader, layer = WeightReader(ops, Checkpoint(stored), layout), layout.model.layers[0]
    x = np.random.default_rng(0).normal(size=(2, config.intermediate_size)).astype(np.float32)
    summed = sum(ops.linear(np.split(x, 2, axis=1)[rank], reader.linear(layer.mlp.down, rank, 2)) for rank in range(2))
    np.testing.assert_allclose(summed, ops.linear(x, reader.linear(layer.mlp.down)), rtol=1e-4, atol=1e-5)
    whole, second = reader.linear(layer.attention.qkv), reader.linear(layer.attention.qkv, 1, 2)
    heads, key_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    query, key, value = np.split(whole.weight.signs, np.cumsum([heads, key_heads]) * size)
    halves = [matrix[len(matrix) // 2 :] for matrix in (query, key, value)]
    np.testing.assert_array_equal(second.weight.signs, np.concatenate(halves))


@pytest.mark.parametrize("name", ["uint8", "int32", "float8_e4m3fn", "float8_e5m2"])
def test_codes_are_read_as_they_are_stored(name, tmp_path):
    """And never as plain weights."""
    codes = torch.arange(24, dtype=torch.uint8).view(getattr(torch, name))
    torch_file.save_file({"codes": codes, "scale": torch.ones(1, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint(tmp_path)
    found = checkpoint.array("codes")
    assert found.dtype.name == name and found.tobytes() == bytes(codes.view(torch.uint8).numpy())
    assert str(checkpoint.dtype(quantized=True)) == "bfloat16"
    with pytest.raises(CheckpointError, match="reads weights that config.json does not call quantised in F64, F32, F16, BF16:"):
        checkpoint.tensor("codes")
    with pytest.raises(CheckpointError, match="are stored as"):
        checkpoint.dtype()
