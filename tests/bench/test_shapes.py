"""Named shapes are what their models' config.json says."""

import pytest

from minllm.models.shapes import named_config


@pytest.mark.parametrize("name", ("llama-3.2-1b", "llama-3.1-8b"))
def test_named_shapes_are_read_as_checkpoints_are(name):
    config = named_config(name)
    assert config.model_type == "llama" and config.rope.rope_type == "llama3" and config.rope.factor == 8
    assert config.head_dim == {"llama-3.2-1b": 64, "llama-3.1-8b": 128}[name]
    assert config.vocab_size == 128256
