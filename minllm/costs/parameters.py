"""The number of parameters of a model, and the bytes of its weights and of its keys and values.

A well-known formula for the KV cache is wrong. `2 * hidden_size * layers * itemsize` bytes per token, often printed as "2.6 MB for
Llama-2-70B in 16 bits", assumes that every query head has its own keys and values: 2 * 8192 * 80 * 2 = 2.62 MB, and 42.9 GB for 16
sequences of 1,024 tokens (42.6 from the rounded 2.6, often printed as 42.5). That model shares each KV head among 8 query heads
(grouped-query attention), so it stores 8 KV heads of 128 instead of 64: 2 * 8 * 128 * 80 * 2 = 0.33 MB per token, and 5.4 GB for the same
16 sequences.

Sources: Ainslie et al. 2023, "GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints", section 2.2;
Touvron et al. 2023, "Llama 2: Open Foundation and Fine-Tuned Chat Models", section 2.2 and table 1; Pope et al. 2023, "Efficiently Scaling
Transformer Inference", section 2.
"""

from minllm.models.config import ModelConfig
from minllm.models.parts import experts, parts_of
from minllm.models.parts.grouped_attention import key_value_width, query_width
from minllm.models.parts.terms import Matrix
from minllm.weights.format import WeightFormat


def layer_matrices(config: ModelConfig) -> list[Matrix]:
    """The linear layers of one decoder layer; each of them multiplies every token."""
    return [matrix for part in parts_of(config) for matrix in part.matrices(config)]


def norm_parameters(config: ModelConfig) -> int:
    """Parameters of a norm: its weight, and for a layer norm also its bias."""
    return config.hidden_size * (2 if config.norm == "layer_norm" else 1)


def layer_matrix_parameters(config: ModelConfig) -> int:
    """Parameters in the matrices of one layer: q, k, v, output, and the feed-forward's two or three."""
    return sum(matrix.parameters for matrix in layer_matrices(config))


def layer_vector_parameters(config: ModelConfig) -> int:
    """Parameters in the norms and biases of one layer."""
    biases = sum(matrix.outputs for matrix in layer_matrices(config) if matrix.bias)
    return biases + sum(norm_parameters(config) + part.vector_parameters(config) for part in parts_of(config))


def head_parameters(config: ModelConfig) -> int:
    """Parameters of the LM head: every step reads all of them, tied to the embedding or not."""
    return config.vocab_size * config.hidden_size


def head_bytes(config: ModelConfig, itemsize: int, weight_format: WeightFormat | None = None) -> int:
    """Bytes of the LM head, which is plain unless the format of the layers' matrices covers it too."""
    if weight_format is None or not weight_format.covers("lm_head"):
        return head_parameters(config) * itemsize
    return weight_format.matrix_bytes(config.vocab_size, config.hidden_size)


def widest_activation(config: ModelConfig) -> int:
    """Elements per token of the widest activation: queries, keys and values, or that of the feed-forward."""
    _, mlp = parts_of(config)
    return max(query_width(config) + key_value_width(config), mlp.widest(config))


def active_parameters(config: ModelConfig) -> int:
    """Parameters that one token multiplies by or adds: all of them without experts, else those of the experts that it chooses."""
    idle = (config.num_experts - config.num_experts_per_tok) * expert_parameters(config) if config.num_experts else 0
    return parameter_count(config) - config.num_hidden_layers * idle


def expert_parameters(config: ModelConfig) -> int:
    """Parameters of one expert in one layer; 0 without experts."""
    return sum(matrix.parameters for matrix in experts.stacks(config)) // config.num_experts if config.num_experts else 0


def parameter_count(config: ModelConfig) -> int:
    """Parameters of a model of this shape; a head that is tied to the embedding counts once."""
    layers = config.num_hidden_layers * (layer_matrix_parameters(config) + layer_vector_parameters(config))
    embeddings = config.vocab_size * config.hidden_size
    if config.rope is None:
        embeddings += config.max_position_embeddings * config.hidden_size
    head = 0 if config.tie_word_embeddings else head_parameters(config)
    return layers + embeddings + head + norm_parameters(config)


def weight_bytes(
    config: ModelConfig, itemsize: int = 2, matrix_itemsize: float | None = None, weight_format: WeightFormat | None = None
) -> int:
    """Bytes of all weights in memory.

    matrix_itemsize: bytes per element of the layers' matrices if these are quantised (0.5 for 4 bits; scales are not counted).
    weight_format: the format of the layers' matrices, in place of matrix_itemsize; its scales are counted.
    """
    layers, matrices = config.num_hidden_layers, layer_matrices(config)
    parameters = layers * sum(matrix.parameters for matrix in matrices)
    if weight_format is None:
        return int((parameter_count(config) - parameters) * itemsize + parameters * (matrix_itemsize or itemsize))
    rest = (parameter_count(config) - parameters) * itemsize
    if not weight_format.is_plain and weight_format.covers("lm_head"):
        rest += head_bytes(config, itemsize, weight_format) - (not config.tie_word_embeddings) * head_bytes(config, itemsize)
    return rest + layers * sum(weight_format.matrix_bytes(matrix.outputs, matrix.inputs) for matrix in matrices)


def kv_bytes_per_token(config: ModelConfig, itemsize: float = 2) -> int:
    """Bytes of one token's keys and values over all layers; grouped-query attention stores KV heads only."""
    # exercise: costs.kv_bytes_per_token
    return int(config.num_hidden_layers * key_value_width(config) * itemsize)
    # end exercise


def ungrouped_kv_bytes_per_token(config: ModelConfig, itemsize: float = 2) -> int:
    """kv_bytes_per_token if every query head had its own keys and values: the formula that overestimates."""
    return int(2 * config.num_hidden_layers * query_width(config) * itemsize)


def shape_of(config: ModelConfig) -> tuple:
    """A tuple of all that these counts depend on: models with equal tuples cost the same."""
    parts = parts_of(config)
    fields = ("vocab_size", "hidden_size", "num_hidden_layers", "norm", "tie_word_embeddings", *(f for part in parts for f in part.FIELDS))
    return (*parts, *(getattr(config, field) for field in fields), config.rope is None)
