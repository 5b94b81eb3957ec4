"""Random models of every family that GGUF files hold, converted as llama.cpp does, give the logits of their Hugging Face directory."""

from dataclasses import replace

import numpy as np
import pytest

from minllm.errors import CheckpointError, UnsupportedModelError
from minllm.models.config_reader import read_model_config
from minllm.models.gguf.gguf_model import GgufModel
from minllm.models.model import load_model
from minllm.models.rope import inverse_frequencies
from minllm.ops.numpy_ops import NumpyOps
from tests.models.batches import logits_of
from tests.models.gguf.converter import converted
from tests.models.parity import saved_model
from tests.models.random_models import prompt

FAMILIES = ("llama2", "llama3", "llama_linear", "smollm", "qwen2", "qwen3", "gemma2", "gemma3", "gpt2")


def load(path):
    source = GgufModel(path)
    config = source.config()
    return load_model(path, NumpyOps("float32"), checkpoint=source.checkpoint(config), config=config)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_hugging_face_directory(family, tmp_path):
    ops, tokens = NumpyOps("float32"), prompt(130)
    config = read_model_config(saved_model(family))
    if family.startswith("gemma"):  # the files do not say what scores are divided by
        config = replace(config, attention_scales=(config.head_dim**-0.5,) * config.num_hidden_layers)
    expected = load_model(saved_model(family), ops, config=config)
    model = load(converted(saved_model(family), tmp_path / "model.gguf"))
    wanted = logits_of(ops, expected, tokens)
    # Rotation factors and Gemma's norms are rounded to float32 in the file; all else is stored exactly.
    rounded = family in ("llama3", "gemma2", "gemma3")
    assert np.abs(logits_of(ops, model, tokens) - wanted).max() <= (1e-5 if rounded else 0) * np.abs(wanted).max()
    stored = replace(model.config, rope=None, dtype=expected.config.dtype)
    same = dict(bos_token_ids=expected.config.bos_token_ids, eos_token_ids=expected.config.eos_token_ids)  # the files have no tokenizer
    assert replace(stored, **same) == replace(expected.config, rope=None)


def test_rotation_factors_and_linear_scaling_multiply(tmp_path):
    path = converted(saved_model("llama3"), tmp_path / "model.gguf", **{"llama.rope.scaling.factor": 2.0})
    rope = GgufModel(path).config().rope
    alone = replace(rope, rope_type="default", factor=1.0)
    np.testing.assert_array_equal(inverse_frequencies(rope, 128), inverse_frequencies(alone, 128) / 2)


def test_the_largest_gemma_divides_scores_by_another_width(tmp_path):
    path = converted(saved_model("gemma2"), tmp_path / "model.gguf")
    assert set(GgufModel(path).config().attention_scales) == {40**-0.5}
    largest = converted(saved_model("gemma2"), tmp_path / "largest.gguf", **{"gemma2.block_count": 46})
    assert set(GgufModel(largest).config().attention_scales) == {(240 / 6) ** -0.5}


def test_a_key_that_gpt2_does_not_have_is_refused(tmp_path):
    path = converted(saved_model("gpt2"), tmp_path / "model.gguf", **{"gpt2.rope.freq_base": 10000.0})
    with pytest.raises(UnsupportedModelError, match="sets gpt2.rope.freq_base = 10000.0"):
        GgufModel(path).config()


def test_a_missing_and_a_surplus_tensor_are_named_as_in_the_file(tmp_path):
    path = converted(saved_model("smollm"), tmp_path / "model.gguf")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"blk.1.ffn_up.weight", b"blk.7.ffn_up.weight"))
    with pytest.raises(CheckpointError, match=r"lacks tensor 'blk\.1\.ffn_up\.weight'.*its metadata and the weights"):
        load(path)
    path.write_bytes(whole.replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_xy.weight"))
    with pytest.raises(UnsupportedModelError, match=r"holds tensor 'blk\.1\.ffn_xy\.weight'"):
        load(path)
