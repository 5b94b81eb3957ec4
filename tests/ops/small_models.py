"""Models small enough for the simulator: one layer, a hidden size of 16. A Llama's attention is wider, so that no two axes are alike."""

import json
import tempfile
from pathlib import Path

from minllm.models.config import ModelConfig
from minllm.models.config_reader import read_model_config
from minllm.models.model import Model, load_model
from minllm.models.random_checkpoint import RandomCheckpoint
from minllm.weights.format import WeightFormat

LLAMA_LIKE = dict(
    vocab_size=37, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
    max_position_embeddings=64, rms_norm_eps=1e-5, rope_theta=100.0, hidden_act="silu",
)  # fmt: skip
CONFIGS = {
    "llama": LLAMA_LIKE | dict(model_type="llama", architectures=["LlamaForCausalLM"], tie_word_embeddings=True),
    "qwen2": LLAMA_LIKE | dict(model_type="qwen2", architectures=["Qwen2ForCausalLM"], tie_word_embeddings=False),
    "qwen3": LLAMA_LIKE | dict(model_type="qwen3", architectures=["Qwen3ForCausalLM"], tie_word_embeddings=False),
    "qwen3_moe": LLAMA_LIKE
    | dict(
        model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], tie_word_embeddings=False, num_experts=5, num_experts_per_tok=2,
        moe_intermediate_size=24, norm_topk_prob=True,
    ),
    "qwen2_moe": LLAMA_LIKE
    | dict(
        model_type="qwen2_moe", architectures=["Qwen2MoeForCausalLM"], tie_word_embeddings=False, num_experts=5, num_experts_per_tok=2,
        moe_intermediate_size=8, shared_expert_intermediate_size=24,
    ),
    "experts of whole groups": LLAMA_LIKE  # for int4 in groups of 32, and fp8
    | dict(
        model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], tie_word_embeddings=False, num_hidden_layers=2, hidden_size=64,
        num_experts=5, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True,
    ),
    "llama, wide": LLAMA_LIKE  # matrices of whole tiles
    | dict(
        model_type="llama", architectures=["LlamaForCausalLM"], tie_word_embeddings=True, hidden_size=256, intermediate_size=128,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=64,
    ),
    "gemma3": LLAMA_LIKE
    | dict(
        model_type="gemma3_text", architectures=["Gemma3ForCausalLM"], num_hidden_layers=2, hidden_act="gelu_pytorch_tanh",
        sliding_window=2, layer_types=["sliding_attention", "full_attention"], final_logit_softcapping=3.0,
        query_pre_attn_scalar=6,
    ),
    "gemma2": LLAMA_LIKE
    | dict(
        model_type="gemma2", architectures=["Gemma2ForCausalLM"], hidden_act="gelu_pytorch_tanh", sliding_window=2, num_hidden_layers=2,
        attn_logit_softcapping=0.3,
    ),
    "gpt2": dict(
        model_type="gpt2", architectures=["GPT2LMHeadModel"], vocab_size=37, n_embd=16, n_layer=1, n_head=2, n_inner=24, n_positions=64,
        activation_function="gelu_new", layer_norm_epsilon=1e-5,
    ),
}  # fmt: skip


def small_config(family: str, directory: Path | str) -> ModelConfig:
    """The family's configuration; its config.json is written to `directory`."""
    Path(directory, "config.json").write_text(json.dumps(CONFIGS[family]))
    return read_model_config(directory)


def small_model(family: str, ops, weight_format: WeightFormat | None = None) -> Model:
    """A model of the family with random weights, in the arrays of `ops`; weight_format: of the layers' matrices."""
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = RandomCheckpoint(small_config(family, directory))
        return load_model(directory, ops, checkpoint=checkpoint, weight_format=weight_format)
