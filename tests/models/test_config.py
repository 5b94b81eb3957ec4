"""config.json of every family against transformers' reading of it, and what is refused."""

import json

import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from minllm.errors import CheckpointError, UnsupportedModelError
from minllm.models.config_reader import parse_model_config, read_model_config
from minllm.models.generation_config import GenerationConfig, read_generation_config
from minllm.models.rope import inverse_frequencies
from tests.models.random_models import FAMILIES, LLAMA3_SCALING

LLAMA = dict(
    architectures=["LlamaForCausalLM"],
    model_type="llama",
    vocab_size=1003,
    hidden_size=192,
    intermediate_size=344,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    max_position_embeddings=512,
)
EXPERTS = {**LLAMA, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "moe_intermediate_size": 40, "num_experts": 9}
GPT2 = dict(architectures=["GPT2LMHeadModel"], model_type="gpt2", vocab_size=1003, n_embd=240, n_layer=3, n_head=6, n_positions=160)


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes_equal_transformers(family, tmp_path):
    theirs = FAMILIES[family].config()
    theirs.architectures = [FAMILIES[family].model_class.__name__]
    theirs.save_pretrained(tmp_path)
    ours = read_model_config(tmp_path)
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings", "tie_word_embeddings"):
        assert getattr(ours, name) == getattr(theirs, name), name
    if family != "gpt2":
        assert ours.num_key_value_heads == theirs.num_key_value_heads
        assert ours.head_dim == (getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads)
        assert ours.norm_epsilon == theirs.rms_norm_eps


@pytest.mark.parametrize("name", ["Llama", "Mistral", "Qwen2", "Qwen3", "Qwen2Moe", "Qwen3Moe", "Gemma2"])
def test_missing_keys_take_the_familys_defaults(name):
    theirs = getattr(transformers, f"{name}Config")()
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    bare = {size: getattr(theirs, size) for size in sizes}
    ours = parse_model_config({"architectures": [f"{name}ForCausalLM"], **bare})
    assert ours.max_position_embeddings == theirs.max_position_embeddings
    assert ours.norm_epsilon == theirs.rms_norm_eps
    assert ours.rope.rope_theta == theirs.rope_parameters["rope_theta"]
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads)
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    assert ours.sliding_windows[0] == (theirs.sliding_window if name in ("Mistral", "Gemma2") else 0)


def test_missing_keys_of_gemma_take_its_defaults():
    theirs = transformers.Gemma3TextConfig()
    ours = parse_model_config({"architectures": ["Gemma3ForCausalLM"], "vocab_size": theirs.vocab_size})
    for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim", "max_position_embeddings"):
        assert getattr(ours, name) == getattr(theirs, name), name
    windows = [theirs.sliding_window if kind == "sliding_attention" else 0 for kind in theirs.layer_types]
    assert list(ours.sliding_windows) == windows and 0 in windows
    assert (ours.rope.rope_theta, ours.local_rope.rope_theta) == (1e6, 1e4)
    assert ours.attention_scales[0] == theirs.query_pre_attn_scalar**-0.5
    assert (ours.attention_soft_cap, ours.logit_soft_cap) == (0, 0)
    gemma2 = parse_model_config({"architectures": ["Gemma2ForCausalLM"], "vocab_size": 99})
    assert (gemma2.attention_soft_cap, gemma2.logit_soft_cap, gemma2.local_rope) == (50, 30, None)
    without = parse_model_config({"architectures": ["Gemma2ForCausalLM"], "vocab_size": 99, "attn_logit_softcapping": None})
    assert without.attention_soft_cap == 0


GEMMA3 = dict(architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", vocab_size=1003, num_hidden_layers=4)


def test_old_and_new_keys_of_gemmas_two_rotations_are_the_same():
    linear = {"rope_type": "linear", "factor": 8.0}
    thetas = {"rope_theta": 1e5, "rope_local_base_freq": 1e3}
    old = parse_model_config({**GEMMA3, **thetas, "rope_scaling": linear, "sliding_window_pattern": 2})
    kinds = {"full_attention": {**linear, "rope_theta": 1e5}, "sliding_attention": {"rope_type": "default", "rope_theta": 1e3}}
    new = parse_model_config({**GEMMA3, "rope_parameters": kinds, "sliding_window_pattern": 2})
    assert (old.rope, old.local_rope, old.sliding_windows) == (new.rope, new.local_rope, new.sliding_windows)
    assert (new.rope.factor, new.local_rope.factor, new.sliding_windows) == (8.0, 1.0, (4096, 0, 4096, 0))


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("head_dim", [40, 64, 128])
def test_llama3_frequencies_equal_transformers(theta, head_dim):
    scaling = {**LLAMA3_SCALING, "rope_theta": theta, "original_max_position_embeddings": 8192}
    theirs = transformers.LlamaConfig(hidden_size=6 * head_dim, num_attention_heads=6, head_dim=head_dim, rope_parameters=scaling)
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](theirs, torch.device("cpu"))
    config = parse_model_config({**LLAMA, "head_dim": head_dim, "rope_parameters": scaling})
    np.testing.assert_allclose(inverse_frequencies(config.rope, head_dim), expected.numpy(), rtol=1e-5)
    assert (expected.numpy() != theta ** -(np.arange(0, head_dim, 2) / head_dim)).any()


