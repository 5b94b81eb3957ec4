"""The KV cache and attention on a GPU: plain caches, quantised ones, and those with a residual window."""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from minllm.kernels.attention.choice import choose, choose_quantized
from minllm.kernels.attention.common.workspace import make_workspace
from minllm.kernels.attention.variants import ARRAYS, QUANTIZED
from minllm.kernels.attention.variants import VARIANTS as ATTENTION_VARIANTS
from minllm.kernels.kv.copy_blocks import copy_blocks, copy_blocks_of_layers
from minllm.kernels.kv.qkv_rope_append import qkv_rope_append
from minllm.kernels.kv.quantize_groups import quantize_groups
from minllm.kernels.quantization.cache import is_quantized
from minllm.kernels.slots.local_blocks import local_blocks
from minllm.kernels.slots.write_slots import write_slots
from minllm.ops.batch import Array, AttentionConfig, Batch, LayerCache
from minllm.ops.cuda_base import CudaBase
from minllm.runtime.kernel import check


class CudaAttention(CudaBase):
    """Part of CudaOps."""

    def qkv_rope_append(
        self,
        qkv: Array,
        batch: Batch,
        layer_cache: LayerCache,
        attention_config: AttentionConfig,
        cos_sin: Array = None,
    ) -> Array:
        """Splits qkv, normalises and rotates queries and keys, writes the cache; returns the queries [T, heads, head_dim]."""
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

    def copy_blocks(self, cache: Array, copies: Array, to: Array = None) -> None:
        """Copies blocks within the cache, or from it to `to`: pairs (source, destination), int32 [P, 2]."""
        copy_blocks(cache, copies, self.stream, to)

    def copy_blocks_of_layers(self, caches: Array, copies: Array) -> None:
        """Copies blocks in every layer of caches [layers, num_blocks, ...]."""
        copy_blocks_of_layers(caches, copies, self.stream)

    def write_words(self, words: Array, pairs: Array) -> None:
        """words[index] = word for pairs (index, word), int32 [n, 2]."""
        write_slots(words, pairs, self.stream)

    def local_blocks(self, batch: Batch, local_of: Array, block_size: int) -> tuple[Array, Array]:
        """(slot_mapping, block_tables) of the batch with local blocks."""
        found = (self.empty(one.shape, np.int32) for one in (batch.slot_mapping, batch.block_tables))
        slot_mapping, block_tables = found
        local_blocks(
            batch.slot_mapping, batch.context_lens, batch.block_tables, local_of, block_size, slot_mapping, block_tables, self.stream
        )
        return slot_mapping, block_tables

    def quantize_groups(self, layer_cache: LayerCache, batch: Batch) -> None:
        """Writes codes of the groups of recent tokens that the batch has completed."""
        cache, recent = layer_cache.window(batch)
        quantize_groups(
            *cache.of(recent), layer_cache.key, layer_cache.value, batch.query_start, batch.context_lens, batch.block_tables,
            recent.context_lens, recent.block_tables, batch.max_query_len, self.stream,
        )  # fmt: skip

    def attention(self, query: Array, layer_cache: LayerCache, batch: Batch, attention_config: AttentionConfig) -> Array:
        """Causal attention over the cached context of each sequence: [T, heads * head_dim]."""
        if attention_config.soft_cap:
            return self._soft_capped_attention(query, layer_cache, batch, attention_config)
        if layer_cache.recent is not None:
            return self._attention_with_window(query, layer_cache, batch, attention_config)
        out = self.empty(query.shape, self.dtype)
        if batch.tree is not None:
            self._tree_attention(query, layer_cache, batch.verifications(), attention_config, out)
            if batch.num_verifications < batch.num_sequences:
                self._attention(query, layer_cache, batch.behind_verifications(), attention_config, out)
        elif batch.is_mixed:  # decodes and prompts have different kernels: "selective batching", Yu et al., "Orca", 2022, section 3.2
            decodes = batch.num_decodes
            self._attention(query[:decodes], layer_cache, batch.decodes(), attention_config, out[:decodes])
            self._attention(query, layer_cache, batch.prompts(), attention_config, out)
        else:
            self._attention(query, layer_cache, batch, attention_config, out)
        return out.reshape(query.shape[0], -1)

    def _attention(self, query: Array, layer_cache: LayerCache, batch: Batch, attention_config: AttentionConfig, out: Array) -> None:
        """Attention of sequences that all decode, or of other sequences, written to their rows of `out` [T, heads, head_dim]."""
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

    def _soft_capped_attention(self, query: Array, layer_cache: LayerCache, batch: Batch, attention_config: AttentionConfig) -> Array:
        """Attention with bounded scores: [T, heads * head_dim]. There is one variant, for plain caches and any number of new tokens."""
        plain = batch.tree is None and layer_cache.recent is None and not is_quantized(layer_cache.key)
        check(plain, "attention with a soft cap has kernels for plain caches without draft trees only")
        out = self.empty(query.shape, self.dtype)
        ATTENTION_VARIANTS["soft_capped"].attention(
            query, layer_cache.key, layer_cache.value, out, batch.query_start, batch.context_lens, batch.block_tables,
            attention_config.scale, attention_config.soft_cap, attention_config.sliding_window, batch.max_query_len, stream=self.stream,
        )  # fmt: skip
        return out.reshape(query.shape[0], -1)

    def _tree_attention(self, query: Array, layer_cache: LayerCache, batch: Batch, attention_config: AttentionConfig, out: Array) -> None:
        """Attention of verifications of a tree, written to their rows of `out`; there is only one variant for trees."""
        ATTENTION_VARIANTS["tree"].attention(
            query, layer_cache.key, layer_cache.value, out, batch.query_start, batch.context_lens, batch.block_tables, batch.tree,
            batch.first_node, attention_config.scale, attention_config.sliding_window, batch.max_query_len, stream=self.stream,
        )  # fmt: skip

    def _attention_with_window(self, query: Array, layer_cache: LayerCache, batch: Batch, attention_config: AttentionConfig) -> Array:
        """Attention over the codes of older tokens and the unquantised recent ones, merged: [T, heads * head_dim]."""
        from minllm.kernels.attention.residual_window import residual_window  # imported on first use, like all variants

        cache, recent = layer_cache.window(batch)
        keys, values = cache.of(recent)
        sizes = (query, layer_cache.key, batch.block_tables, keys, recent.block_tables, batch.max_query_len)
        workspace = make_workspace(residual_window.workspace_shapes(*sizes), self.empty, self._counts)
        out = self.empty(query.shape, self.dtype)
        residual_window.attention(
            query, layer_cache.key, layer_cache.value, keys, values, out=out, query_start=batch.query_start,
            context_lens=batch.context_lens, block_tables=batch.block_tables, recent_lens=recent.context_lens,
            recent_tables=recent.block_tables, scale=attention_config.scale, residual_window=cache.window,
            sliding_window=attention_config.sliding_window, max_query_len=batch.max_query_len, workspace=workspace, stream=self.stream,
        )  # fmt: skip
        return out.reshape(query.shape[0], -1)

    def _attention_variant(self, max_query_len: int, key_cache: Array) -> Any:
        """The requested module if it supports this cache and number of new tokens, else the fastest one for them on this GPU."""
        quantized, name = is_quantized(key_cache), self.variants.get("attention")
        asked = None if name is None else ATTENTION_VARIANTS.entries.get(name)
        if name is None or asked is None or asked.reads != (QUANTIZED if quantized else ARRAYS) or not asked.takes_rows(max_query_len):
            gpu = self.dtype, self.capability
            best = choose_quantized(max_query_len, key_cache, *gpu) if quantized else choose(max_query_len, *gpu)
            return ATTENTION_VARIANTS[best]
        return ATTENTION_VARIANTS[name]

    def _counts(self, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        """Counters for kernels, which leave them at zero: made once per shape, and shared by all calls on the stream."""
        if shape not in self.counts:
            self.counts[shape] = self.zeros(shape, dtype)
        return self.counts[shape]
