"""The gated feed-forward: down(activation(gate(x)) * up(x)). With SiLU it is SwiGLU (Llama and its like), with GELU GeGLU.

Gate and up are one matrix [2 * intermediate, hidden]. The activation reads both of its halves and writes their product, some 6 operations
per element.

Source: Shazeer 2020, "GLU Variants Improve Transformer", section 2.
"""

from dataclasses import dataclass

from minllm.models.config import ModelConfig
from minllm.models.parts.terms import Matrix, Norm, Sizes, Stage
from minllm.ops.protocol import Array, NormWeights, Ops
from minllm.weights.linear import Linear
from minllm.weights.shard import INPUTS
from minllm.weights.stored import Projection, StoredLinear, stored_linear

FIELDS = ("intermediate_size", "activation", "mlp_bias")
ACTIVATION_OPERATIONS = 6  # per element


@dataclass
class GatedMlp:
    """A layer's feed-forward. Before loading the fields hold what the file stores for them (weights/stored.py)."""

    norm: NormWeights
    gate_up: Linear  # [2 * intermediate, hidden], gate first
    down: Linear  # [hidden, intermediate]
    activation: str

    def forward(self, ops: Ops, x: Array, residual: Array | None, next_norm: NormWeights | None = None) -> tuple[Array, Array | None]:
        """The feed-forward of the normalised x + residual [T, hidden]."""
        names = dict(activation=self.activation, next_norm=next_norm)
        return ops.normed_gated_mlp(x, residual, self.norm, self.gate_up, self.down, **names)  # [T, hidden] both


def llama_tensors(config: ModelConfig, prefix: str) -> GatedMlp:
    """The part in files of Llama and its like; prefix: "model.layers.3."."""
    hidden, inner = config.hidden_size, config.intermediate_size
    halves = tuple(Projection(f"{prefix}mlp.{name}", inner, hidden, config.mlp_bias) for name in ("gate_proj", "up_proj"))
    return GatedMlp(
        norm=config.norm_of(f"{prefix}post_attention_layernorm"),
        gate_up=StoredLinear(halves),
        down=stored_linear(prefix, "mlp.down_proj", hidden, inner, config.mlp_bias, axis=INPUTS),
        activation=config.activation,
    )


def matrices(config: ModelConfig) -> tuple[Matrix, ...]:
    """The linear layers, in order."""
    return (
        Matrix("MLP up projection", 2 * config.intermediate_size, config.hidden_size, config.mlp_bias),
        Matrix("MLP down projection", config.hidden_size, config.intermediate_size, config.mlp_bias),
    )


def vector_parameters(config: ModelConfig) -> int:
    """The norm of the hidden state and the biases of the matrices are all there is."""
    return 0


def stages(config: ModelConfig, s: Sizes) -> list[Stage | Matrix | Norm]:
    """What the part does, in order; the bytes and operations of all but matrices and norms, over all layers."""
    up, down = matrices(config)
    elements = config.num_hidden_layers * s.tokens * config.intermediate_size
    activation = Stage("MLP activation", activation_bytes=3 * elements * s.item, other_flops=ACTIVATION_OPERATIONS * elements)
    return [Norm("MLP norm"), up, activation, down]
