"""The feed-forward without a gate: down(activation(up(x))), as in GPT-2.

The activation reads and writes one element per output of `up`, with about 10 operations (GELU).

Source: Vaswani et al. 2017, "Attention is all you need", section 3.3.
"""

from dataclasses import dataclass

from minllm.models.config import ModelConfig
from minllm.models.parts.terms import Matrix, Norm, Sizes, Stage
from minllm.ops.batch import Array, NormWeights
from minllm.ops.protocol import Ops
from minllm.weights.linear import Linear
from minllm.weights.shard import INPUTS
from minllm.weights.stored import stored_linear

FIELDS = ("intermediate_size", "activation", "mlp_bias")
ACTIVATION_OPERATIONS = 10  # per element


@dataclass
class PlainMlp:
    """A layer's feed-forward.

    Before loading, the fields are the StoredTensors and StoredLinears of weights/stored.py.
    """

    norm: NormWeights
    up: Linear  # [intermediate, hidden]
    down: Linear  # [hidden, intermediate]
    activation: str

    def forward(self, ops: Ops, x: Array, residual: Array | None, next_norm: NormWeights | None = None) -> tuple[Array, Array | None]:
        """The feed-forward of norm(x + residual): the new (x, residual), both [T, hidden]."""
        normalised, residual = ops.add_norm(x, residual, self.norm)  # both [T, hidden]
        return ops.mlp(normalised, self.up, self.down, self.activation), residual  # both [T, hidden]


def gpt2_tensors(config: ModelConfig, prefix: str) -> PlainMlp:
    """The stored tensors in GPT-2's naming; prefix: "transformer.h.3."."""
    hidden, inner = config.hidden_size, config.intermediate_size
    return PlainMlp(
        norm=config.norm_of(f"{prefix}ln_2"),
        up=stored_linear(prefix, "mlp.c_fc", inner, hidden, config.mlp_bias, transposed=True),
        down=stored_linear(prefix, "mlp.c_proj", hidden, inner, config.mlp_bias, axis=INPUTS, transposed=True),
        activation=config.activation,
    )


def matrices(config: ModelConfig) -> tuple[Matrix, ...]:
    """The linear layers as one GEMM each, in order."""
    return (
        Matrix("MLP up projection", config.intermediate_size, config.hidden_size, config.mlp_bias),
        Matrix("MLP down projection", config.hidden_size, config.intermediate_size, config.mlp_bias),
    )


def vector_parameters(config: ModelConfig) -> int:
    """Number of parameters besides matrices, their biases and the norm of the hidden state: none."""
    return 0


def widest(config: ModelConfig) -> int:
    """Elements per token of the widest activation: input and output of the activation function."""
    return 2 * config.intermediate_size


def stages(config: ModelConfig, s: Sizes) -> list[Stage | Matrix | Norm]:
    """The stages of the part, in order.

    A Stage counts bytes and operations over all layers; matrices and norms are left to costs/.
    """
    up, down = matrices(config)
    elements = config.num_hidden_layers * s.tokens * config.intermediate_size
    activation = Stage("MLP activation", activation_bytes=2 * elements * s.item, other_flops=ACTIVATION_OPERATIONS * elements)
    return [Norm("MLP norm"), up, activation, down]
