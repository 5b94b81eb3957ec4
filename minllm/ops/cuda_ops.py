"""The forward's operations as kernels: the engine on a GPU or, slowly, in the simulator.

Every operation allocates its result from the pool, chooses a variant by shape, and launches on one stream; the host never waits.
`kernel_variants` overrides the choice by name, for lessons and measurements: {"matmul": "tiled", "attention": "flash_attention_1"};
a launcher in place of a name is a kernel of your own (own_kernels.py).

    cuda_base.py         arrays and the stream
    cuda_linear.py       linear layers and feed-forwards
    cuda_experts.py      mixtures of experts
    cuda_attention.py    the KV cache and attention
    cuda_sampling.py     the next tokens, and the slots of running sequences
    here                 embedding and norms; the fused operations of a decode step

One deviation from the protocol: `add_norm` adds to the given residual in place, because the decoder never reads the old one again; this
saves an allocation and a write per layer. If one sequence or a few decode, norms, residual addition and cache write are fused into the
GEMVs and flat GEMMs (`normed_qkv`, `linear_add`, `normed_gated_mlp`): five kernels per layer. Between flat GEMMs the stream is a
DeferredNorm, and after a sum of experts a NormedStream. The format of a Linear provides these fusions (weights/format.py).
"""

import numpy as np

from minllm.kernels.elementwise.in_place import scale as launch_scale
from minllm.kernels.elementwise.in_place import soft_cap as launch_soft_cap
from minllm.kernels.embedding.lookup import embedding as look_up
from minllm.kernels.kv.append_pair import why_not
from minllm.kernels.matmul.flat.deferred_norm import DeferredNorm
from minllm.kernels.normalization.layer_norm import layer_norm
from minllm.kernels.normalization.rms_norm import rms_norm
from minllm.ops.batch import Array, AttentionConfig, Batch, LayerCache, NormWeights
from minllm.ops.cuda_attention import CudaAttention
from minllm.ops.cuda_experts import CudaExperts
from minllm.ops.cuda_sampling import CudaSampling
from minllm.ops.cuda_speculation import CudaSpeculation
from minllm.ops.streams import NormedStream
from minllm.runtime.device import HOPPER
from minllm.weights.format import StreamKernels
from minllm.weights.linear import Linear


