"""Rows for the all-reduces: odd sizes around vectors, chunks and blocks, and what is checked of each, in the simulator and on GPUs."""

from dataclasses import dataclass

import numpy as np

from minllm.kernels.all_reduce import VARIANTS
from minllm.kernels.all_reduce import gemv_low_latency as sending
from minllm.kernels.all_reduce.fused_norm import FUSABLE, fused_norm
from minllm.kernels.all_reduce.low_latency import low_latency
from minllm.kernels.all_reduce.peers import launch_together, simulated_peers
from minllm.kernels.all_reduce.reference import all_reduce_reference, owners_of_rows, sequence_parallel_reference
from minllm.kernels.all_reduce.sequence_parallel import SequenceMemory, rows_of, sequence_parallel_norm
from minllm.kernels.arguments import ceil_div
from minllm.kernels.attention.shared_context.exchange import gather_queries, merge_of_peers
from minllm.kernels.attention.shared_context.merge_ranks import merge_ranks_reference
from minllm.kernels.matmul.gemv.gemv import matmul_gemv
from minllm.kernels.normalization.rms_norm import rms_norm_reference
from minllm.kernels.vector import VECTOR_BYTES
from tests.kernels.guarded import BFLOAT16, FLOAT16, FLOAT32, HALF_STEP, SLACK, assert_close, bits, random

NAMES = VARIANTS.names("message")
WITH_NORM = tuple(FUSABLE)
SIZES = (8, 24, 520)  # elements: one vector of bfloat16, fewer vectors than ranks, and more
GPU_SIZES = (*SIZES, 4104, 32_768, 131_080, 1_048_576)
EPSILON = 1e-5
# Three numbers whose sum in float32 depends on their order.
LARGE = {FLOAT32: (3e7, 1.0, -3e7), BFLOAT16: (3e7, 1.0, -3e7), FLOAT16: (60_000.0, 2.0**-12, -60_000.0)}


@dataclass
class SimulatedRanks:
    """The GPUs of a test, as NumPy arrays. A GPU's test has a class like this one (tests/gpu/peer_gpus.py)."""

    count: int
    most_bytes: int
    polls: int = 1 << 24

    def __post_init__(self):
        self.peers = simulated_peers(self.count, self.most_bytes, self.polls)

    def array(self, rank, host):
        """A copy of a NumPy array in a rank's memory."""
        return host.copy()

    def host(self, array):
        """An array of a rank as a NumPy array."""
        return array

    def run(self, launches):
        """Launch what all ranks launch, and wait for it."""
        launch_together(launches)

    def call(self, rank, launcher, *arrays, **options):
        """Call a launcher of kernels of one rank."""
        launcher(*arrays, **options)


def messages(count, shape, dtype, seed=0, magnitude=1.0):
    """One array per rank. In some places the sum depends on its order: large numbers that cancel, and a small one."""
    found = [random(shape, dtype, 10 * seed + rank, magnitude) for rank in range(count)]
    if count > 2:
        for array, value in zip(found, LARGE[dtype]):
            array.reshape(-1)[::7] = value
    return found


def check_sum(name, hosts, found):
    """All ranks found the same bits: those of the reference, but for the ring; and the sum in float64, where nothing cancels."""
    for other in found:
        np.testing.assert_array_equal(bits(other), bits(found[0]))
    if name != "ring":
        np.testing.assert_array_equal(bits(found[0]), bits(all_reduce_reference(hosts)))
    plain = np.ones(hosts[0].size, bool)
    plain[::7] = len(hosts) == 2
    assert_close(found[0][plain], np.sum([host.astype(np.float64) for host in hosts], axis=0)[plain], hosts[0].dtype)


def check_all_reduce(name, size, dtype, ranks, seed=0, magnitude=1.0):
    """The sum on all ranks (see check_sum), messages as they were, and no fault."""
    hosts = messages(ranks.count, size, dtype, seed, magnitude)
    xs = [ranks.array(rank, host) for rank, host in enumerate(hosts)]
    outs = [ranks.array(rank, np.full(size, np.nan, dtype)) for rank in range(ranks.count)]
    ranks.run([VARIANTS[name](x, out, peers) for x, out, peers in zip(xs, outs, ranks.peers, strict=True)])
    check_sum(name, hosts, [ranks.host(out) for out in outs])
    for rank, x in enumerate(xs):
        np.testing.assert_array_equal(bits(ranks.host(x)), bits(hosts[rank]))
        assert int(ranks.host(ranks.peers[rank].own.fault)[0]) == 0


