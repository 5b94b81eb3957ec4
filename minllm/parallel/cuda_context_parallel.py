"""Context parallelism on GPUs: the operations of context_parallel.py as kernels, and two all-gathers per layer.

    normed_qkv   the cache is written at the rank's slots, which a kernel computes with the lengths of its shares, once per forward
    attention    gather_queries; attention over the share, with the log-sum-exp of every row: split_tensor_core for decode steps in 16 bits,
                 else flash_attention_2; merge_of_peers

What is too large for the memory of peers, such as a long chunk of a prompt, and ranks without peers, take the library's all-gathers and the
kernels join_parts and merge_ranks. Everything is launched on the rank's stream, so steps are captured as graphs. A rank's outputs are
rounded to the cache's dtype before they are merged, as in merge_states.py.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from minllm.kernels.all_reduce.peers import Peers, RankLaunch
from minllm.kernels.attention.common.workspace import make_workspace
from minllm.kernels.attention.shared_context.exchange import gather_queries, merge_of_peers
from minllm.kernels.attention.shared_context.merge_ranks import StateArrays, merge_ranks
from minllm.kernels.attention.shared_context.share import ContextShare, share_of_rank
from minllm.kernels.attention.variants import VARIANTS
from minllm.kernels.split_vocabulary.join import join_parts
from minllm.ops.batch import AttentionConfig, Batch, LayerCache
from minllm.parallel.communicator import Communicator
from minllm.parallel.cuda_ranks import PipelineCudaOps, TensorParallelCudaOps
from minllm.parallel.peer_communicator import PeerCommunicator
from minllm.runtime.array_protocol import Array


class ContextParallelCuda:
    """The operations of a GPU's rank that change if ranks share contexts; a mixin in front of the others."""

    own_batch: tuple[Batch, Batch] | None = None  # a batch, and this rank's slots and lengths of it

    def share_contexts(self, context: Communicator, block_size: int) -> None:
        """Must be called before the first forward. context: a communicator of the ranks that hold the same KV head."""
        self.context, self.share = context, ContextShare(context.rank, context.world_size, block_size)

    def normed_qkv(self, *arguments: Any, batch: Batch, **options: Any) -> tuple[Any, Any]:
        """(queries, residual); keys and values are written to the rank's share."""
        own = replace(batch, slot_mapping=self._own(batch).slot_mapping)
        return super().normed_qkv(*arguments, batch=own, **options)

    def attention(self, query: Array, layer_cache: LayerCache, batch: Batch, attention_config: AttentionConfig) -> Any:
        """Causal attention of the rank's heads over the whole context of each sequence: [T, heads * head_dim]."""
        tokens, heads, head_dim = query.shape
        queries = self._queries_of_ranks(query)
        states = StateArrays.allocate(self.empty, *queries.shape, self.dtype)
        own, scale = self._own(batch), attention_config.scale
        if batch.is_mixed:
            decodes = batch.num_decodes
            self._states(queries[:decodes], layer_cache, batch.decodes(), own.decodes(), scale, states.out[:decodes], states.lse[:decodes])
            self._states(queries, layer_cache, batch.prompts(), own.prompts(), scale, states.out, states.lse)
        else:
            self._states(queries, layer_cache, batch, own, scale, states.out, states.lse)
        out = self.empty(query.shape, self.dtype)
        if not self._between_peers(lambda peers: merge_of_peers(states.out, states.lse, out, peers)):
            gathered = self.empty((self.share.ranks, *states.words.shape), np.float32)
            self.context.all_gather(states.words, gathered)
            merge_ranks(gathered, self.share.rank, out, self.stream)
        return out.reshape(tokens, heads * head_dim)

    def logits(self, *arguments: Any, **options: Any) -> Any:
        """The logits, which end a forward."""
        self.own_batch = None
        return super().logits(*arguments, **options)

    def _own(self, batch: Batch) -> Batch:
        """The batch with the rank's slots, and with the lengths of its shares as context_lens."""
        if self.own_batch is None or self.own_batch[0] is not batch:
            slots, lengths = (self.empty(one.shape, np.int32) for one in (batch.slot_mapping, batch.context_lens))
            share_of_rank(batch.slot_mapping, batch.context_lens, self.share, slots, lengths, self.stream)
            self.own_batch = batch, replace(batch, slot_mapping=slots, context_lens=lengths)
        return self.own_batch[1]

    def _queries_of_ranks(self, query: Array) -> Any:
        """The queries of all ranks' heads: [T, ranks * heads, head_dim]."""
        tokens, heads, head_dim = query.shape
        out = self.empty((tokens, self.share.ranks * heads, head_dim), self.dtype)
        if self._between_peers(lambda peers: gather_queries(query, out, peers)):
            return out
        words = query.reshape(tokens, heads * head_dim).view(np.float32)  # join_parts copies bits
        gathered = self.empty((self.share.ranks, *words.shape), np.float32)
        self.context.all_gather(words, gathered)
        join_parts(gathered, out.reshape(tokens, -1).view(np.float32), self.stream)
        return out

    def _between_peers(self, make: Callable[[Peers], RankLaunch]) -> bool:
        """Launch a kernel between the ranks; False if they have no common memory, or too little."""
        return isinstance(self.context, PeerCommunicator) and self.context.launched(lambda peers: [make(peers)])

    def _states(self, queries: Array, cache: LayerCache, whole: Batch, own: Batch, scale: float, out: Array, lse: Array) -> None:
        """Attention over the rank's share, and its log-sum-exps, of sequences that all decode, or of others. whole: with all keys."""
        arrays, rest = (queries, cache.key, cache.value, out), (whole.block_tables, scale, 0, whole.max_query_len)
        if whole.max_query_len > 1 or self.dtype == np.float32:
            VARIANTS["flash_attention_2"].attention(
                *arrays, whole.query_start, whole.context_lens, *rest, stream=self.stream, lse=lse, share=self.share
            )
            return
        variant = VARIANTS["split_tensor_core"]
        workspace = make_workspace(variant.workspace_shapes(queries, cache.key, whole.block_tables), self.empty, self._counts)
        variant.attention(*arrays, own.query_start, own.context_lens, *rest, workspace, self.stream, lse=lse)


class ContextParallelCudaOps(ContextParallelCuda, TensorParallelCudaOps):
    """A rank of the GPU engine."""


class ContextParallelPipelineCudaOps(ContextParallelCuda, PipelineCudaOps):
    """A rank of a stage of the GPU engine."""
