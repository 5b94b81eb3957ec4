"""Ranks of GPUs that share contexts: their kernels in the simulator, on two ranks, against attention over whole contexts."""

import threading

import ml_dtypes
import numpy as np
import pytest

from minllm.kernels.all_reduce.peers import simulated_peers
from minllm.kernels.attention.reference import attention_reference
from minllm.ops.batch import AttentionConfig, Batch, LayerCache, NormWeights
from minllm.parallel.cuda_context_parallel import ContextParallelCudaOps
from minllm.parallel.grid import Grid
from minllm.parallel.peer_communicator import PeerCommunicator
from minllm.weights.formats import plain_format
from minllm.weights.linear import Linear
from minllm.weights.shard import OUTPUTS, Shard
from tests.parallel.in_threads import in_threads
from tests.parallel.test_cuda_ranks import TakingTurns, Together

RANKS, BLOCK_SIZE, HEADS, HEAD_DIM, BLOCKS, HIDDEN = 2, 4, 2, 16, 12, 24
BATCHES = {  # (new tokens, tokens in the cache before them) of each sequence; those that decode come first
    "decodes": [(1, 0), (1, 3), (1, 20), (1, 4)],
    "both": [(1, 9), (1, 1), (6, 5), (3, 0)],
}


def batch_of(sequences):
    """(Batch, block tables) of sequences whose blocks are in no order; the last row of slots is padding."""
    new, before = (np.array(one, np.int32) for one in zip(*sequences))
    lengths, entry = new + before, RANKS * BLOCK_SIZE
    tables = np.random.default_rng(1).permutation(BLOCKS).reshape(len(sequences), -1).astype(np.int32)
    positions = np.concatenate([np.arange(first, last) for first, last in zip(before, lengths)]).astype(np.int32)
    rows = np.repeat(np.arange(len(sequences)), new)
    slots = tables[rows, positions // entry] * entry + positions % entry
    starts = np.concatenate([[0], np.cumsum(new)]).astype(np.int32)
    decodes = int((new == 1).sum())
    return Batch(
        positions, positions, slots.astype(np.int32), starts, lengths, tables, starts[1:] - 1, int(new.max()), int(lengths.max()),
        num_decodes=decodes,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "has_peers"), [(name, True) for name in BATCHES] + [("both", False)])
def test_attention_is_that_over_whole_contexts_on_every_rank(name, has_peers, dtype):
    """Each rank has its own heads of one KV head; each token of the batch is written on one rank."""
    batch, random, kind = batch_of(BATCHES[name]), np.random.default_rng(0), np.dtype(getattr(ml_dtypes, dtype, dtype))
    entry, config, outputs = RANKS * BLOCK_SIZE, AttentionConfig(HEADS, 1, HEAD_DIM, 0.3), HEADS * HEAD_DIM
    caches = random.normal(size=(2, BLOCKS, entry, 1, HEAD_DIM)).astype(kind)
    x, weights = (
        random.normal(size=(len(batch.positions), HIDDEN)).astype(kind),
        random.normal(size=(RANKS, outputs + 2 * HEAD_DIM, HIDDEN)),
    )
    weights[1:, outputs:] = weights[0, outputs:]  # the ranks have the same keys and values
    turn, peers = threading.Lock(), simulated_peers(RANKS, 8192)
    together = Together(turn)

    def work(rank):
        ops = ContextParallelCudaOps(dtype, Grid(rank.rank, RANKS), 8, HIDDEN, simulated=True)
        context = TakingTurns(rank.host, turn)
        if has_peers:
            context = PeerCommunicator(context, peers[rank.rank], "by_size", together.of(rank.rank))
        ops.share_contexts(context, BLOCK_SIZE)
        own = LayerCache(*(np.ascontiguousarray(cache[:, rank.rank * BLOCK_SIZE :][:, :BLOCK_SIZE]) for cache in caches))
        weight = weights[rank.rank].astype(kind)
        qkv = Linear(weight, None, plain_format(dtype), weight.shape, Shard(OUTPUTS, rank.rank, RANKS))
        norm = NormWeights("rms_norm", np.ones(HIDDEN, kind), None, 1e-5)
        with turn:
            query, _ = ops.normed_qkv(x, x * 0, norm, qkv, batch=batch, layer_cache=own, attention_config=config)
            return query, ops.attention(query, own, batch, config), own

    results = in_threads(RANKS, work)
    assert [int(own.own.counters[0]) for own in peers] == [2 * has_peers] * RANKS  # launches between peers
    before = [cache.reshape(-1, HEAD_DIM).copy() for cache in caches]
    whole = [np.concatenate([getattr(own, which) for _, _, own in results], axis=1) for which in ("key", "value")]
    for old, new in zip(before, whole):
        changed = np.flatnonzero((old != new.reshape(-1, HEAD_DIM)).any(axis=1))
        assert changed.tolist() == sorted(batch.slot_mapping)
    for query, out, _ in results:
        arrays = (array.astype(np.float64) for array in (query, *whole))
        wanted = attention_reference(*arrays, batch.query_start, batch.context_lens, batch.block_tables, config.scale)
        error = 1e-5 if dtype == "float32" else 0.03
        np.testing.assert_allclose(out.astype(np.float64).reshape(wanted.shape), wanted, atol=error * np.abs(wanted).max())
