"""What a forward pass must move and compute, counted from the model's shape: the floor that a measurement is held against.

A matrix [out, in] that T tokens pass through costs 2 * T * out * in floating-point operations (a multiply and an add) and, read once for
all of them, out * in numbers of memory traffic. With one token there are two operations for every number read, far below the hundreds
that a GPU could do in that time: decoding one sequence is bound by memory, and its floor is bytes / bandwidth. A prefill of thousands of
tokens reads the same bytes for thousands of times the work, and its floor is operations / tensor-core rate.

Counted: weights, keys and values. Not counted: activations, which are small and stay in caches, and the logits' few numbers.

Source: the roofline model of Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
architectures", CACM 52 (2009), section 3.
"""

from dataclasses import dataclass

from minllm.models.config import ModelConfig


@dataclass(frozen=True)
class Cost:
    """Bytes of memory traffic and floating-point operations of one step."""

    bytes: int
    flops: int

    @property
    def arithmetic_intensity(self) -> float:
        """Operations for each byte moved."""
        return self.flops / self.bytes

    def floor_ms(self, bandwidth_tb_s: float, tflops: float | None = None) -> float:
        """The least milliseconds that the step can take at `bandwidth_tb_s`, and at `tflops` where that is given: the larger of the two."""
        memory = self.bytes / (bandwidth_tb_s * 1e12)
        compute = self.flops / (tflops * 1e12) if tflops else 0.0
        return 1e3 * max(memory, compute)


def layer_matrix_parameters(config: ModelConfig) -> int:
    """Numbers in the matrices of one layer, each of which multiplies every token: q, k, v, output, and the feed-forward's two or three."""
    query_width = config.num_attention_heads * config.head_dim
    key_value_width = 2 * config.num_key_value_heads * config.head_dim
    attention = config.hidden_size * (query_width + key_value_width) + query_width * config.hidden_size
    feed_forward_matrices = 3 if config.activation == "silu" else 2  # gate, up, down; or up, down
    return attention + feed_forward_matrices * config.hidden_size * config.intermediate_size


def layer_vector_parameters(config: ModelConfig) -> int:
    """Numbers in the norms and biases of one layer."""
    query_width = config.num_attention_heads * config.head_dim
    key_value_width = 2 * config.num_key_value_heads * config.head_dim
    vectors = 2 * _norm_parameters(config)
    vectors += (query_width + key_value_width) * config.qkv_bias
    vectors += config.hidden_size * config.attention_output_bias
    vectors += (config.intermediate_size + config.hidden_size) * config.mlp_bias
    vectors += 2 * config.head_dim * config.qk_norm
    return vectors


def _norm_parameters(config: ModelConfig) -> int:
    """A weight, and a bias where the norm is a layer norm."""
    return config.hidden_size * (2 if config.norm == "layer_norm" else 1)


def head_parameters(config: ModelConfig) -> int:
    """Numbers in the matrix that turns a hidden state into logits: read in full at every step, whether tied to the embedding or not."""
    return config.vocab_size * config.hidden_size


def parameter_count(config: ModelConfig) -> int:
    """Numbers in a checkpoint of this shape; a head that is tied to the embedding counts once."""
    layers = config.num_hidden_layers * (layer_matrix_parameters(config) + layer_vector_parameters(config))
    embeddings = config.vocab_size * config.hidden_size
    if config.rope is None:
        embeddings += config.max_position_embeddings * config.hidden_size
    head = 0 if config.tie_word_embeddings else head_parameters(config)
    return layers + embeddings + head + _norm_parameters(config)


def weight_bytes(config: ModelConfig, itemsize: int = 2) -> int:
    """Bytes that the weights take in memory."""
    return parameter_count(config) * itemsize


def kv_bytes_per_token(config: ModelConfig, itemsize: int = 2) -> int:
    """Bytes that one token's keys and values take in the cache, over all layers. Grouped-query attention stores the KV heads only."""
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * itemsize


def _visible_keys(config: ModelConfig, context: int) -> int:
    """Keys that the query at the end of `context` keys sees, summed over the layers: a sliding window hides the oldest."""
    return sum(min(context, window) if window else context for window in config.sliding_windows)


def _step_weight_parameters(config: ModelConfig, tokens: int) -> int:
    """Numbers read of the weights when `tokens` tokens pass through: every matrix once, the embedding a row a token."""
    layers = config.num_hidden_layers * (layer_matrix_parameters(config) + layer_vector_parameters(config))
    embedding_rows = tokens * config.hidden_size * (2 if config.rope is None else 1)
    return layers + embedding_rows + _norm_parameters(config) + head_parameters(config)


def decode_step(config: ModelConfig, batch: int = 1, context: int = 1, itemsize: int = 2, kv_itemsize: int = 2) -> Cost:
    """One token for each of `batch` sequences that see `context` keys each, the new one included."""
    key_bytes = 2 * config.num_key_value_heads * config.head_dim * kv_itemsize  # K and V of one token in one layer
    kv_read = batch * _visible_keys(config, context) * key_bytes
    kv_written = batch * kv_bytes_per_token(config, kv_itemsize)
    attention = 4 * batch * config.num_attention_heads * config.head_dim * _visible_keys(config, context)  # q . K, then p . V
    matrices = config.num_hidden_layers * layer_matrix_parameters(config) + head_parameters(config)
    return Cost(
        bytes=_step_weight_parameters(config, batch) * itemsize + kv_read + kv_written,
        flops=2 * batch * matrices + attention,
    )


def prefill(config: ModelConfig, tokens: int, itemsize: int = 2, kv_itemsize: int = 2) -> Cost:
    """A prompt of `tokens` tokens, causal, in one pass, with the logits of its last token alone.

    Query i sees i keys. Their keys and values are written once and read once, which is the floor: a kernel that tiles queries reads more.
    """
    visible = sum(_visible_keys(config, position + 1) for position in range(tokens))
    attention = 4 * config.num_attention_heads * config.head_dim * visible
    matrices = tokens * config.num_hidden_layers * layer_matrix_parameters(config) + head_parameters(config)
    return Cost(
        bytes=_step_weight_parameters(config, tokens) * itemsize + 2 * tokens * kv_bytes_per_token(config, kv_itemsize),
        flops=2 * matrices + attention,
    )