class CudaOps(CudaExperts, CudaAttention, CudaSampling, CudaSpeculation):
    """Implements `ops.protocol.Ops`; every array is a DeviceArray (in the simulator a NumPy array)."""

    def embed(self, batch: Batch, embedding: Array, position_embedding: Array = None, scale: float = 1.0) -> Array:
        """Rows of the embedding, plus those of the positions, times `scale`: [T, hidden]."""
        out = self.empty((batch.token_ids.shape[0], embedding.shape[1]), self.dtype)
        positions = None if position_embedding is None else batch.positions
        look_up(batch.token_ids, embedding, out, positions=positions, position_embedding=position_embedding, stream=self.stream)
        return self.scaled(out, scale)

    def scaled(self, x: Array, factor: float) -> Array:
        """x, multiplied in place by a factor that is rounded to the activations' dtype."""
        if factor != 1.0:
            launch_scale(x, factor, self.stream)
        return x

    def add_norm(self, x: Array, residual: Array, norm: NormWeights) -> tuple[Array, Array]:
        """(normalised, residual) of x + residual: [T, hidden] both; a given residual is overwritten."""
        if isinstance(x, NormedStream):
            return x.normalised, x.stream
        out = self.empty(x.shape, self.dtype)
        if isinstance(x, DeferredNorm):
            x, residual = x.stream, None
        if norm.kind == "layer_norm":
            layer_norm(x, norm.weight, norm.bias, out=out, epsilon=norm.epsilon, residual=residual, stream=self.stream)
        else:
            self._launcher("rms_norm", rms_norm)(x, norm.weight, out, norm.epsilon, residual, self.stream)
        return out, x if residual is None else residual

    def normed_rows(self, x: Array, residual: Array, norm: NormWeights, linear: Linear) -> tuple[Array, Array]:
        """(rows, residual) as in add_norm; the norm's kernel writes QuantizedRows if the linear's variant multiplies codes."""
        begun = isinstance(x, (DeferredNorm, NormedStream))
        if begun or norm.kind != "rms_norm" or {"matmul", "rms_norm"} & self.own.keys():
            return self.add_norm(x, residual, norm)
        quantise = linear.format.kernels.normed_activations.get(self._matmul_variant(x, linear))
        if quantise is None:
            return self.add_norm(x, residual, norm)
        return quantise(x, norm.weight, self.empty, norm.epsilon, residual, self.stream), x if residual is None else residual

    def normed_qkv(
        self,
        x: Array,
        residual: Array,
        norm: NormWeights,
        qkv: Linear,
        *,
        batch: Batch,
        layer_cache: LayerCache,
        attention_config: AttentionConfig,
        cos_sin: Array = None,
    ) -> tuple[Array, Array]:
        """(queries, residual): norm, projection, rotation and cache write, in one kernel if x is one row or a DeferredNorm."""
        config = attention_config
        pairs = cos_sin is not None and cos_sin.shape[1] == config.head_dim and not config.interleaved and config.q_norm is None
        slots, caches, recent = batch.slot_mapping, (layer_cache.key, layer_cache.value), layer_cache.recent
        if recent is not None and batch.recent is not None and batch.recent.stores is None and layer_cache.key.by_channel:
            slots, caches = batch.recent.slot_mapping, recent.rings  # the rings are plain: a group becomes codes once it is complete
        plain = getattr(caches[0], "dtype", None) == self.dtype
        kernels = self._stream_kernels(x, qkv) if pairs and plain and recent is None and config.head_dim % 64 == 0 else None
        if kernels is not None:
            rows, residual = (x, x.stream) if isinstance(x, DeferredNorm) else self.add_norm(x, residual, norm)
            query = self.empty((x.shape[0], config.heads, config.head_dim), self.dtype)
            kernels.qkv_rope_append(rows, qkv.weight, qkv.bias, batch.positions, slots, cos_sin, query, *caches, self.stream)
            return query, residual
        appends = pairs and (plain or recent is None) and why_not(caches[0], self.dtype) is None
        whole = self._fused(qkv.format.kernels.normed_qkv, x, residual, qkv, norm) if appends else None
        normed_linear = self._fused(qkv.format.kernels.normed_linear, x, residual, qkv, norm) if whole is None else None
        if normed_linear is not None:  # a head's norm or scales need all of its components
            projected = self.empty((x.shape[0], qkv.shape[0]), self.dtype)
            normed_linear(x, qkv.weight, projected, qkv.bias, self.stream, norm=norm.weight, epsilon=norm.epsilon)
            return self.qkv_rope_append(projected, batch, layer_cache, config, cos_sin), x
        if whole is None:
            return super().normed_qkv(
                x, residual, norm, qkv, batch=batch, layer_cache=layer_cache, attention_config=config, cos_sin=cos_sin
            )
        query = self.empty((x.shape[0], config.heads, config.head_dim), self.dtype)
        whole(
            x, norm.weight, norm.epsilon, qkv.weight, qkv.bias, batch.positions, slots, cos_sin, query, *caches, self.stream,
        )  # fmt: skip
        if recent is not None:
            self.quantize_groups(layer_cache, batch)
        return query, x

    def linear_add(self, x: Array, linear: Linear, residual: Array, next_norm: NormWeights | None = None) -> tuple[Array, Array]:
        """(linear(x), residual); for one row of x (their sum, None); for the few rows of a flat GEMM (a DeferredNorm, None)."""
        if next_norm is not None and next_norm.kind == "rms_norm" and (kernels := self._stream_kernels(x, linear)) is not None:
            norm = (next_norm.weight, next_norm.epsilon)
            return kernels.linear_add(x, linear.weight, linear.bias, residual, *norm, self.empty, self.stream), None
        launcher = self._fused(linear.format.kernels.normed_linear, x, None, linear)
        if launcher is None:
            return super().linear_add(x, linear, residual)
        out = self.empty(residual.shape, self.dtype)
        launcher(x, linear.weight, out, linear.bias, self.stream, residual=residual)
        return out, None

    def normed_gated_mlp(
        self, x: Array, residual: Array, norm: NormWeights, gate_up: Linear, down: Linear, *, activation: str,
        next_norm: NormWeights | None = None,
    ) -> tuple[Array, Array]:  # fmt: skip
        """Norm and feed-forward: in two kernels if x is one row or a DeferredNorm."""
        kernels = self._stream_kernels(x, gate_up) if isinstance(x, DeferredNorm) and gate_up.bias is None else None
        if kernels is not None and activation == "silu":
            activated = self.empty((x.shape[0], gate_up.shape[0] // 2), self.dtype)
            kernels.gated(x, gate_up.weight, activated, self.stream)
            return self.linear_add(activated, down, x.stream, next_norm)
        launcher = self._fused(gate_up.format.kernels.normed_gated, x, residual, gate_up, norm)
        if launcher is None or activation != "silu" or gate_up.bias is not None:
            return super().normed_gated_mlp(x, residual, norm, gate_up, down, activation=activation)
        activated = self.empty((x.shape[0], gate_up.shape[0] // 2), self.dtype)
        launcher(x, gate_up.weight, activated, self.stream, norm=norm.weight, epsilon=norm.epsilon)
        return self.linear_add(activated, down, x)

    def logits(self, x: Array, residual: Array, norm: NormWeights, lm_head: Linear, rows: Array, soft_cap: float = 0.0) -> Array:
        """The logits of `rows`, or of all rows: float32 [R, vocab]."""
        logits = self._uncapped_logits(x, residual, norm, lm_head, rows)
        if soft_cap:
            launch_soft_cap(logits, soft_cap, self.stream)
        return logits

    def _uncapped_logits(self, x: Array, residual: Array, norm: NormWeights, lm_head: Linear, rows: Array) -> Array:
        launcher = self._fused(lm_head.format.kernels.normed_linear, x, residual, lm_head, norm)
        if rows is None and launcher is not None:
            out = self.empty((x.shape[0], lm_head.shape[0]), np.float32)
            launcher(x, lm_head.weight, out, None, self.stream, norm=norm.weight, epsilon=norm.epsilon)
            return out
        if isinstance(x, DeferredNorm):
            x = x.stream
        if rows is not None:
            x, residual = self._rows(x, rows), None if residual is None else self._rows(residual, rows)
        normalised, _ = self.add_norm(x, residual, norm)
        return self._matmul(normalised, lm_head, np.dtype(np.float32))

    def _stream_kernels(self, x: Array, linear: Linear) -> StreamKernels | None:
        """The StreamKernels of the linear's format if they support x, which may be a DeferredNorm or a NormedStream; else None."""
        kernels = linear.format.kernels.stream
        x = x.scaled if isinstance(x, DeferredNorm) else x.normalised if isinstance(x, NormedStream) else x
        if kernels is None or self.capability != HOPPER or {"matmul", "rms_norm", "silu_and_multiply"} & self.own.keys():
            return None
        return kernels if kernels.fits(x, linear.weight) and self._matmul_variant(x, linear) == "flat" else None

    def _rows(self, x: Array, rows: Array) -> Array:
        """x[rows], by the embedding kernel."""
        out = self.empty((rows.shape[0], x.shape[1]), x.dtype)
        look_up(rows, x, out, stream=self.stream)
        return out
