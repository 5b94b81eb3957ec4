"""Context parallelism: ranks with the same KV head each cache a share of every context, and merge their attention states.

    block table entry b of a sequence      N * S tokens, S per rank: rank 0's block b, rank 1's block b, ..
    token p                                on rank (p // S) % N, in its block table[p // (N * S)], at offset p % S

S is the cache's block_size and N the number of ranks: shares are interleaved by block, so all ranks have about the same number of tokens
of any context. A table, its blocks and the scheduler that assigns them are the same on all ranks; only slots and lengths differ
(`ContextShare`). So the N ranks cache N times as many tokens in the same memory; tensor parallelism alone keeps N copies of one KV head.

    qkv_rope_append   every rank has the KV head of all new tokens, and writes its own share                  no communication
    attention         all queries; all-gather                                                                 [T, heads, head_dim]
                      each rank's state (m, l, o) of all heads over its share; all-gather; merge              [T, N * heads, head_dim + 2]

States are merged as for the splits of a long context on one GPU (kernels/attention/common/online_softmax.py), in the order of ranks, so a
merged state has the same bits on every rank. The projections before and after stay tensor-parallel. cuda_context_parallel.py does the same
on GPUs. Name: vLLM's decode_context_parallel_size.

Source: Ye et al. 2025, "FlashInfer", section 2.2 (states); Liu et al. 2023, "Ring Attention", for the same sums around a ring.
"""

from dataclasses import replace
from functools import reduce

import numpy as np

from minllm.costs.parallel import copies_of_a_kv_head
from minllm.errors import InvalidOptionError
from minllm.kernels.attention.common.online_softmax import merge_reference, state_reference
from minllm.kernels.attention.reference import QUERY_CHUNK, gather_context
from minllm.kernels.attention.shared_context.share import ContextShare
from minllm.models.config import ModelConfig
from minllm.ops.batch import AttentionConfig, Batch, LayerCache
from minllm.parallel.communicator import Communicator
from minllm.parallel.pipeline import PipelineNumpyOps
from minllm.parallel.tensor_parallel import TensorParallelNumpyOps
from minllm.runtime.array_protocol import Array


class ContextParallelNumpy:
    """The operations of a CPU rank that change if ranks share contexts; a mixin in front of the others."""

    def share_contexts(self, context: Communicator, block_size: int) -> None:
        """Must be called before the first forward. context: a communicator of the ranks that hold the same KV head."""
        self.context, self.share = context, ContextShare(context.rank, context.world_size, block_size)

    def qkv_rope_append(
        self, qkv: np.ndarray, batch: Batch, layer_cache: LayerCache, attention_config: AttentionConfig, cos_sin: Array | None = None
    ) -> np.ndarray:
        """Splits qkv, normalises and rotates queries and keys, writes the rank's share; returns queries [T, heads, head_dim]."""
        own = replace(batch, slot_mapping=self.share.slots(batch.slot_mapping))
        return super().qkv_rope_append(qkv, own, layer_cache, attention_config, cos_sin)

    def attention(self, query: np.ndarray, layer_cache: LayerCache, batch: Batch, attention_config: AttentionConfig) -> np.ndarray:
        """Causal attention of the rank's heads over the whole context of each sequence: [T, heads * head_dim]."""
        tokens, heads, head_dim = query.shape
        all_queries = _all_gathered(self.context, query)  # [ranks, T, heads, head_dim]
        queries = np.ascontiguousarray(all_queries.swapaxes(0, 1)).reshape(tokens, -1, head_dim)  # [T, ranks * heads, head_dim]
        seen = np.where(_of_rows(batch.context_lens, batch) > 0, batch.positions + 1, 0)
        caches = layer_cache.key, layer_cache.value
        state = state_of_share(queries, *caches, batch.query_start, self.share.lengths(seen), batch.block_tables, attention_config.scale)
        packed = np.concatenate([state[2], state[0][..., None], state[1][..., None]], axis=-1)  # [T, ranks * heads, head_dim + 2]
        own = _all_gathered(self.context, packed)[:, :, self.context.rank * heads : (self.context.rank + 1) * heads]
        _, total, out = reduce(merge_reference, [(one[..., -2], one[..., -1], one[..., :-2]) for one in own])
        out = out / np.where(total == 0, 1, total)[..., None]  # padding rows have no keys
        return out.astype(query.dtype).reshape(tokens, -1)


class ContextParallelNumpyOps(ContextParallelNumpy, TensorParallelNumpyOps):
    """A rank of the CPU engine."""


class ContextParallelPipelineNumpyOps(ContextParallelNumpy, PipelineNumpyOps):
    """A rank of a stage of the CPU engine."""


def state_of_share(query, key_cache, value_cache, query_start, visible, block_tables, scale):
    """The states (m, l [T, heads], o [T, heads, head_dim]) of attention over a rank's share of each context, float32, to base e.

    query [T, heads, head_dim]; caches [num_blocks, block_size, 1, head_dim]; query_start int32 [B + 1]; visible int32 [T]: the number of
    leading keys of its sequence's share to which each row attends; block_tables int32 [B, blocks].
    """
    tokens, heads, head_dim = query.shape
    maximum, total = np.full((tokens, heads), -np.inf, np.float32), np.zeros((tokens, heads), np.float32)
    out = np.zeros(query.shape, np.float32)
    for sequence, (start, stop) in enumerate(zip(query_start[:-1].tolist(), query_start[1:].tolist(), strict=True)):
        for first in range(start, stop, QUERY_CHUNK):
            rows = slice(first, min(first + QUERY_CHUNK, stop))
            count = int(visible[rows].max())
            if count == 0:
                continue
            keys, values = (gather_context(cache, block_tables[sequence], 0, count)[:, 0] for cache in (key_cache, value_cache))
            keys, values = keys.astype(np.float32), values.astype(np.float32)
            scores = np.float32(scale) * (query[rows].astype(np.float32) @ keys.T)  # [rows, heads, keys]
            scores[np.broadcast_to((np.arange(count) >= visible[rows, None])[:, None], scores.shape)] = -np.inf
            maximum[rows], total[rows], out[rows] = state_reference(scores, values)
    return maximum, total, out


def check_context_ranks(config: ModelConfig, tensor: int, context: int) -> None:
    """Raise InvalidOptionError unless groups of `context` ranks hold the same KV head, and no layer has a sliding window."""
    copies = copies_of_a_kv_head(config, tensor)
    if copies % context:
        allowed = ", ".join(str(one) for one in range(1, copies + 1) if copies % one == 0)
        raise InvalidOptionError(
            f"decode_context_parallel_size={context} is not allowed: with tensor_parallel_size={tensor} each of this model's "
            f"{config.num_key_value_heads} KV heads is on {copies} rank{'s' * (copies > 1)}, which can share its contexts: take one of "
            f"{allowed}, or more tensor ranks."
        )
    if any(config.sliding_windows):
        raise InvalidOptionError(f"decode_context_parallel_size={context} is not allowed with this model: its layers have sliding windows.")


def _all_gathered(communicator: Communicator, array: np.ndarray) -> np.ndarray:
    """All ranks' arrays, [ranks, ...]."""
    out = np.empty((communicator.world_size, *array.shape), array.dtype)
    communicator.all_gather(np.ascontiguousarray(array), out)
    return out


def _of_rows(of_sequences: np.ndarray, batch: Batch) -> np.ndarray:
    """Values per sequence [B], repeated for each row [T]."""
    return np.repeat(of_sequences, np.diff(batch.query_start))
