"""NaN and infinity among the weights are found in every dtype, wherever they are, and refused by the tensor's name."""

import shutil

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from minllm.errors import CheckpointError
from minllm.models import finite
from minllm.models.checkpoint import Checkpoint
from minllm.models.finite import all_finite
from minllm.models.model import load_model
from minllm.ops.numpy_ops import NumpyOps
from tests.models.parity import saved_model

DTYPES = [ml_dtypes.bfloat16, np.float16, np.float32, np.float64]
NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize("threaded_bytes", [0, finite.THREADED_BYTES])
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_value_is_found_wherever_it_is(dtype, threaded_bytes, monkeypatch):
    monkeypatch.setattr(finite, "PIECE_BYTES", 64)
    monkeypatch.setattr(finite, "THREADED_BYTES", threaded_bytes)
    info = ml_dtypes.finfo(dtype)
    values = np.resize(np.array([0, -0.0, 1, -2.5, info.max, info.min, info.smallest_subnormal], dtype), (7, 15))
    assert all_finite(values)
    for bad in (np.nan, -np.nan, np.inf, -np.inf):
        for place in (0, 31, 32, 50, 104):
            damaged = values.copy()
            damaged.reshape(-1)[place] = bad
            assert not all_finite(damaged)


def test_empty_and_scalar_and_unaligned_tensors():
    assert all_finite(np.zeros((0, 4), np.float32)) and all_finite(np.array(3.5))
    assert not all_finite(np.array(np.inf, np.float16))
    raw = np.zeros(41, np.uint8)[1:]
    assert all_finite(raw.view(np.float32))
    raw[-4:] = 255
    assert not all_finite(raw.view(np.float32))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_checkpoint_is_refused_by_the_tensors_name_unless_allowed(dtype, bad, tmp_path):
    directory = shutil.copytree(saved_model("llama2", dtype), tmp_path / "model")
    tensors = load_file(directory / "model.safetensors")
    tensors[NAME][5, 7] = bad
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"{NAME!r} holds NaN or infinity.*allow_nonfinite_weights=True"):
        load_model(directory, NumpyOps(dtype))
    allowed = Checkpoint(directory, allow_nonfinite_weights=True)
    for computed in ("float16", dtype):
        gate_up = load_model(directory, NumpyOps(computed), checkpoint=allowed).weights.layers[1].mlp.gate_up
        np.testing.assert_array_equal(np.argwhere(~np.isfinite(np.asarray(gate_up.weight, np.float32))), [[344 + 5, 7]])


def test_a_bias_or_a_norm_counts_too(tmp_path):
    directory = shutil.copytree(saved_model("qwen2"), tmp_path / "model")
    whole = load_file(directory / "model.safetensors")
    for name in ("model.layers.2.self_attn.k_proj.bias", "model.norm.weight", "model.embed_tokens.weight"):
        tensors = {key: values.clone() for key, values in whole.items()}
        tensors[name].view(-1)[0] = torch.nan
        save_file(tensors, directory / "model.safetensors")
        with pytest.raises(CheckpointError, match=name):
            load_model(directory, NumpyOps("float32"))
