"""Small models of every family with random weights, written to disk as transformers writes them.

Sizes are awkward on purpose. Every parameter is random, norms and biases too, and the matrices are large enough that the logits spread
over units and depend on each of them: a model whose biases are zero would not notice that they were dropped.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

torch.set_num_threads(1)  # on matrices this small, threads that wait for one another cost more than they compute

VOCAB_SIZE = 1003
LLAMA3_SCALING = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
COMMON = dict(vocab_size=VOCAB_SIZE, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, intermediate_size=344)

GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
GEMMA = COMMON | dict(
    hidden_size=240, head_dim=40, num_hidden_layers=4, max_position_embeddings=256, query_pre_attn_scalar=50, sliding_window=13,
    layer_types=["sliding_attention", "full_attention"] * 2,
    attn_implementation="eager",  # the others have no soft caps
)  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A family as the tests know it: what makes its configuration, and with which sizes.

    The classes are named, because transformers imports a model's module, which takes seconds, on first use.
    """

    config_name: str
    model_name: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def config_class(self) -> Callable[..., Any]:
        """The class of transformers' configuration."""
        return getattr(transformers, self.config_name)

    @property
    def model_class(self) -> Callable[..., Any]:
        """The class of transformers' model."""
        return getattr(transformers, self.model_name)

    def config(self) -> Any:
        """The transformers configuration."""
        return self.config_class(**self.options)


def _llama_like(name: str, **options: Any) -> Family:
    return Family(f"{name}Config", f"{name}ForCausalLM", {**COMMON, **options})


FAMILIES: dict[str, Family] = {
    "llama2": _llama_like("Llama", hidden_size=240, head_dim=40, rms_norm_eps=1e-5, max_position_embeddings=256),
    "llama3": _llama_like("Llama", hidden_size=192, head_dim=128, rope_parameters=LLAMA3_SCALING, max_position_embeddings=512),
    "llama_linear": _llama_like(
        "Llama",
        hidden_size=192,
        head_dim=64,
        rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
        attention_bias=True,
    ),
    "smollm": _llama_like("Llama", hidden_size=384, head_dim=64, tie_word_embeddings=True),
    "mistral": _llama_like("Mistral", hidden_size=200, head_dim=80, sliding_window=24),
    "qwen2": _llama_like("Qwen2", hidden_size=384, tie_word_embeddings=True),
    "qwen2_window": _llama_like("Qwen2", hidden_size=240, use_sliding_window=True, sliding_window=13, max_window_layers=1),
    "qwen3": _llama_like("Qwen3", hidden_size=256, head_dim=128, tie_word_embeddings=False),
    "qwen2_moe": _llama_like(
        "Qwen2Moe", hidden_size=240, moe_intermediate_size=24, shared_expert_intermediate_size=56, num_experts=7, num_experts_per_tok=2
    ),
    "qwen3_moe": _llama_like(
        "Qwen3Moe", hidden_size=176, head_dim=32, moe_intermediate_size=40, num_experts=9, num_experts_per_tok=3, norm_topk_prob=True
    ),
    "gemma2": Family("Gemma2Config", "Gemma2ForCausalLM", GEMMA),
    "gemma3": Family("Gemma3TextConfig", "Gemma3ForCausalLM", GEMMA | dict(rope_parameters=GEMMA3_ROPE)),
    "gpt2": Family(
        "GPT2Config",
        "GPT2LMHeadModel",
        dict(vocab_size=VOCAB_SIZE, n_layer=3, n_head=6, n_embd=240, n_inner=344, n_positions=160, bos_token_id=0, eos_token_id=0),
    ),
}

# What an engine does with requests depends on no family and no size: its tests take the small model, of 171,000 weights.
SMALL = dict(hidden_size=48, head_dim=32, intermediate_size=88, num_hidden_layers=2)
MODELS = FAMILIES | {
    "small": _llama_like("Llama", **SMALL, rope_parameters=LLAMA3_SCALING, max_position_embeddings=512),
    "small qwen2": _llama_like("Qwen2", **SMALL | dict(hidden_size=192), tie_word_embeddings=True),
    "small qwen3": _llama_like("Qwen3", **SMALL | dict(hidden_size=96, head_dim=64), tie_word_embeddings=False),
}


def random_model(family: str, seed: int = 0) -> Any:
    """A float32 transformers model of one of MODELS, every parameter random, in evaluation mode."""
    torch.manual_seed(seed)
    model = MODELS[family].model_class(MODELS[family].config()).eval()
    for name, parameter in model.named_parameters():
        _randomise(name, parameter.data)
    return model


def _randomise(name: str, values: torch.Tensor) -> None:
    if values.ndim == 1 and name.endswith("weight"):  # a norm
        values.uniform_(0.5, 1.5)
    elif values.ndim == 1:
        values.normal_(0.0, 0.3)
    elif any(part in name for part in ("embed_tokens", "wte", "wpe")):
        values.normal_(0.0, 0.3)
    else:  # a matrix: keeps the scale of what it is given, and a bit more, so that attention is not uniform
        inputs = values.shape[0] if "c_" in name else values.shape[-1]
        values.normal_(0.0, 1.3 * inputs**-0.5)


def save_random_model(family: str, directory: Path, dtype: str = "float32", max_shard_size: str = "5GB", seed: int = 0) -> Any:
    """Writes a random model to `directory` in a storage dtype, and returns it (in that dtype)."""
    model = random_model(family, seed).to(getattr(torch, dtype))
    model.save_pretrained(directory, max_shard_size=max_shard_size)
    return model


def reference_logits(model: Any, token_ids: list[int]) -> Any:
    """transformers' logits of one prompt, float32 NumPy [tokens, vocab]."""
    with torch.no_grad():
        return model(torch.tensor([token_ids])).logits[0].float().numpy()


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(0, VOCAB_SIZE, (length,), generator=generator).tolist()
