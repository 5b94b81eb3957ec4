"""Every stage of a forward by itself: what it reads and writes, what it computes, and so what bounds it.

The stages are the engine's own steps (models/decoder.py), and the bytes are those of each kernel's docstring: weights and cache once,
activations written by one stage and read by the next. With T tokens, R rows that get logits, hidden size H, b bytes a number:

    embedding           T rows of the table (and T learned positions) read, T H b written
    norm                x, residual and weight read, residual and result written: (4 T H + H) b; the first norm has no residual yet
    projection          weight once, T rows in and out; 2 T in out operations
    rope and append     q, k, v read, q written, k and v written to the cache; 4-byte cosines and sines, T head_dim of them
    attention           the visible keys and values read; 2 operations an element in q . k and 2 in p . v, some 5 a score in the softmax
    activation          gate and up read, their product written: 3 T I b
    lm_head             weight once, R rows in, R vocab logits in float32 out
    sampling            greedy: the logits read once

Operations of matrix products, which tensor cores do, are counted apart from all others. In a prefill query i sees i keys, whose keys and
values are read once, the floor: a kernel that tiles queries reads them once a tile. A sliding window hides the oldest keys. With a residual
window the newest keys are read, and all are written, in full precision too.

Sources: Vaswani et al. 2017, "Attention is all you need", section 3; Kaplan et al. 2020, "Scaling laws for neural language models",
table 1; the docstrings of minllm/kernels.
"""

from dataclasses import dataclass

from minllm.costs.parameters import head_parameters, key_value_width, norm_parameters, query_width, up_width
from minllm.costs.residual_window import coded_tokens
from minllm.models.config import ModelConfig

LOGIT_BYTES = 4  # logits are float32
ANGLE_BYTES = 4  # cosines and sines too


@dataclass(frozen=True)
class Stage:
    """One stage, over all layers. flops: of matrix products. other_flops: of everything else, roughly."""

    name: str
    weight_bytes: int = 0
    kv_bytes: int = 0
    activation_bytes: int = 0
    flops: int = 0
    other_flops: int = 0

    @property
    def bytes(self) -> int:
        """All memory traffic."""
        return self.weight_bytes + self.kv_bytes + self.activation_bytes

    @property
    def arithmetic_intensity(self) -> float:
        """Operations for each byte moved."""
        return (self.flops + self.other_flops) / self.bytes


@dataclass(frozen=True)
class Sizes:
    """What a step works on, and the bytes of a number: `item` of activations, embeddings, head, norms and biases."""

    tokens: int  # T
    rows: int  # R
    visible: int  # pairs of a query and a key that it sees, over all layers
    read: int  # tokens whose keys and values are read in the cache's format, over all layers
    item: int = 2
    matrix_item: float = 2  # of the layers' matrices
    kv_item: float = 2
    exact: int = 0  # tokens of a residual window that are read as they are, over all layers


def visible_pairs(tokens: int, window: int) -> int:
    """Pairs of a query and a key in a causal prompt of `tokens`: query i sees i keys, at most `window` of them (0: all)."""
    if not window or tokens <= window:
        return tokens * (tokens + 1) // 2
    return window * (window + 1) // 2 + (tokens - window) * window


def decode_stages(
    config: ModelConfig,
    batch: int = 1,
    context: int = 1,
    itemsize: int = 2,
    kv_itemsize: float = 2,
    matrix_itemsize: float | None = None,
    residual_window: int = 0,
) -> list[Stage]:
    """One token for each of `batch` sequences that see `context` keys each, the new one included."""
    seen = [min(context, window) if window else context for window in config.sliding_windows]
    recent = context - coded_tokens(context, residual_window)
    visible, exact = batch * sum(seen), batch * sum(min(recent, keys) for keys in seen)
    sizes = Sizes(batch, batch, visible, visible - exact, itemsize, matrix_itemsize or itemsize, kv_itemsize, exact)
    return forward_stages(config, sizes)


def prefill_stages(
    config: ModelConfig,
    tokens: int,
    itemsize: int = 2,
    kv_itemsize: float = 2,
    matrix_itemsize: float | None = None,
    sequences: int = 1,
    residual_window: int = 0,
) -> list[Stage]:
    """`sequences` prompts of `tokens` tokens, causal, in one pass, with the logits of each one's last token alone."""
    visible = sequences * sum(visible_pairs(tokens, window) for window in config.sliding_windows)
    total = sequences * tokens
    read = config.num_hidden_layers * sequences * coded_tokens(tokens, residual_window)
    exact = config.num_hidden_layers * total if residual_window else 0
    return forward_stages(config, Sizes(total, sequences, visible, read, itemsize, matrix_itemsize or itemsize, kv_itemsize, exact))


