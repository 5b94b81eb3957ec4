"""The forward's operations in NumPy: the engine on a CPU, made of the references against which the kernels are tested.

Activations are rounded to `dtype` between operations, as when a GPU stores them; inside an operation everything is float32. Plain weights
are rounded to `dtype` too, but kept as float32, because BLAS multiplies float32: the numbers are those of a bfloat16 model, only the
storage is wider. Other formats keep their own arrays.
"""

import numpy as np
from numpy.typing import DTypeLike

from minllm.kernels.activation.gelu import gelu_reference
from minllm.kernels.activation.silu import silu_and_multiply_reference
from minllm.kernels.attention.reference import attention_reference
from minllm.kernels.attention.residual_window.reference import attention_with_window_reference
from minllm.kernels.attention.tree.reference import tree_attention_reference
from minllm.kernels.elementwise.gelu_and_multiply import gelu_and_multiply_reference
from minllm.kernels.elementwise.in_place import scale_reference, soft_cap_reference
from minllm.kernels.embedding.lookup import embedding_reference
from minllm.kernels.experts.gated_add import gated_add_reference
from minllm.kernels.experts.reference import experts_reference, route_reference
from minllm.kernels.kv.copy_blocks import copy_blocks_reference
from minllm.kernels.kv.move_window import window_of_rows
from minllm.kernels.kv.qkv_rope_append import qkv_rope_append_reference
from minllm.kernels.kv.quantize_groups import quantize_groups_reference
from minllm.kernels.matmul.reference import matmul_reference
from minllm.kernels.normalization.layer_norm import layer_norm_reference
from minllm.kernels.normalization.rms_norm import rms_norm_reference
from minllm.kernels.sampling.log_probabilities import LogProbabilities, log_probabilities_reference
from minllm.kernels.sampling.mask import mask_logits_reference
from minllm.kernels.sampling.sample import sample_reference
from minllm.kernels.sampling.tensors import SamplingTensors
from minllm.kernels.slots.advance import advance_reference
from minllm.kernels.slots.load_rows import load_rows_reference
from minllm.kernels.slots.local_blocks import local_blocks_reference
from minllm.kernels.slots.state import SlotState
from minllm.kernels.slots.write_slots import write_slots_reference
from minllm.ops.arguments import activation_dtype, check_gated_activation, gelu_approximation
from minllm.ops.batch import AttentionConfig, Batch, LayerCache, NormWeights, Routing
from minllm.ops.composed import ComposedOps
from minllm.ops.numpy_speculation import NumpySpeculation
from minllm.weights.linear import Linear


