"""A mixture of experts: a router chooses a few of many gated feed-forwards for each token, and their outputs are summed.

    out = sum over the chosen e of w_e * down_e(silu(gate_e(x)) * up_e(x)),    w = softmax(router(x)) of the chosen, see kernels/experts

Some models add a shared expert, a gated feed-forward of its own width that every token takes: sigmoid(gate(x)) * shared(x).

The matrices of all experts form two Linears, stacked by expert: gate and up [experts * 2 * intermediate, hidden], down [experts * hidden,
intermediate]. A step reads the experts that at least one of its tokens chose. Costs take the expected number for a router that chooses
uniformly, independently for each token; a trained router is less even, and reads fewer.

Sources: see kernels/experts/reference.py.
"""

from dataclasses import dataclass

from minllm.models.config import ModelConfig
from minllm.models.parts.gated_mlp import ACTIVATION_OPERATIONS
from minllm.models.parts.terms import Matrix, Norm, Sizes, Stage
from minllm.ops.batch import Array, NormWeights, Routing
from minllm.ops.protocol import Ops
from minllm.weights.formats import plain_linear
from minllm.weights.linear import Linear
from minllm.weights.shard import INPUTS
from minllm.weights.stored import Projection, StoredTensor, stacked_linear, stored_linear

FIELDS = ("intermediate_size", "num_experts", "num_experts_per_tok", "shared_expert_intermediate_size", "activation")
ID_AND_WEIGHT_BYTES = 8  # int32 and float32 per token and chosen expert
ROUTING_OPERATIONS = 5  # per logit


@dataclass
class SharedExpert:
    """The expert that every token takes; before loading as Experts."""

    gate: Array  # [1, hidden]
    gate_up: Linear  # [2 * width, hidden], gate first
    down: Linear  # [hidden, width]
    activation: str

    def added_to(self, ops: Ops, out: Array, normalised: Array) -> Array:
        """out + sigmoid(gate(normalised)) * the feed-forward of normalised, all [T, hidden]."""
        shared = ops.gated_mlp(normalised, self.gate_up, self.down, self.activation)
        return ops.gated_add(out, shared, ops.linear(normalised, plain_linear(self.gate)))


@dataclass
class Experts:
    """A layer's experts. Before loading, the fields are the StoredTensors and StoredLinears of weights/stored.py."""

    norm: NormWeights
    router: Array  # [experts, hidden]; plain in every weight format
    gate_up: Linear  # [experts * 2 * intermediate, hidden]: gate, then up, of each expert
    down: Linear  # [experts * hidden, intermediate]
    routing: Routing
    shared: SharedExpert | None = None

    def forward(self, ops: Ops, x: Array, residual: Array | None, next_norm: NormWeights | None = None) -> tuple[Array, Array | None]:
        """The experts of norm(x + residual): the new (x, residual), both [T, hidden]."""
        if self.shared is not None:
            normalised, residual = ops.add_norm(x, residual, self.norm)  # both [T, hidden]
            out = ops.experts(normalised, self.router, self.gate_up, self.down, self.routing)  # [T, hidden]
            return self.shared.added_to(ops, out, normalised), residual
        experts = self.router, self.gate_up, self.down, self.routing
        return ops.normed_experts(x, residual, self.norm, *experts, next_norm=next_norm)  # both [T, hidden]


def llama_tensors(config: ModelConfig, prefix: str) -> Experts:
    """The stored tensors in Qwen's naming; prefix: "model.layers.3."."""
    hidden, inner = config.hidden_size, config.intermediate_size
    names = [f"{prefix}mlp.experts.{expert}." for expert in range(config.num_experts)]
    halves = [Projection(name + half, inner, hidden) for name in names for half in ("gate_proj", "up_proj")]
    return Experts(
        norm=config.norm_of(f"{prefix}post_attention_layernorm"),
        router=StoredTensor(f"{prefix}mlp.gate.weight", (config.num_experts, hidden)),
        gate_up=stacked_linear(tuple(halves)),
        down=stacked_linear(tuple(Projection(f"{name}down_proj", hidden, inner) for name in names), INPUTS),
        routing=Routing(config.num_experts, config.num_experts_per_tok, config.norm_topk_prob),
        shared=_shared_tensors(config, prefix) if config.shared_expert_intermediate_size else None,
    )


def _shared_tensors(config: ModelConfig, prefix: str) -> SharedExpert:
    hidden, width, name = config.hidden_size, config.shared_expert_intermediate_size, f"{prefix}mlp.shared_expert."
    return SharedExpert(
        gate=StoredTensor(f"{prefix}mlp.shared_expert_gate.weight", (1, hidden)),
        gate_up=stacked_linear(tuple(Projection(name + half, width, hidden) for half in ("gate_proj", "up_proj"))),
        down=stored_linear(name, "down_proj", hidden, width, axis=INPUTS),
        activation=config.activation,
    )


