"""The stages of a forward pass: what each reads, writes and computes, and so what bounds it.

The stages are those of the engine (models/decoder.py), and the bytes are those of each kernel's docstring: weights and cache are read once,
activations are written by one stage and read by the next. With T tokens, R rows that get logits, hidden size H, b bytes per number:

    embedding           T rows of the table (and T learned positions) read, T H b written
    norm                x, residual and weight read, residual and result written: (4 T H + H) b; the first norm has no residual yet
    projection          weight once (scales included), T rows in and out; 2 T in out operations
    rope and append     q, k, v read, q written, k and v written to the cache; 4-byte cosines and sines, T head_dim of them
    attention           the visible keys and values read; 2 operations per element in q . k and 2 in p . v, about 5 per score in the softmax
    activation          gate and up read, silu(gate) * up written: 3 T I b; without a gate 2 T I b
    lm_head             weight once, R rows in, R vocab logits in float32 out
    sampling            greedy: the logits read once

The stages of a layer come from models/parts/; embedding, head and sampling are here. GEMM operations, which run on tensor cores, are
counted apart from all others. In a prefill query i sees i keys. Keys and values are counted as read once, which is a floor: a kernel that
tiles queries reads them once per tile. A sliding window hides the oldest keys. With a residual window the newest keys are read unquantised,
and all new keys are written unquantised too.

Sources: Vaswani et al. 2017, "Attention is all you need", section 3; Kaplan et al. 2020, "Scaling laws for neural language models",
table 1; the docstrings of minllm/kernels.
"""

from minllm.costs.parameters import head_bytes, head_parameters, norm_parameters
from minllm.costs.residual_window import coded_tokens
from minllm.models.config import ModelConfig
from minllm.models.parts import parts_of
from minllm.models.parts.terms import Matrix, Norm, Sizes, Stage
from minllm.weights.format import WeightFormat

LOGIT_BYTES = 4  # logits are float32


def visible_pairs(tokens: int, window: int) -> int:
    """Query-key pairs in a causal prompt: query i sees i keys, at most `window` of them (0: all)."""
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
    weight_format: WeightFormat | None = None,
) -> list[Stage]:
    """The stages of a decode step: one token for each of `batch` sequences with `context` keys, its own included.

    matrix_itemsize: bytes per element of the layers' matrices, None for itemsize; weight_format: their format, in place of matrix_itemsize.
    """
    seen = [min(context, window) if window else context for window in config.sliding_windows]
    recent = context - coded_tokens(context, residual_window)
    visible, exact = batch * sum(seen), batch * sum(min(recent, keys) for keys in seen)
    sizes = Sizes(
        tokens=batch, rows=batch, visible=visible, read=visible - exact, item=itemsize, matrix_item=matrix_itemsize or itemsize,
        kv_item=kv_itemsize, exact=exact, weight_format=weight_format,
    )  # fmt: skip
    return forward_stages(config, sizes)


def prefill_stages(
    config: ModelConfig,
    tokens: int,
    itemsize: int = 2,
    kv_itemsize: float = 2,
    matrix_itemsize: float | None = None,
    sequences: int = 1,
    residual_window: int = 0,
    weight_format: WeightFormat | None = None,
) -> list[Stage]:
    """The stages of a causal prefill of `sequences` prompts of `tokens` tokens, with logits of the last ones."""
    visible = sequences * sum(visible_pairs(tokens, window) for window in config.sliding_windows)
    total = sequences * tokens
    read = config.num_hidden_layers * sequences * coded_tokens(tokens, residual_window)
    exact = config.num_hidden_layers * total if residual_window else 0
    sizes = Sizes(
        tokens=total, rows=sequences, visible=visible, read=read, item=itemsize, matrix_item=matrix_itemsize or itemsize,
        kv_item=kv_itemsize, exact=exact, weight_format=weight_format,
    )  # fmt: skip
    return forward_stages(config, sizes)


def forward_stages(config: ModelConfig, sizes: Sizes) -> list[Stage]:
    """All stages in order; see the table at the top of this file."""
    terms = [term for part in parts_of(config) for term in part.stages(config, sizes)]
    return [_embedding(config, sizes), *(_stage_of(term, config, sizes) for term in terms), *_head(config, sizes)]


def _stage_of(term: Stage | Matrix | Norm, config: ModelConfig, s: Sizes) -> Stage:
    """The stage that a term of a part stands for, over all layers."""
    if isinstance(term, Matrix):
        return _projection(term.name, config, s.of_matrix(term), term.inputs, term.outputs, term.bias)
    if isinstance(term, Norm):
        return _norm(term.name, config, s, times=config.num_hidden_layers, rows=s.tokens, without_residual=term.without_residual)
    return term


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


def _head(config: ModelConfig, s: Sizes) -> list[Stage]:
    logits = s.rows * config.vocab_size * LOGIT_BYTES
    return [
        _norm("final norm", config, s, times=1, rows=s.rows),
        Stage(
            "lm_head",
            weight_bytes=head_bytes(config, s.item, s.weight_format),
            activation_bytes=s.rows * config.hidden_size * s.item + logits,
            flops=2 * s.rows * head_parameters(config),
        ),
        Stage("sampling", activation_bytes=logits, other_flops=s.rows * config.vocab_size),
    ]