class NumpyOps(NumpySpeculation, ComposedOps):
    """Implements `ops.protocol.Ops`; every array is a NumPy array."""

    def __init__(self, dtype: DTypeLike = "float32"):
        """dtype: of the activations, a name or a NumPy dtype: float32, float16 or bfloat16."""
        self.dtype = activation_dtype(dtype, "NumpyOps")

    @property
    def own_stages(self) -> tuple[str, ...]:
        """The stages that run the user's own kernels: none."""
        return ()

    def array(self, host_array: np.ndarray) -> np.ndarray:
        """The array itself, C-contiguous."""
        return np.ascontiguousarray(host_array)

    def to_host(self, array: np.ndarray) -> np.ndarray:
        """The array itself."""
        return array

    def copied(self, array: np.ndarray) -> np.ndarray:
        """A copy."""
        return array.copy()

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """An array with unspecified contents."""
        return np.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """An array of zeros."""
        return np.zeros(shape, dtype)

    def weight(self, host_array: np.ndarray) -> np.ndarray:
        """A float32 copy, C-contiguous, of the values rounded to the activations' dtype."""
        return np.array(host_array.astype(self.dtype, copy=False), np.float32, order="C")

    def embed(
        self, batch: Batch, embedding: np.ndarray, position_embedding: np.ndarray | None = None, scale: float = 1.0
    ) -> np.ndarray:  # fmt: skip
        """Rows of the embedding, plus those of the positions, times `scale`: [T, hidden]."""
        rows = embedding_reference(batch.token_ids, embedding, batch.positions, position_embedding).astype(self.dtype, copy=False)
        return self.scaled(rows, scale)

    def scaled(self, x: np.ndarray, factor: float) -> np.ndarray:
        """x times a factor that is rounded to the activations' dtype."""
        return x if factor == 1.0 else scale_reference(x, factor)

    def add_norm(self, x: np.ndarray, residual: np.ndarray | None, norm: NormWeights) -> tuple[np.ndarray, np.ndarray]:
        """(normalised, residual) of x + residual: [T, hidden] both."""
        if norm.kind == "layer_norm":
            return layer_norm_reference(x, norm.weight, norm.bias, norm.epsilon, residual)
        return rms_norm_reference(x, norm.weight, norm.epsilon, residual)

    def linear(self, x: np.ndarray, linear: Linear, out_dtype: DTypeLike | None = None) -> np.ndarray:
        """x @ weight.T + bias: [T, out], in x's dtype unless `out_dtype` is given."""
        return linear.format.linear(x, linear.weight, linear.bias, out_dtype)

    def qkv_rope_append(
        self,
        qkv: np.ndarray,
        batch: Batch,
        layer_cache: LayerCache,
        attention_config: AttentionConfig,
        cos_sin: np.ndarray | None = None,
    ) -> np.ndarray:
        """Splits qkv, normalises and rotates queries and keys, writes the cache; returns the queries [T, heads, head_dim]."""
        config = attention_config

        def write(key_cache, value_cache, slot_mapping, recent):
            return qkv_rope_append_reference(
                qkv, batch.positions, slot_mapping, key_cache=key_cache, value_cache=value_cache, heads=config.heads,
                kv_heads=config.kv_heads, cos_sin=cos_sin, interleaved=config.interleaved, q_norm=config.q_norm, k_norm=config.k_norm,
                epsilon=config.epsilon, recent=recent,
            )  # fmt: skip

        if layer_cache.recent is None:
            return write(layer_cache.key, layer_cache.value, batch.slot_mapping, None)
        return self.append_with_window(write, batch, layer_cache)

    def copy_blocks(self, cache: np.ndarray, copies: np.ndarray, to: np.ndarray | None = None) -> None:
        """Copies blocks within the cache, or from it to `to`: pairs (source, destination), int32 [P, 2]."""
        copy_blocks_reference(cache, copies, to)

    def write_words(self, words: np.ndarray, pairs: np.ndarray) -> None:
        """words[index] = word for pairs (index, word), int32 [n, 2]."""
        write_slots_reference(words, pairs)

    def local_blocks(self, batch: Batch, local_of: np.ndarray, block_size: int) -> tuple[np.ndarray, np.ndarray]:
        """(slot_mapping, block_tables) of the batch with local blocks."""
        return local_blocks_reference(batch.slot_mapping, batch.context_lens, batch.block_tables, local_of, block_size)

    def quantize_groups(self, layer_cache: LayerCache, batch: Batch) -> None:
        """Writes codes of the groups of recent tokens that the batch has completed."""
        cache, recent = layer_cache.window(batch)
        quantize_groups_reference(
            *cache.of(recent), layer_cache.key, layer_cache.value, batch.query_start, batch.context_lens, batch.block_tables,
            recent.context_lens, recent.block_tables,
        )  # fmt: skip

    def copy_blocks_of_layers(self, caches: np.ndarray, copies: np.ndarray) -> None:
        """Copies blocks in every layer of caches [layers, num_blocks, ...]."""
        for cache in caches:
            copy_blocks_reference(cache, copies)

    def attention(self, query: np.ndarray, layer_cache: LayerCache, batch: Batch, attention_config: AttentionConfig) -> np.ndarray:
        """Causal attention over the cached context of each sequence: [T, heads * head_dim]."""
        caches, tables = (layer_cache.key, layer_cache.value), (batch.query_start, batch.context_lens, batch.block_tables)
        scale, sliding_window, soft_cap = attention_config.scale, attention_config.sliding_window, attention_config.soft_cap
        if batch.tree is not None:
            verified, others = batch.verifications(), batch.behind_verifications()
            tables, tree = (verified.query_start, verified.context_lens, verified.block_tables), (batch.tree.host.sees, batch.first_node)
            out = tree_attention_reference(query, *caches, *tables, *tree, scale, sliding_window, soft_cap)
            tables = (others.query_start, others.context_lens, others.block_tables)
            # Each reference leaves zeros in the other's rows.
            out += attention_reference(query, *caches, *tables, scale, sliding_window, soft_cap)
        elif layer_cache.recent is None:
            out = attention_reference(query, *caches, *tables, scale, sliding_window, soft_cap)
        else:
            cache, recent = layer_cache.window(batch)
            windows = (recent.context_lens, recent.block_tables, scale, cache.window)
            out = attention_with_window_reference(query, *caches, *cache.of(recent), *tables, *windows, sliding_window, soft_cap)
        return out.reshape(len(query), -1)

    def gated_mlp(self, x: np.ndarray, gate_up: Linear, down: Linear, activation: str) -> np.ndarray:
        """down(activation(gate(x)) * up(x)): [T, hidden]."""
        check_gated_activation(activation)
        gate = silu_and_multiply_reference if activation == "silu" else gelu_and_multiply_reference
        return self.linear(gate(self.linear(x, gate_up)), down)

    def mlp(self, x: np.ndarray, up: Linear, down: Linear, activation: str) -> np.ndarray:
        """down(gelu(up(x))): [T, hidden]."""
        approximation = gelu_approximation(activation)
        return self.linear(gelu_reference(self.linear(x, up), approximation), down)

    def experts(self, x: np.ndarray, router: np.ndarray, gate_up: Linear, down: Linear, routing: Routing) -> np.ndarray:
        """The weighted sum of each token's chosen experts: [T, hidden]."""
        expert_ids, weights = self.chosen_experts(x, router, routing)
        return experts_reference(x, expert_ids, weights, *(expert_stack(linear, routing) for linear in (gate_up, down)))

    def chosen_experts(self, x: np.ndarray, router: np.ndarray, routing: Routing) -> tuple[np.ndarray, np.ndarray]:
        """(expert_ids, weights) of each token, both [T, per_token]."""
        logits = matmul_reference(x, router, out_dtype=np.float32)  # [T, experts]
        return route_reference(logits, routing.per_token, routing.normalized)

    def gated_add(self, x: np.ndarray, y: np.ndarray, gate: np.ndarray) -> np.ndarray:
        """x + sigmoid(gate) * y: [T, hidden]."""
        return gated_add_reference(x, y, gate)

    def logits(
        self, x: np.ndarray, residual: np.ndarray | None, norm: NormWeights, lm_head: Linear, rows: np.ndarray | None,
        soft_cap: float = 0.0,
    ) -> np.ndarray:  # fmt: skip
        """The logits of `rows`, or of all rows: float32 [R, vocab]."""
        if rows is not None:
            x, residual = x[rows], None if residual is None else residual[rows]
        normalised, _ = self.add_norm(x, residual, norm)
        logits = self.linear(normalised, lm_head, np.float32)
        return soft_cap_reference(logits, soft_cap) if soft_cap else logits

    def sample(self, logits: np.ndarray, sampling: SamplingTensors, slots: np.ndarray) -> np.ndarray:
        """One token per row: int32 [R]."""
        return sample_reference(logits, sampling, slots)

    def mask_logits(self, logits: np.ndarray, indices: np.ndarray, masks: np.ndarray) -> np.ndarray:
        """The logits with -inf for the tokens that a row's mask excludes."""
        return mask_logits_reference(logits, indices, masks)

    def log_probabilities(self, logits: np.ndarray, token_ids: np.ndarray, top: int) -> LogProbabilities:
        """Log-probabilities of the chosen and of the `top` likeliest tokens of each row."""
        return log_probabilities_reference(logits, token_ids, top)

    def write_slots(self, state: SlotState, pairs: np.ndarray) -> None:
        """Writes words of the slots' state: pairs (index, word), int32 [n, 2]."""
        write_slots_reference(state.words, pairs)

    def load_rows(
        self, slots: np.ndarray, state: SlotState, batch: Batch, block_size: int, residual_window: int = 0, pads: bool = True
    ) -> None:  # fmt: skip
        """Writes the arrays of a decode batch from its rows' slots."""
        load_rows_reference(slots, state, batch, block_size, pads)
        recent = batch.recent
        if recent is not None:
            found = window_of_rows(batch.positions, batch.context_lens, slots, residual_window)
            recent.slot_mapping[:], recent.context_lens[:], recent.block_tables[:] = found

    def advance(self, token_ids: np.ndarray, slots: np.ndarray, state: SlotState) -> None:
        """Appends one new token to the sequence of each slot."""
        advance_reference(token_ids, slots, state)


def expert_stack(linear: Linear, routing: Routing) -> np.ndarray:
    """The matrices of all experts as numbers, [experts, outputs, inputs]."""
    return linear.format.dequantize(linear.weight).reshape(routing.experts, -1, linear.shape[1])
