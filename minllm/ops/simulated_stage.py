"""The engine on a CPU with kernels of your own: they run in the simulator, all other operations in NumPy.

The simulator takes microseconds per operation and thread, so GEMMs of large matrices stay in NumPy too.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Mapping

import numpy as np
from numpy.typing import DTypeLike

from minllm.kernels.experts.reference import activated_reference, combine_reference, projected_reference
from minllm.ops.batch import AttentionConfig, Batch, LayerCache, NormWeights, Routing
from minllm.ops.numpy_ops import NumpyOps, expert_stack
from minllm.ops.own_kernels import OwnKernel
from minllm.weights.linear import Linear

MOST_PRODUCTS = 110_000  # multiply-adds of the largest GEMM to simulate, which takes about a quarter of a second


class SimulatedStageOps(NumpyOps):
    """Implements `ops.protocol.Ops` on NumPy arrays. launches, seconds: per stage, the launches in the simulator and their time."""

    def __init__(self, dtype: DTypeLike, kernels: Mapping[str, OwnKernel]):
        """kernels: the kernel of each stage. dtype: of the activations."""
        super().__init__(dtype)
        self.kernels = dict(kernels)
        self.launches: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @property
    def own_stages(self) -> tuple[str, ...]:
        """The stages that have run the user's own kernel so far."""
        return tuple(self.launches)

    def simulate(self, stage: str, *arguments) -> None:
        """Run a stage's launcher, and record the launch and its time."""
        started = time.monotonic()
        own = self.kernels[stage]
        own.launch(*arguments, **own.simulated_options)
        self.launches[stage] += 1
        self.seconds[stage] += time.monotonic() - started

    def add_norm(self, x: np.ndarray, residual: np.ndarray | None, norm: NormWeights) -> tuple[np.ndarray, np.ndarray]:
        """(normalised, residual) of x + residual."""
        if "rms_norm" not in self.kernels or norm.kind == "layer_norm":
            return super().add_norm(x, residual, norm)
        out, stream = np.empty_like(x), None if residual is None else residual.copy()
        self.simulate("rms_norm", x, norm.weight.astype(x.dtype), out, norm.epsilon, stream)
        return out, x if stream is None else stream

    def linear(self, x: np.ndarray, linear: Linear, out_dtype: DTypeLike | None = None) -> np.ndarray:
        """x @ weight.T + bias; in the simulator if it is small and a kernel of your own supports the weight's format."""
        stage, weight, bias = linear.format.own_stage, linear.weight, linear.bias
        own, (outputs, inputs) = self.kernels.get(stage or ""), linear.shape
        if stage is None or own is None or not own.takes(len(x)) or len(x) * outputs * inputs > MOST_PRODUCTS:
            return super().linear(x, linear, out_dtype)
        out = np.empty((len(x), outputs), x.dtype if out_dtype is None else out_dtype)
        if linear.format.is_plain:  # float32 numbers that are exact in the activations' dtype; kernels need one dtype
            weight = weight.astype(x.dtype)
        self.simulate(stage, np.ascontiguousarray(x), weight, out, None if bias is None else bias.astype(x.dtype))
        return out

    def accept(self, chosen: np.ndarray, computed: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """The number of new tokens of each run: int32 [R]."""
        if "accept" not in self.kernels:
            return super().accept(chosen, computed, slots)
        counts = np.empty(slots.shape, np.int32)
        self.simulate("accept", chosen, computed, slots, counts)
        return counts

    def attention(self, query: np.ndarray, layer_cache: LayerCache, batch: Batch, attention_config: AttentionConfig) -> np.ndarray:
        """Causal attention over the cached context."""
        own = self.kernels.get("attention")
        # Attention kernels know no trees of drafts: a node would attend to its siblings.
        if own is None or batch.tree is not None or not own.takes(batch.max_query_len):
            return super().attention(query, layer_cache, batch, attention_config)
        out = np.empty_like(query)
        self.simulate(
            "attention", query, layer_cache.key, layer_cache.value, out, batch.query_start, batch.context_lens, batch.block_tables,
            attention_config.scale, attention_config.sliding_window, batch.max_query_len,
        )  # fmt: skip
        return out.reshape(len(query), -1)

    def experts(self, x: np.ndarray, router: np.ndarray, gate_up: Linear, down: Linear, routing: Routing) -> np.ndarray:
        """The weighted sum of each token's chosen experts, computed in the order of a sort of your own."""
        if "sort_by_expert" not in self.kernels:
            return super().experts(x, router, gate_up, down, routing)
        expert_ids, weights = self.chosen_experts(x, router, routing)
        pairs, offsets = np.empty(expert_ids.size, np.int32), np.empty(routing.experts + 1, np.int32)
        self.simulate("sort_by_expert", expert_ids, pairs, offsets)
        of_pair = np.repeat(np.arange(routing.experts), np.diff(offsets))
        of_gate_up, of_down = (expert_stack(linear, routing) for linear in (gate_up, down))
        outputs = np.empty((expert_ids.size, x.shape[1]), np.float32)
        outputs[pairs] = projected_reference(activated_reference(x[pairs // routing.per_token], of_pair, of_gate_up), of_pair, of_down)
        return combine_reference(outputs, weights).astype(x.dtype)

    def gated_mlp(self, x: np.ndarray, gate_up: Linear, down: Linear, activation: str) -> np.ndarray:
        """down(silu(gate(x)) * up(x))."""
        if activation != "silu" or "silu_and_multiply" not in self.kernels:
            return super().gated_mlp(x, gate_up, down, activation)
        both = self.linear(x, gate_up)  # [T, 2 * intermediate]
        activated = np.empty((len(x), both.shape[1] // 2), both.dtype)
        self.simulate("silu_and_multiply", both, activated)
        return self.linear(activated, down)