def forward_stages(config: ModelConfig, sizes: Sizes) -> list[Stage]:
    """All stages in their order; see the module's table."""
    return [_embedding(config, sizes), *_attention_block(config, sizes), *_feed_forward(config, sizes), *_head(config, sizes)]


def _embedding(config: ModelConfig, s: Sizes) -> Stage:
    tables = 2 if config.rope is None else 1
    rows = s.tokens * config.hidden_size * s.item
    return Stage("embedding", weight_bytes=tables * rows, activation_bytes=rows)


def _norm(name: str, config: ModelConfig, s: Sizes, times: int, rows: int, without_residual: int = 0) -> Stage:
    numbers = (4 * times - 2 * without_residual) * rows * config.hidden_size
    operations = (8 if config.norm == "layer_norm" else 5) * times * rows * config.hidden_size
    return Stage(name, times * norm_parameters(config) * s.item, activation_bytes=numbers * s.item, other_flops=operations)


def _projection(name: str, config: ModelConfig, s: Sizes, inputs: int, outputs: int, bias: bool) -> Stage:
    # exercise: costs.projection
    layers, weight = config.num_hidden_layers, inputs * outputs
    return Stage(
        name,
        weight_bytes=int(layers * (weight * s.matrix_item + outputs * bias * s.item)),
        activation_bytes=layers * s.tokens * (inputs + outputs) * s.item,
        flops=2 * layers * s.tokens * weight,
    )
    # end exercise


def _attention_block(config: ModelConfig, s: Sizes) -> list[Stage]:
    layers, hidden = config.num_hidden_layers, config.hidden_size
    query, key_value = query_width(config), key_value_width(config)
    turned = 0 if config.rope is None else layers * s.tokens * (query + key_value // 2)  # elements of q and k
    angles = 0 if config.rope is None else config.head_dim * ANGLE_BYTES
    return [
        _norm("attention norm", config, s, layers, s.tokens, without_residual=1),
        _projection("qkv projection", config, s, hidden, query + key_value, config.qkv_bias),
        Stage(
            "rope and append",
            weight_bytes=layers * 2 * config.head_dim * config.qk_norm * s.item,
            kv_bytes=int(layers * s.tokens * key_value * (s.kv_item + s.item * bool(s.exact))),
            activation_bytes=layers * s.tokens * ((2 * query + key_value) * s.item + angles),
            other_flops=(7 if config.qk_norm else 3) * turned,
        ),
        Stage(
            "attention",
            kv_bytes=int(key_value * (s.read * s.kv_item + s.exact * s.item)),
            activation_bytes=layers * 2 * s.tokens * query * s.item,
            flops=4 * query * s.visible,
            other_flops=5 * config.num_attention_heads * s.visible,
        ),
        _projection("output projection", config, s, query, hidden, config.attention_output_bias),
    ]


def _feed_forward(config: ModelConfig, s: Sizes) -> list[Stage]:
    layers, hidden, inner, up = config.num_hidden_layers, config.hidden_size, config.intermediate_size, up_width(config)
    operations = 6 if config.activation == "silu" else 10  # an element
    return [
        _norm("MLP norm", config, s, layers, s.tokens),
        _projection("MLP up projection", config, s, hidden, up, config.mlp_bias),
        Stage(
            "MLP activation",
            activation_bytes=layers * s.tokens * (up + inner) * s.item,
            other_flops=operations * layers * s.tokens * inner,
        ),
        _projection("MLP down projection", config, s, inner, hidden, config.mlp_bias),
    ]


def _head(config: ModelConfig, s: Sizes) -> list[Stage]:
    logits = s.rows * config.vocab_size * LOGIT_BYTES
    return [
        _norm("final norm", config, s, 1, s.rows),
        Stage(
            "lm_head",
            weight_bytes=head_parameters(config) * s.item,
            activation_bytes=s.rows * config.hidden_size * s.item + logits,
            flops=2 * s.rows * head_parameters(config),
        ),
        Stage("sampling", activation_bytes=logits, other_flops=s.rows * config.vocab_size),
    ]