# Costs


def touched_experts(config: ModelConfig, tokens: int) -> float:
    """The expected number of experts per layer that at least one of `tokens` tokens chooses, uniformly and independently."""
    missed = 1 - config.num_experts_per_tok / config.num_experts
    return config.num_experts * (1 - missed**tokens)


def matrices(config: ModelConfig) -> tuple[Matrix, ...]:
    """The matrices of all experts, stacked, as two, and those of the shared expert."""
    return (*stacks(config), *shared_matrices(config))


def shared_matrices(config: ModelConfig) -> tuple[Matrix, ...]:
    """The two matrices of the shared expert; none without one."""
    hidden, width = config.hidden_size, config.shared_expert_intermediate_size
    both = Matrix("shared expert up projection", 2 * width, hidden), Matrix("shared expert down projection", hidden, width)
    return both if width else ()


def stacks(config: ModelConfig) -> tuple[Matrix, ...]:
    """The matrices of all experts that the router chooses from, stacked, as two."""
    return (
        Matrix("expert up projections", config.num_experts * 2 * config.intermediate_size, config.hidden_size),
        Matrix("expert down projections", config.num_experts * config.hidden_size, config.intermediate_size),
    )


def vector_parameters(config: ModelConfig) -> int:
    """Number of parameters besides matrices and the norm of the hidden state: router and shared expert's gate, which stay plain."""
    return (config.num_experts + bool(config.shared_expert_intermediate_size)) * config.hidden_size


def widest(config: ModelConfig) -> int:
    """Elements per token of the widest activation: gate and up of the chosen experts, or their outputs."""
    of_chosen = config.num_experts_per_tok * max(2 * config.intermediate_size, config.hidden_size)
    return max(of_chosen, 2 * config.shared_expert_intermediate_size)


def stages(config: ModelConfig, s: Sizes) -> list[Stage | Matrix | Norm]:
    """The stages of the part, in order.

    A Stage counts bytes and operations over all layers; matrices and norms are left to costs/.
    """
    layers, hidden, experts = config.num_hidden_layers, config.hidden_size, config.num_experts
    pairs = s.tokens * config.num_experts_per_tok  # a pair is a token and an expert that it chose
    logits, inner = s.tokens * experts, pairs * config.intermediate_size
    router = Stage(
        "router",
        weight_bytes=layers * vector_parameters(config) * s.item,
        activation_bytes=layers * (s.tokens * hidden * s.item + 4 * 2 * logits + pairs * ID_AND_WEIGHT_BYTES),
        flops=2 * layers * s.tokens * vector_parameters(config),
        other_flops=layers * ROUTING_OPERATIONS * logits,
    )
    activation = Stage(
        "expert activation", activation_bytes=3 * layers * inner * s.item, other_flops=ACTIVATION_OPERATIONS * layers * inner
    )
    combine = Stage("expert sum", activation_bytes=layers * hidden * (pairs + s.tokens) * s.item, other_flops=2 * layers * hidden * pairs)
    up, down = (_projections(matrix, config, s) for matrix in stacks(config))
    return [Norm("MLP norm"), router, up, activation, down, combine, *_shared_stages(config, s)]


def _shared_stages(config: ModelConfig, s: Sizes) -> list[Stage | Matrix]:
    """The stages of the shared expert, in order."""
    if not config.shared_expert_intermediate_size:
        return []
    layers, (up, down) = config.num_hidden_layers, shared_matrices(config)
    inner, hidden = layers * s.tokens * config.shared_expert_intermediate_size, layers * s.tokens * config.hidden_size
    activation = Stage("shared expert activation", activation_bytes=3 * inner * s.item, other_flops=ACTIVATION_OPERATIONS * inner)
    return [up, activation, down, Stage("shared expert sum", activation_bytes=3 * hidden * s.item, other_flops=2 * hidden)]


def _projections(stacked: Matrix, config: ModelConfig, s: Sizes) -> Stage:
    """A GEMM per touched expert; `stacked`: the matrices of all experts."""
    layers, pairs = config.num_hidden_layers, s.tokens * config.num_experts_per_tok
    touched = touched_experts(config, s.tokens) / config.num_experts
    one = Matrix(stacked.name, stacked.outputs // config.num_experts, stacked.inputs)
    return Stage(
        stacked.name,
        weight_bytes=round(layers * stacked.parameters * touched * s.of_matrix(stacked).matrix_item),
        activation_bytes=layers * pairs * (one.inputs + one.outputs) * s.item,
        flops=2 * layers * pairs * one.parameters,
    )
