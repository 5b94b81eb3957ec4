"""Every key that a well-known model's config.json has is accepted; what nobody has heard of is not."""

import pytest
import transformers

from minllm.errors import UnsupportedModelError
from minllm.models.config_reader import parse_model_config

WRITTEN = dict(
    torch_dtype="bfloat16", transformers_version="4.40.0", use_cache=True, initializer_range=0.02, bos_token_id=1, eos_token_id=2
)
LLAMA = WRITTEN | dict(
    architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu", hidden_size=4096, intermediate_size=11008,
    max_position_embeddings=4096, num_attention_heads=32, num_hidden_layers=32, num_key_value_heads=32, pretraining_tp=1,
    rms_norm_eps=1e-05, rope_scaling=None, tie_word_embeddings=False, vocab_size=32000,
)  # fmt: skip
LLAMA3 = LLAMA | dict(
    attention_bias=False, attention_dropout=0.0, rope_theta=500000.0, vocab_size=128256, num_key_value_heads=8, intermediate_size=14336,
    eos_token_id=[128001, 128008, 128009],
)  # fmt: skip
LLAMA31_ROPE = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192, rope_type="llama3")
MISTRAL = WRITTEN | dict(
    architectures=["MistralForCausalLM"], model_type="mistral", hidden_act="silu", hidden_size=4096, intermediate_size=14336,
    max_position_embeddings=32768, num_attention_heads=32, num_hidden_layers=32, num_key_value_heads=8, rms_norm_eps=1e-05,
    rope_theta=10000.0, sliding_window=4096, tie_word_embeddings=False, vocab_size=32000,
)  # fmt: skip
QWEN2 = WRITTEN | dict(
    architectures=["Qwen2ForCausalLM"], model_type="qwen2", attention_dropout=0.0, hidden_act="silu", hidden_size=896,
    intermediate_size=4864, max_position_embeddings=131072, max_window_layers=24, num_attention_heads=14, num_hidden_layers=24,
    num_key_value_heads=2, rms_norm_eps=1e-06, rope_theta=1000000.0, sliding_window=131072, tie_word_embeddings=True,
    use_sliding_window=False, vocab_size=151936,
)  # fmt: skip
GEMMA = WRITTEN | dict(
    attention_bias=False, attention_dropout=0.0, bos_token_id=2, eos_token_id=1, head_dim=256, hidden_activation="gelu_pytorch_tanh",
    num_key_value_heads=1, pad_token_id=0, query_pre_attn_scalar=256, rms_norm_eps=1e-06,
)  # fmt: skip
GEMMA2 = GEMMA | dict(
    architectures=["Gemma2ForCausalLM"], model_type="gemma2", attn_logit_softcapping=50.0, cache_implementation="hybrid",
    final_logit_softcapping=30.0, hidden_act="gelu_pytorch_tanh", hidden_size=2304, intermediate_size=9216, max_position_embeddings=8192,
    num_attention_heads=8, num_hidden_layers=26, num_key_value_heads=4, rope_theta=10000.0, sliding_window=4096, vocab_size=256000,
)  # fmt: skip
GEMMA3 = GEMMA | dict(
    architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", _sliding_window_pattern=6, attn_logit_softcapping=None,
    final_logit_softcapping=None, hidden_size=640, intermediate_size=2048, layer_types=["sliding_attention"] * 18,
    max_position_embeddings=32768, num_attention_heads=4, num_hidden_layers=18, rope_local_base_freq=10000.0, rope_scaling=None,
    rope_theta=1000000.0, sliding_window=512, use_bidirectional_attention=False, vocab_size=262144,
)  # fmt: skip
GPT2 = dict(
    activation_function="gelu_new", architectures=["GPT2LMHeadModel"], attn_pdrop=0.1, bos_token_id=50256, embd_pdrop=0.1,
    eos_token_id=50256, initializer_range=0.02, layer_norm_epsilon=1e-05, model_type="gpt2", n_ctx=1024, n_embd=768, n_head=12, n_layer=12,
    n_positions=1024, resid_pdrop=0.1, summary_activation=None, summary_first_dropout=0.1, summary_proj_to_labels=True,
    summary_type="cls_index", summary_use_proj=True, vocab_size=50257,
    task_specific_params={"text-generation": {"do_sample": True, "max_length": 50}},
)  # fmt: skip
WELL_KNOWN = {
    "Llama-2-7b": LLAMA | dict(_name_or_path="meta-llama/Llama-2-7b-hf", pad_token_id=0, max_length=4096),
    "Llama-2-13b by an older writer": LLAMA | dict(max_sequence_length=4096, transformers_version="4.31.0"),
    "Meta-Llama-3-8B": LLAMA3 | dict(max_position_embeddings=8192),
    "Llama-3.1-8B": LLAMA3 | dict(max_position_embeddings=131072, mlp_bias=False, rope_scaling=LLAMA31_ROPE),
    "Llama-3.2-1B": LLAMA3
    | dict(hidden_size=2048, head_dim=64, mlp_bias=False, rope_scaling=LLAMA31_ROPE | dict(factor=32.0), tie_word_embeddings=True),
    "Llama-3.2-1B of a fine-tuner": LLAMA3 | dict(unsloth_version="2024.9", unsloth_fixed=True, pad_token_id=128004, head_dim=128),
    "SmolLM-135M": LLAMA | dict(hidden_size=576, num_attention_heads=9, num_key_value_heads=3, attention_bias=False, rope_theta=10000.0),
    "SmolLM2-360M-Instruct": LLAMA
    | {
        "is_llama_config": True, "rope_interleaved": False, "mlp_bias": False, "head_dim": 64, "pad_token_id": 2, "rope_theta": 100000,
        "transformers.js_config": {"dtype": "q4", "kv_cache_dtype": {"q4f16": "float16"}},
    },
    "TinyLlama": LLAMA | dict(attention_bias=False, attention_dropout=0.0, rope_theta=10000.0),
    "Falcon3-7B": LLAMA | dict(activation="swiglu", head_dim=256, mlp_bias=False, attention_bias=False),
    "Mistral-7B-v0.1": MISTRAL,
    "Mistral-7B-v0.2": MISTRAL | dict(sliding_window=None, rope_theta=1e6, attention_dropout=0.0),
    "Mistral-7B-v0.3": MISTRAL | dict(sliding_window=None, rope_theta=1e6, attention_dropout=0.0, vocab_size=32768),
    "Mistral-Nemo": MISTRAL | dict(sliding_window=None, head_dim=128, max_position_embeddings=1024000),
    "Qwen2-0.5B": QWEN2,
    "Qwen2.5-7B": QWEN2 | dict(use_mrope=False, tie_word_embeddings=False),
    "Qwen3-0.6B": QWEN2
    | dict(
        architectures=["Qwen3ForCausalLM"], model_type="qwen3", attention_bias=False, head_dim=128, rope_scaling=None, sliding_window=None,
    ),
    "Gemma-2-2B": GEMMA2,
    "Gemma-3-270M": GEMMA3,
    "Gemma-3-1B by an older writer": GEMMA3 | dict(sliding_window_pattern=6, cache_implementation="hybrid"),
    "GPT-2": GPT2,
    "DialoGPT": GPT2 | dict(task_specific_params={"conversational": {"max_length": 1000}}, gradient_checkpointing=False),
}  # fmt: skip


