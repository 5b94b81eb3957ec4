"""The larger operations of a layer, composed of smaller ones, for machines that do not fuse them.

A layer adds to the residual stream, which is carried as a pair (x, residual): the stream is their sum, or x alone if residual is None. A
machine that fuses these operations returns either form.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minllm.ops.batch import Array, AttentionConfig, Batch, LayerCache, NormWeights, Routing
from minllm.ops.protocol import Ops
from minllm.weights.format import WeightFormat
from minllm.weights.linear import Linear


class ComposedOps(Ops):
    """Part of an implementation of `ops.protocol.Ops`; arguments as there."""

    def uploads(self) -> Any:
        """A context for making many weights; does nothing here."""
        return contextlib.nullcontext()

    def stacked_weight(self, parts: Sequence[np.ndarray]) -> Any:
        """The weight of the matrices stacked by rows."""
        return self.weight(parts[0] if len(parts) == 1 else np.concatenate(parts))

    def encoded(self, weight_format: WeightFormat, parts: Sequence[np.ndarray]) -> Any:
        """The weight of the matrices stacked by rows, in a quantised format."""
        return weight_format.place(self, weight_format.encode(parts[0] if len(parts) == 1 else np.concatenate(parts)))

    def append_with_window(self, write: Callable, batch: Batch, layer_cache: LayerCache) -> Any:
        """Write new keys and values as codes and as recent tokens; returns the queries.

        write(key_cache, value_cache, slot_mapping, recent): the cache write itself, which returns the queries; recent: the argument
        of that name of `qkv_rope_append_reference`.
        """
        cache, recent = layer_cache.window(batch)
        arrays = cache.of(recent)
        if recent.loads is not None:
            for ring, scratch in zip(cache.rings, cache.scratch, strict=True):
                self.copy_blocks(ring, recent.loads, scratch)
        if layer_cache.key.by_channel:  # a group becomes codes once it is complete
            query = write(*arrays, recent.slot_mapping, None)
            self.quantize_groups(layer_cache, batch)
        else:
            query = write(layer_cache.key, layer_cache.value, batch.slot_mapping, (*arrays, recent.slot_mapping))
        if recent.stores is not None:
            for scratch, ring in zip(cache.scratch, cache.rings, strict=True):
                self.copy_blocks(scratch, recent.stores, ring)
        return query

    def normed_rows(self, x: Array, residual: Array, norm: NormWeights, linear: Linear) -> tuple[Array, Array]:
        """(rows for `linear`, residual): the rows are the norm of x + residual; a machine may quantise them for the linear's format."""
        return self.add_norm(x, residual, norm)

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
        """Norm, projection, rotation and cache write, as separate operations."""
        normalised, residual = self.normed_rows(x, residual, norm, qkv)
        projected = self.linear(normalised, qkv)  # [T, (heads + 2 * kv_heads) * head_dim]
        return self.qkv_rope_append(projected, batch, layer_cache, attention_config, cos_sin), residual

    def linear_add(self, x: Array, linear: Linear, residual: Array, next_norm: NormWeights | None = None) -> tuple[Array, Array]:
        """(linear(x), residual): the next normalisation adds them."""
        return self.linear(x, linear), residual

    def normed_gated_mlp(
        self, x: Array, residual: Array, norm: NormWeights, gate_up: Linear, down: Linear, *, activation: str,
        next_norm: NormWeights | None = None,
    ) -> tuple[Array, Array]:  # fmt: skip
        """Norm and feed-forward, as separate operations."""
        normalised, residual = self.normed_rows(x, residual, norm, gate_up)
        return self.gated_mlp(normalised, gate_up, down, activation), residual

    def normed_experts(
        self, x: Array, residual: Array, norm: NormWeights, router: Array, gate_up: Linear, down: Linear, routing: Routing,
        next_norm: NormWeights | None = None,
    ) -> tuple[Array, Array]:  # fmt: skip
        """Norm and experts, as separate operations."""
        normalised, residual = self.add_norm(x, residual, norm)
        return self.experts(normalised, router, gate_up, down, routing), residual
