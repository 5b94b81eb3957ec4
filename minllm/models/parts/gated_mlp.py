"""The gated feed-forward: down(activation(gate(x)) * up(x)).

With SiLU it is SwiGLU (Llama and similar models), with GELU GeGLU (Gemma, which normalises the output once more: post_norm). Gate and up
form one matrix [2 * intermediate, hidden]. The activation reads both halves of its output and writes their product, about 6 operations per
element.

Source: Shazeer 2020, "GLU Variants Improve Transformer", section 2.
"""

from dataclasses import dataclass

from minllm.models.config import ModelConfig
from minllm.models.parts.terms import Matrix, Norm, Sizes, Stage
from minllm.ops.batch import Array, NormWeights
from minllm.ops.protocol import Ops
from minllm.weights.linear import Linear
from minllm.weights.shard import INPUTS
from minllm.weights.stored import Projection, stacked_linear, stored_linear

FIELDS = ("intermediate_size", "activation", "mlp_bias", "post_norms")
ACTIVATION_OPERATIONS = 6  # per element


@dataclass
class GatedMlp:
    """A layer's feed-forward.

    Before loading, the fields are the StoredTensors and StoredLinears of weights/stored.py.
    """

    norm: NormWeights
    gate_up: Linear  # [2 * intermediate, hidden], gate first
    down: Linear  # [hidden, intermediate]
    activation: str
    post_norm: NormWeights | None = None  # normalises what the part adds to the hidden state

    def forward(self, ops: Ops, x: Array, residual: Array | None, next_norm: NormWeights | None = None) -> tuple[Array, Array | None]:
        """The feed-forward of norm(x + residual): the new (x, residual), both [T, hidden]."""
        if self.post_norm is not None:
            normalised, residual = ops.add_norm(x, residual, self.norm)  # both [T, hidden]
            out = ops.gated_mlp(normalised, self.gate_up, self.down, self.activation)  # [T, hidden]
            return ops.add_norm(out, None, self.post_norm)[0], residual
        return ops.normed_gated_mlp(
            x, residual, self.norm, self.gate_up, self.down, activation=self.activation, next_norm=next_norm
        )  # both [T, hidden]  # fmt: skip


def llama_tensors(config: ModelConfig, prefix: str) -> GatedMlp:
    """The stored tensors in Llama's naming; prefix: "model.layers.3."."""
    hidden, inner = config.hidden_size, config.intermediate_size
    halves = tuple(Projection(f"{prefix}mlp.{name}", inner, hidden, config.mlp_bias) for name in ("gate_proj", "up_proj"))
    return GatedMlp(
        norm=config.norm_of(f"{prefix}{'pre_feedforward' if config.post_norms else 'post_attention'}_layernorm"),
        gate_up=stacked_linear(halves),
        down=stored_linear(prefix, "mlp.down_proj", hidden, inner, config.mlp_bias, axis=INPUTS),
        activation=config.activation,
        post_norm=config.post_norm_of(f"{prefix}post_feedforward_layernorm"),
    )


def matrices(config: ModelConfig) -> tuple[Matrix, ...]:
    """The linear layers as one GEMM each, in order."""
    return (
        Matrix("MLP up projection", 2 * config.intermediate_size, config.hidden_size, config.mlp_bias),
        Matrix("MLP down projection", config.hidden_size, config.intermediate_size, config.mlp_bias),
    )


def vector_parameters(config: ModelConfig) -> int:
    """Number of parameters besides matrices, their biases and the norm of the hidden state: those of post_norm."""
    return config.hidden_size * config.post_norms


def widest(config: ModelConfig) -> int:
    """Elements per token of the widest activation: gate and up."""
    return 2 * config.intermediate_size


def stages(config: ModelConfig, s: Sizes) -> list[Stage | Matrix | Norm]:
    """The stages of the part, in order.

    A Stage counts bytes and operations over all layers; matrices and norms are left to costs/.
    """
    up, down = matrices(config)
    elements = config.num_hidden_layers * s.tokens * config.intermediate_size
    activation = Stage("MLP activation", activation_bytes=3 * elements * s.item, other_flops=ACTIVATION_OPERATIONS * elements)
    post_norms = [Norm("MLP post-norm", without_residual=config.num_hidden_layers)] * config.post_norms
    return [Norm("MLP norm"), up, activation, down, *post_norms]
