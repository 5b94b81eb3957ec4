"""A rank's operations on a GPU: their kernels in the simulator, on two ranks, against the whole vocabulary."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from minllm.kernels.all_reduce.peers import launch_together, simulated_peers
from minllm.kernels.all_reduce.sequence_parallel import SequenceMemory
from minllm.kernels.embedding.lookup import embedding_reference
from minllm.kernels.matmul.gemv.gemv import matmul_gemv
from minllm.kernels.normalization.rms_norm import rms_norm_reference
from minllm.ops.batch import Batch, NormWeights
from minllm.ops.cuda_ops import CudaOps
from minllm.ops.streams import NormedStream, OwnRows
from minllm.parallel.cuda_ranks import PipelineCudaOps, TensorParallelCudaOps
from minllm.parallel.grid import Grid
from minllm.parallel.peer_communicator import PeerCommunicator
from minllm.parallel.pipeline import LogitsElsewhere
from minllm.parallel.split_weights import SplitEmbedding, VocabularyPart
from minllm.parallel.tensor_parallel import SplitLogits
from minllm.runtime.array import DeviceArray
from minllm.weights.formats import plain_format
from minllm.weights.linear import Linear
from minllm.weights.shard import INPUTS, OUTPUTS, Shard
from tests.kernels.sampling.cases import tensors
from tests.parallel.in_threads import in_threads

RANKS, VOCAB, HIDDEN = 2, 37, 24


class TakingTurns:
    """A communicator of threads of which one at a time is in the simulator: the others wait, or communicate."""

    def __init__(self, communicator, turn):
        self.communicator, self.turn = communicator, turn
        self.rank, self.world_size = communicator.rank, communicator.world_size

    def __getattr__(self, name):
        def operation(*arguments):
            self.turn.release()
            try:
                getattr(self.communicator, name)(*arguments)
            finally:
                self.turn.acquire()

        return operation


class Together:
    """Runs what all ranks launch between them at once in the simulator, while none of them has its turn.

    sequences: the ranks' memories for rows that they divide; here partial sums reach their owners before the launch.
    """

    def __init__(self, turn, sequences=()):
        self.turn, self.launches, self.sequences = turn, {}, sequences
        self.barrier = threading.Barrier(RANKS, action=self.run, timeout=60)

    def run(self):
        for source, memory in enumerate(self.sequences):
            for rank, groups in enumerate(memory.partials.reshape(-1, RANKS, memory.group_bytes).swapaxes(0, 1)):
                self.sequences[rank].received[source][:] = groups.reshape(-1)
        launch_together([self.launches[rank] for rank in range(RANKS)])

    def of(self, rank):
        def launch(one):
            self.launches[rank] = one
            self.turn.release()
            try:
                self.barrier.wait()
            finally:
                self.turn.acquire()

        return launch


def simulated_sequences(groups, group_bytes):
    """Memories for `groups` groups of rows of each rank."""
    rows = tuple(np.zeros(RANKS * groups * group_bytes, np.uint8) for _ in range(RANKS))
    received = [tuple(np.zeros(groups * group_bytes, np.uint8) for _ in range(RANKS)) for _ in range(RANKS)]
    return [SequenceMemory(group_bytes, np.zeros(RANKS * groups * group_bytes, np.uint8), of_rank, rows) for of_rank in received]


def on_ranks(work, all_reduce="nccl", sequences=()):
    """What work(ops, rank) returns on each rank. all_reduce: with kernels between the ranks, if it is not "nccl"."""
    turn, peers = threading.Lock(), simulated_peers(RANKS, 4096)
    together = Together(turn, sequences)

    def run(rank):
        ops = TensorParallelCudaOps("float32", Grid(rank.rank, RANKS), VOCAB, HIDDEN, simulated=True)
        ops.communicator = TakingTurns(rank.host, turn)
        if all_reduce != "nccl":
            memory = sequences[rank.rank] if sequences else None
            ops.communicator = PeerCommunicator(
                ops.communicator, peers[rank.rank], all_reduce, together.of(rank.rank), sequence=memory
            )  # fmt: skip
        with turn:
            return work(ops, rank.rank)

    return in_threads(RANKS, run)


@pytest.fixture(scope="module")
def logits():
    return np.random.default_rng(3).normal(size=(3, VOCAB)).astype(np.float32)


def split(ops, logits, rank):
    part = VocabularyPart(VOCAB, rank, RANKS)
    return SplitLogits(ops, np.ascontiguousarray(part.of(logits.T).T), part)


def test_embedding():
    table = np.random.default_rng(0).normal(size=(VOCAB, HIDDEN)).astype(np.float32)
    ids = np.array([0, 36, 18, 19], np.int32)
    none = np.zeros(4, np.int32)
    batch = Batch(ids, none, none, none, none, none, none, 1, 1)

    def embed(ops, rank):
        part = VocabularyPart(VOCAB, rank, RANKS)
        return ops.embed(batch, SplitEmbedding(part.of(table), part))

    for found in on_ranks(embed):
        np.testing.assert_array_equal(found, embedding_reference(ids, table))


def test_greedy_tokens_and_whole_rows(logits):
    slots, greedy = np.arange(3, dtype=np.int32), tensors([dict(temperature=0.0)] * 3, VOCAB)

    def choose(ops, rank):
        own = split(ops, logits, rank)
        tokens = ops.sample(own, greedy, slots)
        assert own.gathered is None  # maxima cross, not logits
        return tokens, ops.to_host(own), own[1], own[1:].shape

    for tokens, gathered, row, shape in on_ranks(choose):
        np.testing.assert_array_equal(tokens, logits.argmax(axis=1))
        np.testing.assert_array_equal(gathered, logits)
        np.testing.assert_array_equal(row, logits[1])
        assert shape == (2, VOCAB)


@pytest.mark.parametrize("rows", [1, 3])
def test_partial_sums_are_added_to_the_residual_of_one_row_and_stay_apart_of_more(rows):
    random = np.random.default_rng(1)
    x, weight, residual = (random.normal(size=shape).astype(np.float32) for shape in ((rows, 16), (HIDDEN, 16), (rows, HIDDEN)))

    def multiply(ops, rank):
        own = slice(8 * rank, 8 * rank + 8)
        part = np.ascontiguousarray(weight[:, own])
        linear = Linear(part, None, plain_format("float32"), part.shape, Shard(INPUTS, rank, RANKS))
        return ops.linear_add(np.ascontiguousarray(x[:, own]), linear, residual)

    for out, kept in on_ranks(multiply):
        np.testing.assert_allclose(out, x @ weight.T + (residual if rows == 1 else 0), rtol=1e-5, atol=1e-5)
        assert kept is (None if rows == 1 else residual)


@pytest.mark.parametrize(
    ("all_reduce", "shape", "sends"),
    [
        ("by_size", (7, 16), True),
        ("by_size", (1, 6), True),
        ("low_latency", (8, 8), True),
        ("one_shot", (8, 8), False),
        ("nccl", (8, 8), False),
    ],
)
def test_a_gemv_of_one_row_sends_its_sums(all_reduce, shape, sends):
    """If low_latency is chosen; the bits are those of GEMV and all-reduce, and rank 0 adds bias and residual."""
    random = np.random.default_rng(7)
    (n, k), launched = shape, []
    x, weight, residual, bias = (random.normal(size=size).astype(np.float32) for size in ((1, 2 * k), (n, 2 * k), (1, n), n))

    def multiply(ops, rank):
        own = slice(k * rank, k * rank + k)
        part = np.ascontiguousarray(weight[:, own])
        linear = Linear(part, None if rank else bias, plain_format("float32"), part.shape, Shard(INPUTS, rank, RANKS))
        if isinstance(ops.communicator, PeerCommunicator):
            launch = ops.communicator._launch
            ops.communicator._launch = lambda one: (launched.append(one.kernel.__name__), launch(one))
        return [ops.linear_add(np.ascontiguousarray(x[:, own]), linear, residual) for _ in range(2)]

    terms = []
    for rank in range(RANKS):
        own, term = slice(k * rank, k * rank + k), np.empty((1, n), np.float32)
        matmul_gemv(*(np.ascontiguousarray(one[:, own]) for one in (x, weight)), term, None if rank else bias,
                    residual=None if rank else residual)  # fmt: skip
        terms.append(term)
    for found in on_ranks(multiply, all_reduce):
        for out, kept in found:
            assert kept is None
            np.testing.assert_array_equal(out, terms[0] + terms[1])
    names = {"gemv_send_kernel", "receive_sums_kernel"}
    assert names <= set(launched) if sends else not names & set(launched)


def test_a_gemv_of_quantised_weights_does_not_send(monkeypatch):
    form, x = plain_format("float32"), np.ones((1, 8), np.float32)
    monkeypatch.setitem(vars(form), "is_plain", False)

    def multiply(ops, rank):
        ops.communicator.gemv_all_reduce = None
        return ops.linear_add(x, Linear(np.ones((8, 8), np.float32), None, form, (8, 8), Shard(INPUTS, rank, RANKS)), x)[0]

    for found in on_ranks(multiply, "by_size"):
        np.testing.assert_array_equal(found, 2 * 8 * x + x)


@pytest.mark.parametrize(("all_reduce", "is_fused"), [("by_size", True), ("one_shot", True), ("two_shot", False)])
def test_a_feed_forward_of_a_few_rows_ends_with_the_next_norm(all_reduce, is_fused):
    """In the kernel that adds up the partial sums, if there is one; the stream and its norm are those of the whole model."""
    random = np.random.default_rng(2)
    x, residual, norm, next_norm = (random.normal(size=shape).astype(np.float32) for shape in ((3, HIDDEN), (3, HIDDEN), HIDDEN, HIDDEN))
    gate, up, down = (random.normal(size=shape).astype(np.float32) for shape in ((16, HIDDEN), (16, HIDDEN), (HIDDEN, 16)))

    def feed_forward(ops, rank):
        own, norms = slice(8 * rank, 8 * rank + 8), [NormWeights("rms_norm", one, None, 1e-5) for one in (norm, next_norm)]
        gate_up, to_hidden = np.concatenate([gate[own], up[own]]), np.ascontiguousarray(down[:, own])
        columns = Linear(gate_up, None, plain_format("float32"), gate_up.shape, Shard(OUTPUTS, rank, RANKS))
        rows = Linear(to_hidden, None, plain_format("float32"), to_hidden.shape, Shard(INPUTS, rank, RANKS))
        stream = ops.normed_gated_mlp(x.copy(), residual.copy(), norms[0], columns, rows, activation="silu", next_norm=norms[1])
        return isinstance(stream[0], NormedStream), *ops.add_norm(*stream, norms[1])

    normalised, stream = rms_norm_reference(x, norm, 1e-5, residual)
    gated = normalised @ gate.T
    stream = stream + (gated / (1 + np.exp(-gated)) * (normalised @ up.T)) @ down.T
    found = on_ranks(feed_forward, all_reduce)
    for fused, out, kept in found:
        assert fused == is_fused
        np.testing.assert_allclose(kept, stream, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(out, rms_norm_reference(stream, next_norm, 1e-5)[0], rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(out, found[0][1])


@pytest.mark.parametrize("rows", [6, 7, 12])
def test_ranks_divide_many_rows_and_have_all_after_the_last_layer(rows):
    """An output projection, norm and feed-forward: only the first result is normalised, and each rank keeps its own rows' residual."""
    random = np.random.default_rng(5)
    x, residual, norm = (random.normal(size=shape).astype(np.float32) for shape in ((rows, 16), (rows, HIDDEN), HIDDEN))
    shapes = (HIDDEN, 16), (16, HIDDEN), (16, HIDDEN), (HIDDEN, 16)
    output, gate, up, down = (random.normal(size=shape).astype(np.float32) for shape in shapes)

    def layer(ops, rank):
        own, next_norm = slice(8 * rank, 8 * rank + 8), NormWeights("rms_norm", norm, None, 1e-5)
        parts = [np.ascontiguousarray(part) for part in (output[:, own], np.concatenate([gate[own], up[own]]), down[:, own])]
        axes = INPUTS, OUTPUTS, INPUTS
        linears = [
            Linear(part, None, plain_format("float32"), part.shape, Shard(axis, rank, RANKS)) for part, axis in zip(parts, axes)
        ]  # fmt: skip
        stream, nothing = ops.linear_add(np.ascontiguousarray(x[:, own]), linears[0], residual.copy(), next_norm)
        normalised = stream.normalised.copy()
        whole = ops.normed_gated_mlp(stream, nothing, next_norm, *linears[1:], activation="silu")
        return isinstance(stream.stream, OwnRows), normalised, *whole

    stream = residual + x @ output.T
    normalised = rms_norm_reference(stream, norm, 1e-5)[0]
    gated = normalised @ gate.T
    stream = stream + (gated / (1 + np.exp(-gated)) * (normalised @ up.T)) @ down.T
    found = on_ranks(layer, "by_size", simulated_sequences(2, 3 * 4 * HIDDEN))
    for divided, of_rank, whole, rest in found:
        assert divided and rest is None
        np.testing.assert_allclose(of_rank, normalised, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(whole, stream, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(whole, found[0][2])


@pytest.mark.parametrize("rows", [1, 3])
def test_a_stage_of_one_rank_adds_as_one_gpu_and_sends_the_stream(rows):
    random, sent = np.random.default_rng(4), []
    x, weight, residual = (random.normal(size=shape).astype(np.float32) for shape in ((rows, 16), (HIDDEN, 16), (rows, HIDDEN)))
    linear = Linear(weight, None, plain_format("float32"), weight.shape, Shard(INPUTS, 0, 1))
    norm = NormWeights("rms_norm", np.ones(HIDDEN, np.float32), None, 1e-5)
    first = PipelineCudaOps("float32", Grid(1, 1, 2), VOCAB, HIDDEN, simulated=True)
    first.world = SimpleNamespace(send=lambda array, rank: sent.append((array.copy(), rank)))
    alone = CudaOps("float32", simulated=True)
    found, wanted = (ops.linear_add(x, linear, residual.copy()) for ops in (first, alone))
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert isinstance(first.logits(*found, norm, None, None), LogitsElsewhere)
    ((total, rank),) = sent
    np.testing.assert_allclose(total, x.astype(np.float64) @ weight.T + residual, rtol=1e-5, atol=1e-5)
    assert rank == 0 and (found[1] is None) == (rows == 1)


def test_copies_of_logits_stay_split_and_those_of_other_stages_are_none():
    ops = PipelineCudaOps("float32", Grid(0, RANKS, 2), VOCAB, HIDDEN, simulated=True)
    own, part = np.ones((3, 19), np.float32), VocabularyPart(VOCAB, 0, RANKS)
    copied, elsewhere = ops.copied(SplitLogits(ops, own, part)), LogitsElsewhere(3, VOCAB)
    own[:] = 2
    assert (copied.own == 1).all() and copied.shape == (3, VOCAB)
    assert ops.copied(elsewhere) is elsewhere is elsewhere.without_owner()


def test_logits_in_the_memory_of_a_graph_stay_split_and_own_no_block():
    block, part = object(), VocabularyPart(VOCAB, 0, RANKS)
    own, gathered = (DeviceArray(4096, (3, columns), np.float32, block, None) for columns in (part.size, VOCAB))
    split_view = SplitLogits(None, own, part).without_owner()
    assert split_view.shape == (3, VOCAB) and split_view.own.block is None and split_view.gathered is None
    whole_view = SplitLogits(None, own, part, gathered).without_owner()
    assert whole_view.gathered.block is None and whole_view.gathered.shape == (3, VOCAB)
