"""Which tensors a model is stored in, and how they become the matrices that the forward pass multiplies by.

A `Parameter` is one array of the forward, made of one or several tensors of the checkpoint: query, key and value projections are stacked
into one matrix, gate and up into another, so that each layer reads its input once. GPT-2 stores its matrices [in_features, out_features]
(its Conv1D), which are transposed to everyone else's [out_features, in_features].
"""

from dataclasses import dataclass

from minllm.models.config import ModelConfig


@dataclass(frozen=True)
class Parameter:
    """Tensors to be stacked along their first axis, with the shape that each must have in the file."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...]  # (name, shape)
    transposed: bool = False  # stored [in, out]


@dataclass(frozen=True)
class Layout:
    """All parameters of a model; the keys are the fields of ModelWeights and LayerWeights that they fill."""

    outside: dict[str, Parameter]
    layers: tuple[dict[str, Parameter], ...]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The name and shape of every tensor that the checkpoint must hold."""
        groups = (self.outside, *self.layers)
        return {name: shape for group in groups for parameter in group.values() for name, shape in parameter.tensors}


def layout_of(config: ModelConfig, prefixed: bool = True) -> Layout:
    """The layout of a model; `prefixed` is False for checkpoints of the bare decoder ("layers.0..." and not "model.layers.0...")."""
    if config.model_type == "gpt2":
        return _gpt2_layout(config, "transformer." if prefixed else "")
    return _llama_layout(config, "model." if prefixed else "")


def _one(name: str, *shape: int) -> Parameter:
    return Parameter(((name, shape),))


def _stacked(prefix: str, names: tuple[str, ...], suffix: str, rows: tuple[int, ...], *columns: int) -> Parameter:
    """Matrices (or biases, without columns) of several projections, one under the other."""
    return Parameter(tuple((f"{prefix}{name}.{suffix}", (row, *columns)) for name, row in zip(names, rows, strict=True)))


def _llama_layout(config: ModelConfig, prefix: str) -> Layout:
    outside = {
        "embedding": _one(f"{prefix}embed_tokens.weight", config.vocab_size, config.hidden_size),
        "final_norm": _one(f"{prefix}norm.weight", config.hidden_size),
    }
    if not config.tie_word_embeddings:
        outside["lm_head"] = _one("lm_head.weight", config.vocab_size, config.hidden_size)
    return Layout(outside, tuple(_llama_layer(config, f"{prefix}layers.{layer}.") for layer in range(config.num_hidden_layers)))


def _llama_layer(config: ModelConfig, prefix: str) -> dict[str, Parameter]:
    hidden, intermediate, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    query_rows, key_rows = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
    projections, rows = ("q_proj", "k_proj", "v_proj"), (query_rows, key_rows, key_rows)
    layer = {
        "attention_norm": _one(f"{prefix}input_layernorm.weight", hidden),
        "qkv": _stacked(attention, projections, "weight", rows, hidden),
        "attention_output": _one(f"{attention}o_proj.weight", hidden, query_rows),
        "mlp_norm": _one(f"{prefix}post_attention_layernorm.weight", hidden),
        "gate_up": _stacked(mlp, ("gate_proj", "up_proj"), "weight", (intermediate, intermediate), hidden),
        "down": _one(f"{mlp}down_proj.weight", hidden, intermediate),
    }
    if config.qkv_bias:
        layer["qkv_bias"] = _stacked(attention, projections, "bias", rows)
    if config.attention_output_bias:
        layer["attention_output_bias"] = _one(f"{attention}o_proj.bias", hidden)
    if config.qk_norm:
        layer["q_norm"] = _one(f"{attention}q_norm.weight", head_dim)
        layer["k_norm"] = _one(f"{attention}k_norm.weight", head_dim)
    return layer


def _gpt2_layout(config: ModelConfig, prefix: str) -> Layout:
    hidden = config.hidden_size
    outside = {
        "embedding": _one(f"{prefix}wte.weight", config.vocab_size, hidden),
        "position_embedding": _one(f"{prefix}wpe.weight", config.max_position_embeddings, hidden),
        "final_norm": _one(f"{prefix}ln_f.weight", hidden),
        "final_norm_bias": _one(f"{prefix}ln_f.bias", hidden),
    }
    if not config.tie_word_embeddings:
        outside["lm_head"] = _one("lm_head.weight", config.vocab_size, hidden)
    return Layout(outside, tuple(_gpt2_layer(config, f"{prefix}h.{layer}.") for layer in range(config.num_hidden_layers)))


def _gpt2_layer(config: ModelConfig, prefix: str) -> dict[str, Parameter]:
    hidden, intermediate = config.hidden_size, config.intermediate_size
    layer = {}
    for field, name in (("attention_norm", "ln_1"), ("mlp_norm", "ln_2")):
        layer[field] = _one(f"{prefix}{name}.weight", hidden)
        layer[f"{field}_bias"] = _one(f"{prefix}{name}.bias", hidden)
    matrices = (
        ("qkv", "attn.c_attn", hidden, 3 * hidden),
        ("attention_output", "attn.c_proj", hidden, hidden),
        ("up", "mlp.c_fc", hidden, intermediate),
        ("down", "mlp.c_proj", intermediate, hidden),
    )
    for field, name, inputs, outputs in matrices:
        layer[field] = Parameter(((f"{prefix}{name}.weight", (inputs, outputs)),), transposed=True)
        layer[f"{field}_bias"] = _one(f"{prefix}{name}.bias", outputs)
    return layer