def test_old_and_new_keys_of_the_rotary_embedding_are_the_same():
    scaling = {k: v for k, v in LLAMA3_SCALING.items() if k != "rope_theta"}
    new = parse_model_config({**LLAMA, "rope_parameters": {**scaling, "rope_theta": 500000.0}})
    old = parse_model_config({**LLAMA, "rope_theta": 500000.0, "rope_scaling": scaling})
    oldest = parse_model_config({**LLAMA, "rope_theta": 500000.0, "rope_scaling": {**{"type": "llama3"}, **scaling}})
    assert new.rope == old.rope == oldest.rope
    linear = parse_model_config({**LLAMA, "rope_scaling": {"type": "linear", "factor": 2}}).rope
    np.testing.assert_allclose(inverse_frequencies(linear, 32), inverse_frequencies(parse_model_config(LLAMA).rope, 32) / 2)
    assert parse_model_config({**LLAMA, "rope_scaling": None}).rope.rope_theta == 10000.0


def test_sliding_windows_of_each_family():
    mistral = {**LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    assert parse_model_config({**mistral, "sliding_window": 7}).sliding_windows == (7, 7, 7)
    assert parse_model_config({**mistral, "sliding_window": None}).sliding_windows == (0, 0, 0)
    qwen = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "sliding_window": 9}
    assert parse_model_config(qwen).sliding_windows == (0, 0, 0)
    assert parse_model_config({**qwen, "use_sliding_window": True, "max_window_layers": 2}).sliding_windows == (0, 0, 9)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert parse_model_config({**qwen, "use_sliding_window": True, "layer_types": kinds}).sliding_windows == (9, 0, 9)


def test_experts_under_either_key():
    new = parse_model_config({**{key: value for key, value in EXPERTS.items() if key != "num_experts"}, "num_local_experts": 9})
    old = parse_model_config({**EXPERTS, "max_window_layers": 2, "sliding_window": 7})
    assert new == old and new.num_experts == 9 and new.intermediate_size == 40 and new.num_experts_per_tok == 8
    assert parse_model_config({**EXPERTS, "use_sliding_window": True, "sliding_window": 7}).sliding_windows == (7, 7, 7)
    assert parse_model_config({**EXPERTS, "norm_topk_prob": True}).norm_topk_prob and not new.norm_topk_prob


def test_gpt2_options():
    assert parse_model_config(GPT2).attention_scales == (40**-0.5,) * 3
    by_layer = parse_model_config({**GPT2, "scale_attn_by_inverse_layer_idx": True})
    np.testing.assert_allclose(by_layer.attention_scales, [40**-0.5, 40**-0.5 / 2, 40**-0.5 / 3])
    assert parse_model_config({**GPT2, "scale_attn_weights": False}).attention_scales == (1.0,) * 3
    assert parse_model_config({**GPT2, "n_inner": None}).intermediate_size == 960
    assert parse_model_config({**GPT2, "activation_function": "gelu"}).activation == "gelu"


