"""Random checkpoints: the right shapes, real noise, and the same numbers every time."""

import ml_dtypes
import numpy as np
import pytest

from minllm.models.config_reader import parse_model_config
from minllm.models.layout import layout_of
from minllm.models.random_checkpoint import STANDARD_DEVIATION, RandomCheckpoint

CONFIG = parse_model_config(
    dict(
        model_type="qwen2",
        vocab_size=1003,
        hidden_size=240,
        intermediate_size=344,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
    )
)


def test_every_tensor_of_the_layout_is_there_in_its_shape():
    checkpoint = RandomCheckpoint(CONFIG)
    shapes = layout_of(CONFIG).shapes()
    assert set(checkpoint.names()) == set(shapes)
    for name, shape in shapes.items():
        tensor = checkpoint.tensor(name)
        assert tensor.shape == shape and tensor.dtype == ml_dtypes.bfloat16 and tensor.flags.c_contiguous
        assert checkpoint.entry(name).end - checkpoint.entry(name).begin == tensor.nbytes


def test_matrices_are_noise_and_norms_are_near_one():
    checkpoint = RandomCheckpoint(CONFIG)
    matrix = checkpoint.tensor("model.layers.1.mlp.down_proj.weight").astype(np.float32)
    assert matrix.std() == pytest.approx(STANDARD_DEVIATION, rel=0.05) and abs(matrix.mean()) < 1e-3
    norm = checkpoint.tensor("model.norm.weight").astype(np.float32)
    assert norm.mean() == pytest.approx(1, abs=0.01) and norm.std() > 0


def test_tensors_differ_from_one_another_and_not_from_run_to_run():
    first, again, other = RandomCheckpoint(CONFIG), RandomCheckpoint(CONFIG), RandomCheckpoint(CONFIG, seed=1)
    names = [f"model.layers.{layer}.mlp.down_proj.weight" for layer in (0, 1)]
    assert not np.array_equal(first.tensor(names[0]), first.tensor(names[1]))
    assert np.array_equal(first.tensor(names[0]), again.tensor(names[0]))
    assert not np.array_equal(first.tensor(names[0]), other.tensor(names[0]))
