"""From the metadata to a ModelConfig: what is read, what is refused by name."""

import numpy as np
import pytest

from minllm.errors import CheckpointError, UnsupportedModelError
from minllm.models.gguf.gguf_model import GgufModel
from tests.models.gguf.small_model import HEADS, HIDDEN, TOKENS, metadata, tensors
from tests.models.gguf.writer import float32, write_gguf


def model(tmp_path, more_tensors=None, **changes):
    return GgufModel(write_gguf(tmp_path / "model.gguf", metadata(**changes), tensors() | (more_tensors or {})))


def refuse(tmp_path, match, error=CheckpointError, more_tensors=None, **changes):
    with pytest.raises(error, match=match):
        model(tmp_path, more_tensors, **changes).config()


def test_a_llama(tmp_path):
    config = model(tmp_path).config()
    assert (config.model_type, config.vocab_size, config.hidden_size, config.head_dim) == ("llama", len(TOKENS), HIDDEN, HIDDEN // HEADS)
    assert config.norm_epsilon == 1e-5 and config.rope.rope_theta == 10000.0 and config.tie_word_embeddings
    assert model(tmp_path, llama__vocab_size=None).config() == config
    assert not model(tmp_path, {"output.weight": float32(np.ones((len(TOKENS), HIDDEN)))}).config().tie_word_embeddings


def test_linear_scaling_with_and_without_its_type(tmp_path):
    for changes in (dict(llama__rope__scaling__type="linear", llama__rope__scaling__factor=4.0), dict(llama__rope__scale_linear=4.0)):
        assert (model(tmp_path, **changes).config().rope.rope_type, model(tmp_path, **changes).config().rope.factor) == ("linear", 4.0)
    assert model(tmp_path, llama__rope__scaling__type="none", llama__rope__scaling__factor=4.0).config().rope.rope_type == "default"


def test_suggestions_for_sampling(tmp_path):
    source = model(tmp_path, general__sampling__temp=0.6, general__sampling__top_k=20, general__sampling__top_p=0.95)
    suggested = source.generation_config()
    assert (suggested.temperature, suggested.top_k, suggested.top_p, suggested.min_p) == (0.6, 20, 0.95, None)
    assert suggested.not_followed == () and suggested.suggests_sampling
    others = {f"general__sampling__{name}": value for name, value in dict(mirostat=2, xtc_probability=0.0, xtc_threshold=0.1).items()}
    suggested = model(tmp_path, general__sampling__sequence="k;p", **others).generation_config()
    assert suggested.not_followed == ("general.sampling.sequence='k;p'", "general.sampling.mirostat=2")
    assert not suggested.suggests_sampling


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(general__architecture="mamba"), "general.architecture 'mamba', and minllm reads llama, qwen2, qwen3, gemma2, gemma3, gpt2"),
        (dict(general__type="adapter"), "general.type 'adapter'"),
        (dict(split__count=3), "one file of 3.*llama-gguf-split --merge"),
        (dict(llama__expert_count=8), "sets llama.expert_count = 8"),
        (dict(llama__attention__sliding_window=4096), "sets llama.attention.sliding_window = 4096"),
        (dict(llama__some_new__option=np.ones(3, np.int32)), "sets llama.some_new.option = 'an array of 3'"),
        (dict(llama__rope__scaling__type="yarn"), "llama.rope.scaling.type 'yarn', and minllm computes none and linear"),
        (dict(llama__rope__dimension_count=8), "llama.rope.dimension_count = 8"),
        (dict(llama__attention__value_length=8), "llama.attention.value_length = 8"),
    ],
)
def test_other_models_are_refused_by_name(tmp_path, changes, words):
    refuse(tmp_path, words, UnsupportedModelError, **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(general__architecture=None), "lacks 'general.architecture'"),
        (dict(general__architecture=["llama"]), "lacks a|general.architecture"),
        (dict(llama__block_count=None), "lacks 'llama.block_count', which must be a whole number"),
        (dict(llama__block_count=0), "llama.block_count = 0"),
        (dict(llama__block_count=2**31 - 1), "llama.block_count = 2147483647, and holds 11 tensors"),
        (dict(llama__feed_forward_length=np.ones(3, np.int32)), "llama.feed_forward_length = 'an array of 3'"),
        (dict(llama__attention__head_count=3), "64, which its 3 heads do not divide"),
        (dict(llama__attention__head_count_kv=3), "4 query heads and 3 key-value heads"),
        (dict(llama__attention__layer_norm_rms_epsilon=float("nan")), "layer_norm_rms_epsilon = nan"),
        (dict(llama__rope__freq_base=-1.0), "freq_base = -1.0"),
        (dict(llama__vocab_size=None, tokenizer__ggml__tokens=None), "lacks a list 'tokenizer.ggml.tokens'"),
    ],
)
def test_contradictions_are_refused(tmp_path, changes, words):
    refuse(tmp_path, words, **changes)


@pytest.mark.parametrize(("factors", "words"), [([1.0] * 3, r"shape \[3\], and heads make it \[8\]"), ([0.0] * 8, "not above zero")])
def test_rotation_factors_are_checked(tmp_path, factors, words):
    refuse(tmp_path, f"rope_freqs.weight.*{words}", more_tensors={"rope_freqs.weight": float32(factors)})


def test_keys_that_switch_a_feature_off_change_nothing(tmp_path):
    changes = dict(llama__expert_count=0, llama__attention__causal=True, llama__rope__scaling__finetuned=False, quantize__imatrix__file="x")
    assert model(tmp_path, **changes).config() == model(tmp_path).config()