def gemv_arrays(n, k, dtype, ranks, seed=0):
    """(x, weight, bias, residual) of every rank, the residual of rank 0 alone. In some places the sum depends on its order: of biases."""
    found = []
    for rank, bias in enumerate(messages(ranks.count, n, dtype, seed)):
        x, weight = random((1, k), dtype, 10 * seed + rank + 100), random((n, k), dtype, 10 * seed + rank + 200)
        if ranks.count > 2:
            weight[::7] = 0
        residual = random((1, n), dtype, 10 * seed + 300) if rank == 0 else None
        if residual is not None:
            residual[:, ::7] = 0
        found.append((x, weight, bias, residual))
    return found


def shifting_weights(count, n):
    """Weights of all ranks whose products with one x have as their sum x shifted by one place: a row of each rank in turn."""
    weights = np.zeros((count, n, n), np.float32)
    rows = np.arange(n)
    weights[rows % count, rows, (rows + 1) % n] = 1
    return weights


def check_gemv(n, k, dtype, ranks, seed=0):
    """The bits of a GEMV on each rank whose results are added up afterwards, on all ranks; the sum in float64; and no fault."""
    hosts = gemv_arrays(n, k, dtype, ranks, seed)
    given = [[None if host is None else ranks.array(rank, host) for host in of_rank] for rank, of_rank in enumerate(hosts)]
    outs, partials = ([ranks.array(rank, np.full((1, n), np.nan, dtype)) for rank in range(ranks.count)] for _ in range(2))
    launches = [
        sending.gemv_low_latency(x, weight, out, peers, bias, residual)
        for (x, weight, bias, residual), out, peers in zip(given, outs, ranks.peers, strict=True)
    ]  # fmt: skip
    for together in zip(*launches, strict=True):
        ranks.run(list(together))
    for rank, ((x, weight, bias, residual), partial) in enumerate(zip(given, partials, strict=True)):
        ranks.call(rank, matmul_gemv, x, weight, partial, bias, residual=residual, tiling=sending.choose_tiling(1, n, k))
    wanted, found = all_reduce_reference([ranks.host(partial) for partial in partials]), [ranks.host(out) for out in outs]
    if n * dtype.itemsize % VECTOR_BYTES == 0:
        ranks.run([low_latency(partial, partial, peers) for partial, peers in zip(partials, ranks.peers, strict=True)])
        np.testing.assert_array_equal(bits(ranks.host(partials[0])), bits(wanted))
    for rank, out in enumerate(found):
        np.testing.assert_array_equal(bits(out), bits(wanted))
        assert int(ranks.host(ranks.peers[rank].own.fault)[0]) == 0
    x, weight, bias, residual = ([None if one is None else one.astype(np.float64) for one in arrays] for arrays in zip(*hosts))
    terms = [x[rank] @ weight[rank].T + bias[rank] + (residual[rank] if rank == 0 else 0) for rank in range(ranks.count)]
    plain = np.ones(n, bool)
    plain[::7] = ranks.count == 2
    error = np.abs(found[0].astype(np.float64) - sum(terms))[0, plain]
    most = sum(np.abs(term) for term in terms)[0, plain]  # each term and their sum are rounded
    assert (error <= (3 * HALF_STEP[dtype] + SLACK * np.sqrt(k)) * most + SLACK * np.sqrt(k)).all()


def check_fused_norm(tokens, hidden, dtype, ranks, algorithm):
    """The residual and the norm of the summed rows: the bits of the all-reduce, then those of the reference to one rounding."""
    hosts, weight = messages(ranks.count, (tokens, hidden), dtype), random(hidden, dtype, 101)
    residual = random((tokens, hidden), dtype, 102)
    launches, residuals, outs = [], [], []
    for rank, peers in enumerate(ranks.peers):
        residuals.append(ranks.array(rank, residual))
        outs.append(ranks.array(rank, np.full((tokens, hidden), np.nan, dtype)))
        x = ranks.array(rank, hosts[rank])
        launches.append(fused_norm(x, ranks.array(rank, weight), outs[-1], EPSILON, residuals[-1], peers, algorithm))
    ranks.run(launches)
    summed = all_reduce_reference(hosts)
    _, stream = rms_norm_reference(summed, weight, EPSILON, residual)
    oracle = norm_in_float64(stream, weight)
    for rank in range(ranks.count):
        np.testing.assert_array_equal(bits(ranks.host(residuals[rank])), bits(stream))
        np.testing.assert_array_equal(bits(ranks.host(outs[rank])), bits(ranks.host(outs[0])))
        assert_close(ranks.host(outs[rank]), oracle, dtype)