REFUSED = {
    "dynamic rope": {**LLAMA, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "yarn": {**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
    "longrope": {**LLAMA, "rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}},
    "rope by layer": {**LLAMA, "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "partial rotary": {**LLAMA, "partial_rotary_factor": 0.5},
    "partial rotary inside": {**LLAMA, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    "llama3 bounds": {**LLAMA, "rope_scaling": {**LLAMA3_SCALING, "high_freq_factor": 1.0}},
    "quantised": {**LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 4}},
    "mlp_bias": {**LLAMA, "mlp_bias": True},
    "hidden_act": {**LLAMA, "hidden_act": "gelu"},
    "softcapping": {**LLAMA, "final_logit_softcapping": 30.0},
    "mixed layers": {**LLAMA, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
    "unknown layer type": {
        **LLAMA, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "layer_types": ["linear_attention"] * 3,
    },
    "unknown layer type beside experts": {**EXPERTS, "layer_types": ["full_attention", "linear_attention", "full_attention"]},
    "unknown layer type beside a shared expert": {
        **EXPERTS, "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "layer_types": ["linear_attention"] * 3,
    },
    "another architecture": {**LLAMA, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral"},
    "another task": {**LLAMA, "architectures": ["LlamaForSequenceClassification"]},
    "architecture against type": {**LLAMA, "model_type": "llama4"},
    "no architecture": {"vocab_size": 10},
    "gemma activation": {**GEMMA3, "hidden_activation": "relu"},
    "gemma in both directions": {**GEMMA3, "use_bidirectional_attention": True},
    "gemma with images": {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"},
    "sparse steps": {**EXPERTS, "decoder_sparse_step": 2},
    "dense layers": {**EXPERTS, "mlp_only_layers": [0]},
    "shared expert": {**EXPERTS, "shared_expert_intermediate_size": 40},
    "experts of another family": {**LLAMA, "num_experts": 9},
    "gpt2 activation": {**GPT2, "activation_function": "relu"},
    "gpt2 cross attention": {**GPT2, "add_cross_attention": True},
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_the_result_is_refused(name):
    with pytest.raises(UnsupportedModelError, match="minllm|high_freq_factor"):
        parse_model_config(REFUSED[name])


def test_gemma_4_is_refused_with_the_reason():
    text = {**GEMMA3, "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text"}
    for values in (text, {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "text_config": text}):
        with pytest.raises(UnsupportedModelError, match="Gemma4For.*It lacks keys and values of two head_dims"):
            parse_model_config(values)


WRONG = {
    "missing size": {k: v for k, v in LLAMA.items() if k != "hidden_size"},
    "text size": {**LLAMA, "hidden_size": "192"},
    "true size": {**LLAMA, "num_hidden_layers": True},
    "zero layers": {**LLAMA, "num_hidden_layers": 0},
    "negative vocabulary": {**LLAMA, "vocab_size": -1},
    "huge vocabulary": {**LLAMA, "vocab_size": 2**40},
    "heads": {**LLAMA, "num_key_value_heads": 4},
    "more chosen than experts": {**EXPERTS, "num_experts_per_tok": 10},
    "two numbers of experts": {**EXPERTS, "num_local_experts": 10},
    "no expert": {**EXPERTS, "num_experts": 0},
    "too many experts": {**EXPERTS, "num_experts": 1025},
    "too many experts in all layers": {**EXPERTS, "num_experts": 1024, "num_hidden_layers": 1000},
    "no head_dim": {**LLAMA, "hidden_size": 191},
    "odd head_dim": {**LLAMA, "head_dim": 33},
    "nan epsilon": {**LLAMA, "rms_norm_eps": float("nan")},
    "zero theta": {**LLAMA, "rope_theta": 0},
    "linear without factor": {**LLAMA, "rope_scaling": {"type": "linear"}},
    "scaling is a list": {**LLAMA, "rope_scaling": [1]},
    "architectures": {**LLAMA, "architectures": "LlamaForCausalLM"},
    "tie": {**LLAMA, "tie_word_embeddings": "yes"},
    "eos": {**LLAMA, "eos_token_id": [2, -1]},
    "layer_types that are no list": {**LLAMA, "layer_types": 5},
    "layer_types": {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "layer_types": ["full_attention"]},
    "gpt2 heads": {**GPT2, "n_head": 7},
}


@pytest.mark.parametrize("name", WRONG)
def test_contradictions_are_errors_that_name_the_file(name):
    with pytest.raises(CheckpointError, match="config.json"):
        parse_model_config(WRONG[name])


def test_files_that_are_missing_or_no_json(tmp_path):
    with pytest.raises(CheckpointError, match="config.json is missing"):
        read_model_config(tmp_path)
    for content in ("", "{", "[]", '{"a": NaN', "[" * 100_000):
        (tmp_path / "config.json").write_text(content, encoding="utf-8")
        with pytest.raises(CheckpointError, match="config.json"):
            read_model_config(tmp_path)


def test_generation_config(tmp_path):
    assert read_generation_config(tmp_path) == GenerationConfig()
    content = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "do_sample": True, "repetition_penalty": 1.05, "eos_token_id": [5, 7], "x": 1}
    (tmp_path / "generation_config.json").write_text(json.dumps(content), encoding="utf-8")
    assert read_generation_config(tmp_path) == GenerationConfig(
        True, 0.6, 0.9, 20, repetition_penalty=1.05, eos_token_ids=(5, 7), not_followed=("x=1",)
    )  # fmt: skip
    (tmp_path / "generation_config.json").write_text('{"temperature": "hot"}', encoding="utf-8")
    with pytest.raises(CheckpointError, match="temperature"):
        read_generation_config(tmp_path)
