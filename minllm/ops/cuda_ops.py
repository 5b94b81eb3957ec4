"""The forward's operations as kernels: the engine on a GPU or, slowly, in the simulator.

Every operation allocates its result from the pool, chooses a variant by shape, and launches on one stream; the host never waits.
`kernel_variants` overrides the choice by name, for lessons and measurements: {"matmul": "tiled", "attention": "flash_attention_1"};
a launcher instead of a name is a kernel of your own (own_kernels.py).

One liberty with the protocol: `add_norm` adds into the residual that it is given, in place, because the decoder never looks at
the old one again; it saves an allocation and a write per layer. And if one sequence decodes alone, or some do, norms, residual and the way
to the cache are part of the GEMVs and flat GEMMs (`normed_qkv`, `linear_add`, `normed_gated_mlp`); between flat GEMMs the stream is a
DeferredNorm. The format of a Linear says which kernels multiply by it, and which of these fusions it has (weights/format.py).
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from minllm.errors import KernelArgumentError
from minllm.kernels.activation.gelu import gelu
from minllm.kernels.activation.silu import silu_and_multiply
from minllm.kernels.attention.choice import choose, choose_quantized
from minllm.kernels.attention.common.workspace import make_workspace
from minllm.kernels.attention.variants import ARRAYS, QUANTIZED
from minllm.kernels.attention.variants import VARIANTS as ATTENTION_VARIANTS
from minllm.kernels.embedding.lookup import embedding as look_up
from minllm.kernels.kv.copy_blocks import copy_blocks, copy_blocks_of_layers
from minllm.kernels.kv.move_window import move_window
from minllm.kernels.kv.qkv_rope_append import qkv_rope_append
from minllm.kernels.kv.quantize_groups import quantize_groups
from minllm.kernels.matmul.flat.deferred_norm import DeferredNorm
from minllm.kernels.matmul.variants import VARIANTS as MATMUL_VARIANTS
from minllm.kernels.normalization.layer_norm import layer_norm
from minllm.kernels.normalization.rms_norm import rms_norm
from minllm.kernels.quantization.cache import is_quantized
from minllm.kernels.sampling.log_probabilities import LogProbabilities, LogProbabilitiesScratch, log_probabilities
from minllm.kernels.sampling.sample import SampleScratch, sample
from minllm.kernels.sampling.tensors import SamplingTensors
from minllm.kernels.slots.advance import advance
from minllm.kernels.slots.load_rows import load_rows
from minllm.kernels.slots.state import SlotState
from minllm.kernels.slots.write_slots import write_slots
from minllm.ops.composed import ComposedOps
from minllm.ops.own_kernels import own_kernels
from minllm.ops.protocol import AttentionConfig, Batch, LayerCache, NormWeights
from minllm.runtime.device import HOPPER
from minllm.weights.linear import Linear

DTYPES = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
MOST_ROWS_FUSED = 1  # the most rows of x for a GEMV with its norm and residual
GELU_APPROXIMATIONS = {"gelu": "none", "gelu_tanh": "tanh"}


class CudaOps(ComposedOps):
    """Implements `ops.protocol.Ops`; every array is a DeviceArray (in the simulator a NumPy array)."""

    def __init__(
        self, dtype: Any = "bfloat16", kernel_variants: Mapping[str, Any] | None = None, simulated: bool = False,
        allocation: str | None = None, pinned: bool = True,
    ):  # fmt: skip
        """dtype: of weights, activations and the KV cache. simulated: run the kernels in the simulator, on NumPy arrays, without a GPU.
        allocation: how device memory is allocated, see runtime/memory.py. pinned: whether results are read through page-locked memory.
        """
        found = DTYPES.get(dtype) if isinstance(dtype, str) else np.dtype(dtype)
        if found not in DTYPES.values():
            raise KernelArgumentError(f"CudaOps computes in {', '.join(DTYPES)}, not in {dtype}.")
        self.dtype, self.pinned = found, pinned
        self.own = own_kernels(kernel_variants or {})
        self.variants = check_variants({stage: name for stage, name in (kernel_variants or {}).items() if stage not in self.own})
        self.memory, self.core_stream, self.stream, self.capability = None, None, None, None
        self.counts: dict[tuple[int, ...], Any] = {}
        self.uploader: Any = None  # while many weights are made
        if not simulated:
            from minllm.runtime.device import current_device
            from minllm.runtime.memory import device_memory
            from minllm.runtime.stream import compute_stream, stream_handle

            self.memory, self.core_stream = device_memory(allocation), compute_stream()
            self.capability = current_device().compute_capability
            self.stream = stream_handle(self.core_stream)

    # Arrays

    def array(self, host_array: np.ndarray) -> Any:
        """A copy on the device."""
        host = np.ascontiguousarray(host_array)
        return host.copy() if self.memory is None else self.memory.array(host)

    def to_host(self, array: Any) -> np.ndarray:
        """A NumPy copy; waits for the kernels launched before."""
        return array.copy() if self.memory is None else array.copy_to_host()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array with unspecified contents."""
        return np.empty(shape, dtype) if self.memory is None else self.memory.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array of zeros."""
        return np.zeros(shape, dtype) if self.memory is None else self.memory.zeros(shape, dtype)

    def weight(self, host_array: np.ndarray, dtype: Any = None) -> Any:
        """A copy on the device, C-contiguous, rounded to `dtype` (by default the activations')."""
        dtype = self.dtype if dtype is None else dtype
        return self.array(host_array.astype(dtype, copy=False)) if self.uploader is None else self._upload([host_array], dtype)

    @contextlib.contextmanager
    def uploads(self) -> Iterator[None]:
        """A context within which weights are copied through page-locked buffers."""
        if self.memory is None:
            yield
            return
        from minllm.runtime.upload import Uploader

        with Uploader(self.core_stream) as self.uploader:
            try:
                yield
            finally:
                self.uploader = None

    def stacked_weight(self, parts: Sequence[np.ndarray]) -> Any:
        """The weight of the matrices' rows, one after the other."""
        return super().stacked_weight(parts) if self.uploader is None else self._upload(parts, self.dtype)

    def _upload(self, parts: Sequence[np.ndarray], dtype: Any) -> Any:
        """An array of the parts' rows, each copied to its place."""
        array, first = self.empty((sum(map(len, parts)), *parts[0].shape[1:]), dtype), 0
        for part in parts:
            self.uploader.copy(array[first : first + len(part)], part)
            first += len(part)
        return array

    def device_memory(self) -> tuple[int, int]:
        """(free, total) bytes of the GPU; memory that the pool has cached counts as free."""
        self.memory.trim()
        return self.memory.memory.info()

    # Operations

    def embed(self, batch: Batch, embedding: Any, position_embedding: Any = None) -> Any:
        """Rows of the embedding, plus those of the positions: [T, hidden]."""
        out = self.empty((batch.token_ids.shape[0], embedding.shape[1]), self.dtype)
        positions = None if position_embedding is None else batch.positions
        look_up(batch.token_ids, embedding, out, positions=positions, position_embedding=position_embedding, stream=self.stream)
        return out

    def add_norm(self, x: Any, residual: Any, norm: NormWeights) -> tuple[Any, Any]:
        """(normalised, residual) of x + residual: [T, hidden] both; a residual that is given is overwritten."""
        out = self.empty(x.shape, self.dtype)
        if isinstance(x, DeferredNorm):
            x, residual = x.stream, None
        if norm.kind == "layer_norm":
            layer_norm(x, norm.weight, norm.bias, out=out, epsilon=norm.epsilon, residual=residual, stream=self.stream)
        else:
            self._launcher("rms_norm", rms_norm)(x, norm.weight, out, norm.epsilon, residual, self.stream)
        return out, x if residual is None else residual

    def linear(self, x: Any, linear: Linear) -> Any:
        """x @ weight.T + bias: [T, out]."""
        return self._matmul(x, linear, self.dtype)

    def qkv_rope_append(
        self,
        qkv: Any,
        batch: Batch,
        layer_cache: LayerCache,
        attention_config: AttentionConfig,
        cos_sin: Any = None,
    ) -> Any:
        """Splits qkv, normalises and rotates queries and keys, writes keys and values to the cache: queries [T, heads, head_dim]."""
        config = attention_config
        query = self.empty((qkv.shape[0], config.heads, config.head_dim), self.dtype)

        def write(key_cache, value_cache, slot_mapping, recent):
            qkv_rope_append(
                qkv, batch.positions, slot_mapping, key_cache=key_cache, value_cache=value_cache, query=query, cos_sin=cos_sin,
                interleaved=config.interleaved, q_norm=config.q_norm, k_norm=config.k_norm, epsilon=config.epsilon, recent=recent,
                stream=self.stream,
            )  # fmt: skip
            return query

        if layer_cache.recent is None:
            return write(layer_cache.key, layer_cache.value, batch.slot_mapping, None)
        return self.append_with_window(write, batch, layer_cache)

    def copy_blocks(self, cache: Any, copies: Any, to: Any = None) -> None:
        """Copies blocks of the cache to others, or to those of `to`: pairs (source, destination), int32 [P, 2]."""
        copy_blocks(cache, copies, self.stream, to)

    def quantize_groups(self, layer_cache: LayerCache, batch: Batch) -> None:
        """Codes of the groups of recent tokens that the batch has completed."""
        quantize_groups(
            *layer_cache.recent.of(batch), key_cache=layer_cache.key, value_cache=layer_cache.value, query_start=batch.query_start,
            context_lens=batch.context_lens, block_tables=batch.block_tables, recent_lens=batch.recent.context_lens,
            recent_tables=batch.recent.block_tables, max_query_len=batch.max_query_len, stream=self.stream,
        )  # fmt: skip

    def copy_blocks_of_layers(self, caches: Any, copies: Any) -> None:
        """The same in every layer of caches [layers, num_blocks, ...]."""
        copy_blocks_of_layers(caches, copies, self.stream)

    def attention(self, query: Any, layer_cache: LayerCache, batch: Batch, attention_config: AttentionConfig) -> Any:
        """Causal attention over the cached context of each sequence: [T, heads * head_dim]."""
        if layer_cache.recent is not None:
            return self._attention_with_window(query, layer_cache, batch, attention_config)
        out = self.empty(query.shape, self.dtype)
        if batch.is_mixed:  # each has its own kernel: "selective batching", Yu et al., "Orca", 2022, section 3.2
            decodes = batch.num_decodes
            self._attention(query[:decodes], layer_cache, batch.decodes(), attention_config, out[:decodes])
            self._attention(query, layer_cache, batch.prompts(), attention_config, out)
        else:
            self._attention(query, layer_cache, batch, attention_config, out)
        return out.reshape(query.shape[0], -1)

    def _attention(self, query: Any, layer_cache: LayerCache, batch: Batch, attention_config: AttentionConfig, out: Any) -> None:
        """Attention of sequences that all decode, or of any others, into their rows of `out` [T, heads, head_dim]."""
        variant = self._attention_variant(batch.max_query_len, layer_cache.key)
        own = self.own.get("attention")
        launch_attention = variant.attention
        if own is not None and own.takes(batch.max_query_len):
            variant, launch_attention = own, own.launch
        shapes = variant.workspace_shapes(query, layer_cache.key, batch.block_tables)
        workspace = make_workspace(shapes, self.empty, self._counts)
        launch_attention(
            query, layer_cache.key, layer_cache.value, out, batch.query_start, batch.context_lens, batch.block_tables,
            attention_config.scale, attention_config.sliding_window, batch.max_query_len, workspace, self.stream,
        )  # fmt: skip

    def _attention_with_window(self, query: Any, layer_cache: LayerCache, batch: Batch, attention_config: AttentionConfig) -> Any:
        """Codes of the older tokens and recent ones as they are, merged: [T, heads * head_dim]."""
        from minllm.kernels.attention.residual_window import residual_window  # imported on first use, as all variants are

        recent_caches, tables = layer_cache.recent.of(batch), (batch.recent.context_lens, batch.recent.block_tables)
        sizes = (query, layer_cache.key, batch.block_tables, recent_caches[0], tables[1], batch.max_query_len)
        workspace = make_workspace(residual_window.workspace_shapes(*sizes), self.empty, self._counts)
        out = self.empty(query.shape, self.dtype)
        residual_window.attention(
            query, layer_cache.key, layer_cache.value, *recent_caches, out=out, query_start=batch.query_start,
            context_lens=batch.context_lens, block_tables=batch.block_tables, recent_lens=tables[0], recent_tables=tables[1],
            scale=attention_config.scale, residual_window=layer_cache.recent.window, sliding_window=attention_config.sliding_window,
            max_query_len=batch.max_query_len, workspace=workspace, stream=self.stream,
        )  # fmt: skip
        return out.reshape(query.shape[0], -1)

    def gated_mlp(self, x: Any, gate_up: Linear, down: Linear, activation: str) -> Any:
        """down(silu(gate(x)) * up(x)): [T, hidden]."""
        if activation != "silu":
            raise KernelArgumentError(f"a gated feed-forward takes the activation silu, not {activation}")
        activated = self.empty((x.shape[0], gate_up.shape[0] // 2), self.dtype)
        launch_gated = self._gated_launcher(x, gate_up)
        if launch_gated is not None:
            launch_gated(x, gate_up.weight, activated, self.stream)
        else:
            both = self.linear(x, gate_up)  # [T, 2 * intermediate]
            self._launcher("silu_and_multiply", silu_and_multiply)(both, activated, self.stream)
        return self.linear(activated, down)

    def mlp(self, x: Any, up: Linear, down: Linear, activation: str) -> Any:
        """down(gelu(up(x))): [T, hidden]."""
        if activation not in GELU_APPROXIMATIONS:
            raise KernelArgumentError(f"a feed-forward without a gate takes {' or '.join(GELU_APPROXIMATIONS)}, not {activation}")
        hidden = self.linear(x, up)  # [T, intermediate]
        gelu(hidden, hidden, GELU_APPROXIMATIONS[activation], self.stream)
        return self.linear(hidden, down)

    # A decode step fuses all that is small with the GEMVs or flat GEMMs beside it: five kernels per layer.

    def _fuses(self, x: Any, residual: Any, launcher: Any, norm: NormWeights | None = None) -> bool:
        """Whether a GEMV of x runs with a norm in front and the residual behind it; the residual stream is then a single array.

        launcher: what the format has for that, or None.
        """
        asked = self.variants.get("matmul", "gemv") == "gemv" and not {"matmul", "rms_norm", "silu_and_multiply"} & self.own.keys()
        one_stream = x.shape[0] <= MOST_ROWS_FUSED and residual is None
        return asked and one_stream and launcher is not None and (norm is None or norm.kind == "rms_norm")

    def _stream_kernels(self, x: Any, linear: Linear) -> Any:
        """What the linear's format has for the stream of several sequences, if it suits x, which may be a DeferredNorm; else None."""
        kernels, x = linear.format.kernels.stream, x.scaled if isinstance(x, DeferredNorm) else x
        if kernels is None or self.capability != HOPPER or {"matmul", "rms_norm", "silu_and_multiply"} & self.own.keys():
            return None
        return kernels if kernels.fits(x, linear.weight) and self._matmul_variant(x, linear) == "flat" else None

    def normed_qkv(
        self,
        x: Any,
        residual: Any,
        norm: NormWeights,
        qkv: Linear,
        *,
        batch: Batch,
        layer_cache: LayerCache,
        attention_config: AttentionConfig,
        cos_sin: Any = None,
    ) -> tuple[Any, Any]:
        """(queries, residual): norm, projection, rotation and cache write, in one kernel if x is one row or a DeferredNorm."""
        config, launcher = attention_config, qkv.format.kernels.normed_qkv
        halves = cos_sin is not None and cos_sin.shape[1] == config.head_dim and not config.interleaved
        slots, caches, recent = batch.slot_mapping, (layer_cache.key, layer_cache.value), layer_cache.recent
        if recent is not None and batch.recent.stores is None and layer_cache.key.by_channel:
            slots, caches = batch.recent.slot_mapping, recent.rings  # plain caches: a group becomes codes once it is complete
        plain = config.q_norm is None and getattr(caches[0], "dtype", None) == self.dtype
        kernels = self._stream_kernels(x, qkv) if halves and plain and recent is None and config.head_dim % 64 == 0 else None
        if kernels is not None:
            rows, residual = (x, x.stream) if isinstance(x, DeferredNorm) else self.add_norm(x, residual, norm)
            query = self.empty((x.shape[0], config.heads, config.head_dim), self.dtype)
            kernels.qkv_rope_append(rows, qkv.weight, qkv.bias, batch.positions, slots, cos_sin, query, *caches, self.stream)
            return query, residual
        if not (self._fuses(x, residual, launcher, norm) and halves and plain):
            return super().normed_qkv(
                x, residual, norm, qkv, batch=batch, layer_cache=layer_cache, attention_config=config, cos_sin=cos_sin
            )
        query = self.empty((x.shape[0], config.heads, config.head_dim), self.dtype)
        launcher(
            x, norm.weight, norm.epsilon, qkv.weight, qkv.bias, batch.positions, slots, cos_sin, query, *caches, self.stream,
        )  # fmt: skip
        if recent is not None:
            self.quantize_groups(layer_cache, batch)
        return query, x

    def linear_add(self, x: Any, linear: Linear, residual: Any, next_norm: NormWeights | None = None) -> tuple[Any, Any]:
        """The linear of x and the residual; if x is one row, their sum and None; if it is some rows, a DeferredNorm and None."""
        kernels = self._stream_kernels(x, linear) if next_norm is not None and next_norm.kind == "rms_norm" else None
        if kernels is not None:
            norm = (next_norm.weight, next_norm.epsilon)
            return kernels.linear_add(x, linear.weight, linear.bias, residual, *norm, self.empty, self.stream), None
        launcher = linear.format.kernels.normed_linear
        if not self._fuses(x, None, launcher):
            return super().linear_add(x, linear, residual)
        out = self.empty(residual.shape, self.dtype)
        launcher(x, linear.weight, out, linear.bias, self.stream, residual=residual)
        return out, None

    def normed_gated_mlp(
        self, x: Any, residual: Any, norm: NormWeights, gate_up: Linear, down: Linear, *, activation: str,
        next_norm: NormWeights | None = None,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Norm and feed-forward: in two kernels if x is one row or a DeferredNorm."""
        kernels = self._stream_kernels(x, gate_up) if isinstance(x, DeferredNorm) and gate_up.bias is None else None
        if kernels is not None and activation == "silu":
            activated = self.empty((x.shape[0], gate_up.shape[0] // 2), self.dtype)
            kernels.gated(x, gate_up.weight, activated, self.stream)
            return self.linear_add(activated, down, x.stream, next_norm)
        launcher = gate_up.format.kernels.normed_gated
        if not (self._fuses(x, residual, launcher, norm) and activation == "silu" and gate_up.bias is None):
            return super().normed_gated_mlp(x, residual, norm, gate_up, down, activation=activation)
        activated = self.empty((x.shape[0], gate_up.shape[0] // 2), self.dtype)
        launcher(x, gate_up.weight, activated, self.stream, norm=norm.weight, epsilon=norm.epsilon)
        return self.linear_add(activated, down, x)

    def logits(self, x: Any, residual: Any, norm: NormWeights, lm_head: Linear, rows: Any) -> Any:
        """The head's scores of the wanted rows, or of all: float32 [R, vocab]."""
        launcher = lm_head.format.kernels.normed_linear
        if rows is None and self._fuses(x, residual, launcher, norm):
            out = self.empty((x.shape[0], lm_head.shape[0]), np.float32)
            launcher(x, lm_head.weight, out, None, self.stream, norm=norm.weight, epsilon=norm.epsilon)
            return out
        if isinstance(x, DeferredNorm):
            x = x.stream
        if rows is not None:
            x, residual = self._rows(x, rows), None if residual is None else self._rows(residual, rows)
        normalised, _ = self.add_norm(x, residual, norm)
        return self._matmul(normalised, lm_head, np.dtype(np.float32))

    def sample(self, logits: Any, sampling: SamplingTensors, slots: Any) -> Any:
        """One token per row: int32 [R]."""
        rows, vocab = logits.shape
        out = self.empty((rows,), np.int32)
        sample(logits, sampling, slots, out, SampleScratch.allocate(self.empty, rows, vocab, sampling.kind), self.stream)
        return out

    def log_probabilities(self, logits: Any, token_ids: Any, top: int) -> LogProbabilities:
        """Log-probabilities of the chosen and of the `top` likeliest tokens of each row."""
        rows, vocab = logits.shape
        top = min(top, vocab)
        out, scratch = LogProbabilities.allocate(self.empty, rows, top), LogProbabilitiesScratch.allocate(self.empty, rows, vocab, top)
        log_probabilities(logits, token_ids, out, scratch, self.stream)
        return out

    def write_slots(self, state: SlotState, pairs: Any) -> None:
        """Writes words of the slots' state: pairs (index, word), int32 [n, 2]."""
        write_slots(state.words, pairs, self.stream)

    def load_rows(
        self, slots: Any, state: SlotState, batch: Batch, block_size: int, residual_window: int = 0, pads: bool = True
    ) -> None:  # fmt: skip
        """Writes the arrays of a decode batch from its rows' slots."""
        load_rows(slots, state, batch, block_size, pads, self.stream)
        if residual_window:
            recent = (batch.recent.slot_mapping, batch.recent.context_lens, batch.recent.block_tables)
            move_window(batch.positions, batch.context_lens, slots, *recent, residual_window, self.stream)

    def advance(self, token_ids: Any, slots: Any, state: SlotState) -> None:
        """Appends one new token to the sequence of each slot."""
        advance(token_ids, slots, state, self.stream)

    def _counts(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Zeros that kernels count in and leave as zeros: made once, used by all calls on the stream."""
        if shape not in self.counts:
            self.counts[shape] = self.zeros(shape, dtype)
        return self.counts[shape]

    def _rows(self, x: Any, rows: Any) -> Any:
        """x[rows]: looking rows up is what an embedding does."""
        out = self.empty((rows.shape[0], x.shape[1]), x.dtype)
        look_up(rows, x, out, stream=self.stream)
        return out

    def _launcher(self, stage: str, launcher: Any) -> Any:
        """A stage's launcher: the package's, or the one that was given instead."""
        return self.own[stage].launch if stage in self.own else launcher

    def _attention_variant(self, max_query_len: int, key_cache: Any) -> Any:
        """The module that was asked for if it takes this cache and this number of new tokens, else the fastest one for them on this GPU."""
        quantized, name = is_quantized(key_cache), self.variants.get("attention")
        asked = ATTENTION_VARIANTS.entries.get(name)
        if asked is None or asked.reads != (QUANTIZED if quantized else ARRAYS) or not asked.takes_rows(max_query_len):
            best = choose_quantized(max_query_len, key_cache) if quantized else choose(max_query_len, self.dtype, self.capability)
            return ATTENTION_VARIANTS[best]
        return ATTENTION_VARIANTS[name]

    def _matmul(self, x: Any, linear: Linear, out_dtype: np.dtype) -> Any:
        out = self.empty((x.shape[0], linear.shape[0]), out_dtype)
        own = self.own.get("matmul")
        if own is not None and linear.format.is_plain and own.takes(x.shape[0]):
            own.launch(x, linear.weight, out, linear.bias, self.stream)
            return out
        kernels, variant = linear.format.kernels, self._matmul_variant(x, linear)
        if variant in kernels.activations:
            x = kernels.activations[variant](x, self.empty, self.stream)
        if variant in kernels.workspaces:
            workspace = kernels.workspaces[variant](x, linear.weight, self.empty)
            kernels.variants[variant](x, linear.weight, out, linear.bias, self.stream, workspace=workspace)
        else:
            kernels.variants[variant](x, linear.weight, out, linear.bias, self.stream)
        return out

    def _gated_launcher(self, x: Any, gate_up: Linear) -> Any:
        """What multiplies by gate and up and joins both in one kernel; None if the format has nothing for these arrays."""
        kernels = gate_up.format.kernels
        if kernels.gated is None or gate_up.bias is not None or {"matmul", "silu_and_multiply"} & self.own.keys():
            return None
        return kernels.gated(self._matmul_variant(x, gate_up), x, gate_up.weight)

    def _matmul_variant(self, x: Any, linear: Linear) -> str:
        """The GEMM that was asked for if the format has it and it takes this number of rows, else the one for this shape on this GPU."""
        kernels, name = linear.format.kernels, self.variants.get("matmul")
        if name not in kernels.variants or x.shape[0] > kernels.most_rows.get(name, x.shape[0]):
            return kernels.choose(x, linear.weight)
        return name


def check_variants(variants: Mapping[str, str]) -> dict[str, str]:
    """The overrides, once every stage and name in them is known; else KernelArgumentError."""
    attention = [*ATTENTION_VARIANTS.names(), *ATTENTION_VARIANTS.names(QUANTIZED)]
    known = {"matmul": MATMUL_VARIANTS.names(), "attention": attention}
    for stage, name in variants.items():
        if stage not in known:
            raise KernelArgumentError(f"kernel_variants names the stage {stage!r}; it may name {' and '.join(known)}")
        if name not in known[stage]:
            raise KernelArgumentError(f"there is no {stage} kernel {name!r}; there are {', '.join(known[stage])}")
    return dict(variants)