def check_sequence_parallel(tokens, hidden, dtype, ranks, group, normed=True, seed=0):
    """Each rank's own rows of the residual, others as they were, and on all ranks the norm of all rows, or the rows themselves."""
    hosts, weight = messages(ranks.count, (tokens, hidden), dtype, seed), random(hidden, dtype, 101) if normed else None
    residual, owners = random((tokens, hidden), dtype, 102 + seed), owners_of_rows(tokens, ranks.count, group)
    row_bytes = hidden * dtype.itemsize
    whole = ceil_div(tokens, group * ranks.count) * group * ranks.count * row_bytes
    rows = tuple(ranks.array(rank, np.full(whole, 255, np.uint8)) for rank in range(ranks.count))
    launches, residuals = [], []
    for rank, peers in enumerate(ranks.peers):
        received = tuple(ranks.array(rank, host[owners == rank].reshape(-1).view(np.uint8)) for host in hosts)
        memory = SequenceMemory(group * row_bytes, rows[rank], received, rows)
        residuals.append(ranks.array(rank, residual))
        launches.append(sequence_parallel_norm(residuals[-1], ranks.array(rank, weight) if normed else None, EPSILON, memory, peers))
    ranks.run(launches)
    stream, expected = sequence_parallel_reference(hosts, residual, None, EPSILON, group)
    found = [ranks.host(rows_of(one, (tokens, hidden), dtype)) for one in rows]
    for rank in range(ranks.count):
        np.testing.assert_array_equal(bits(ranks.host(residuals[rank])), bits(expected[rank]))
        np.testing.assert_array_equal(bits(found[rank]), bits(found[0]))
        assert int(ranks.host(ranks.peers[rank].own.fault)[0]) == 0
    if normed:
        assert_close(found[0], norm_in_float64(stream, weight), dtype)
    else:
        np.testing.assert_array_equal(bits(found[0]), bits(stream))


def norm_in_float64(stream, weight):
    """The RMSNorm of rows, as an oracle."""
    values = stream.astype(np.float64)
    return values / np.sqrt((values**2).mean(1, keepdims=True) + EPSILON) * weight.astype(np.float64)


def check_exchange(tokens, heads, head_dim, dtype, ranks, seed=0):
    """Ranks that share contexts: all get the queries of all, and the outputs of their heads merged, of which a few saw no keys."""
    shape, all_heads = (tokens, heads, head_dim), ranks.count * heads
    queries = [random(shape, dtype, 3 * seed + rank) for rank in range(ranks.count)]
    outs = [random((tokens, all_heads, head_dim), dtype, 100 + rank) for rank in range(ranks.count)]
    lses = [random((tokens, all_heads), FLOAT32, 200 + rank, 5.0) for rank in range(ranks.count)]
    for rank, lse in enumerate(lses):
        lse[rank::3], outs[rank][rank::3] = -np.inf, 0
    gathered = [ranks.array(rank, np.full((tokens, all_heads, head_dim), np.nan, dtype)) for rank in range(ranks.count)]
    merged = [ranks.array(rank, np.full(shape, np.nan, dtype)) for rank in range(ranks.count)]
    given = [[ranks.array(rank, one) for one in of_rank] for rank, of_rank in enumerate(zip(queries, outs, lses))]
    ranks.run([gather_queries(query, out, peers) for (query, _, _), out, peers in zip(given, gathered, ranks.peers, strict=True)])
    ranks.run([merge_of_peers(*own[1:], out, peers) for own, out, peers in zip(given, merged, ranks.peers, strict=True)])
    wanted = merge_ranks_reference(np.stack(outs), np.stack(lses))
    for rank in range(ranks.count):
        np.testing.assert_array_equal(bits(ranks.host(gathered[rank])), bits(np.concatenate(queries, axis=1)))
        assert_close(ranks.host(merged[rank]), wanted[:, rank * heads : (rank + 1) * heads], dtype)
        assert int(ranks.host(ranks.peers[rank].own.fault)[0]) == 0