@pytest.mark.parametrize("name", WELL_KNOWN)
def test_well_known_models_are_accepted(name):
    parse_model_config(WELL_KNOWN[name])


@pytest.mark.parametrize(
    ("family", "model"),
    [(f, f"{f}ForCausalLM") for f in ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma2")]
    + [("Gemma3Text", "Gemma3ForCausalLM"), ("GPT2", "GPT2LMHeadModel")],
)
def test_every_key_that_transformers_writes_is_accepted(family, model):
    config = getattr(transformers, f"{family}Config")(architectures=[model])
    suggestions = transformers.GenerationConfig._get_default_generation_params()
    parse_model_config({**config.to_dict(), **suggestions})


@pytest.mark.parametrize("value", [True, 1, 0.5, "on", [1], {"a": 1}])
def test_an_unknown_key_is_refused_with_advice(value):
    with pytest.raises(UnsupportedModelError, match="sets new_kind_of_layer = .*remove the key from config.json or set it to null"):
        parse_model_config(LLAMA | dict(new_kind_of_layer=value))


@pytest.mark.parametrize("value", [None, False, 0, 0.0, "", [], {}])
def test_an_unknown_key_that_is_switched_off_is_accepted(value):
    parse_model_config(LLAMA | dict(new_kind_of_layer=value))
