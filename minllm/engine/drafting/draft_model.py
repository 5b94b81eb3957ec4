"""Drafts from a small model with the same vocabulary.

The draft model's cache uses the model's block tables: it has as many blocks, and the cache's policy assigns both. It computes every batch
that the model computes, so both caches hold the same tokens after any event of a sequence: found prefixes, forks, preemption, rejected
drafts, and a run accepted as a whole, whose last draft must have its key cached before the token after it is computed.

    a step of the model    [newest, draft 1 .. draft k] of each sequence, and chunks of prompts
    the same rows here     keys and values alone
    k rows, one by one     newest → draft 1 → draft 2 → .. draft k

Drafts are sampled by the request's own parameters with separate random numbers, and their distributions are kept for acceptance
(kernels/speculation/rejection.py); or they are the likeliest tokens, which accept.py compares with the sampler's.
"""

from typing import Any

import numpy as np

from minllm.cache.block_pool import blocks_needed
from minllm.cache.kv_cache import KVCache
from minllm.engine.running.machine import Machine
from minllm.engine.running.speculator import Chosen
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.kernels.slots.state import SlotState
from minllm.kernels.speculation.state import DraftState
from minllm.models.decoder import forward, hidden_states
from minllm.models.model import Model
from minllm.ops.batch import Array, Batch
from minllm.ops.protocol import Ops

SALT = 0x9E3779B9  # 2^32 / golden ratio; gives drafts other random numbers than the sampler's


class DraftModel:
    """A DraftSource. cache: has as many blocks as the model's. draws: whether drafts are sampled; False takes the likeliest tokens."""

    reads_history, reads_room = False, True

    def __init__(self, ops: Ops, model: Model, cache: KVCache, draws: bool = True):
        self.ops, self.model, self.cache, self.draws = ops, model, cache, draws
        self._starts: dict[tuple[int, int], Any] = {}  # (sequences, rows per sequence) -> query_start

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        """See DraftSource."""
        self.cache.copy_blocks(self.ops, copies)

    def enter(self, slot: int, token_ids: list[int], drafts: DraftState, machine: Machine) -> None:
        """See DraftSource."""

    def compute_keys(self, batch: Batch) -> None:
        """See DraftSource."""
        hidden_states(self.ops, self.model, batch, self.cache.layers)

    def propose(self, slots: Array, batch: Batch, state: SlotState, drafts: DraftState, kind: SamplingKind, chosen: Chosen) -> None:
        """See DraftSource."""
        ops = self.ops
        self.compute_keys(batch)
        runs = ops.run_slots(slots, batch.num_runs)
        for index in range(drafts.drafts.shape[1]):
            rows = self._rows(batch, runs.shape[0], state, drafts.drafts.shape[1])
            ops.load_spans(runs, state, drafts, rows, self.cache.block_size, index, batch.room)
            logits = forward(ops, self.model, rows, self.cache.layers)
            self._choose(logits, runs, index, state, drafts, kind if self.draws else SamplingKind.GREEDY)

    def _choose(self, logits: Array, runs: Array, index: int, state: SlotState, drafts: DraftState, kind: SamplingKind) -> None:
        """Sample draft number `index` of each run from its logits [runs, vocab], or take the likeliest token."""
        ops = self.ops
        if kind is SamplingKind.GREEDY:
            ops.store_drafts(ops.sample(logits, state.sampling.of_kind(kind), runs), runs, index, drafts)
            return
        sampling, row_slots = ops.row_sampling(runs, state, drafts, kind, index, SALT)
        log_q = ops.distribution(logits, sampling, row_slots)
        ops.store_drafts(ops.sample(logits, sampling, row_slots), runs, index, drafts, log_q)

    def _rows(self, batch: Batch, count: int, state: SlotState, num_drafts: int, each: int = 1) -> Batch:
        """A batch of `count` runs of `each` rows; `Ops.load_spans` writes its arrays."""
        size, width, rows = self.cache.block_size, state.block_tables.shape[1], count * each
        context = min(batch.max_context_len + num_drafts, width * size)
        if (count, each) not in self._starts:
            self._starts[count, each] = self.ops.array(each * np.arange(count + 1, dtype=np.int32))
        starts, empty = self._starts[count, each], self.ops.empty
        token_ids, positions, slot_mapping = (empty((rows,), np.int32) for _ in range(3))
        tables = empty((count, blocks_needed(context, size)), np.int32)
        return Batch(
            token_ids, positions, slot_mapping, starts, empty((count,), np.int32), tables, starts[:count],
            max_query_len=each, max_context_len=context, num_decodes=count,
        )  # fmt: skip
