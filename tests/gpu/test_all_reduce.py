"""The all-reduces between all GPUs of a machine: against float64, the same bits on all, in graphs, and with peers that never come.

On a machine with one GPU 2, 4 and 8 ranks share it.
"""

import numpy as np
import pytest

from minllm.kernels.all_reduce import VARIANTS
from minllm.kernels.all_reduce.gemv_low_latency import gemv_low_latency
from minllm.kernels.all_reduce.peers import MOST_RANKS
from minllm.runtime.device import device_names
from minllm.runtime.peer_devices import why_no_peers
from tests.gpu.peer_gpus import ONE_GPU, PeerGpus
from tests.kernels.all_reduce.cases import (
    GPU_SIZES,
    NAMES,
    WITH_NORM,
    check_all_reduce,
    check_exchange,
    check_fused_norm,
    check_gemv,
    check_sequence_parallel,
    check_sum,
    messages,
    shifting_weights,
)
from tests.kernels.guarded import BFLOAT16, DTYPES, FLOAT32, random

GPUS = min(MOST_RANKS, len(device_names()))
COUNTS = (2, 4, MOST_RANKS) if ONE_GPU else (GPUS,)
pytestmark = [pytest.mark.skipif(bool(why_no_peers(GPUS)), reason=str(why_no_peers(GPUS))), pytest.mark.xdist_group("several GPUs")]
REPLAYS, PER_GRAPH = 20, 5000  # 100,000 all-reduces


@pytest.fixture(scope="module", params=COUNTS, ids="{} ranks".format)
def ranks(request):
    return PeerGpus(request.param, 16 * max(GPU_SIZES))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_all_gpus_get_the_sum(name, dtype, ranks):
    for seed, size in enumerate(GPU_SIZES):
        check_all_reduce(name, size, dtype, ranks, seed)


@pytest.mark.parametrize("name", NAMES)
def test_all_gpus_get_the_same_bits_at_random_sizes(name, ranks):
    for seed, vectors in enumerate(np.random.default_rng(0).integers(1, 40_000, 50)):
        check_all_reduce(name, 8 * int(vectors), BFLOAT16, ranks, seed)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("tokens", "hidden"), [(1, 8), (1, 4096), (3, 264), (32, 8192), (100, 4096)])
@pytest.mark.parametrize("algorithm", WITH_NORM)
def test_the_norm_is_fused(algorithm, tokens, hidden, dtype, ranks):
    check_fused_norm(tokens, hidden, dtype, ranks, algorithm)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n", "k"), [(1, 8), (7, 40), (24, 9), (515, 264), (4100, 520)])
def test_gemvs_send_their_sums(n, k, dtype, ranks):
    for seed in range(3):  # through one memory: both halves of the inboxes are used
        check_gemv(n, k, dtype, ranks, seed)


@pytest.mark.parametrize("inputs", [4096, 14336])
def test_gemvs_of_an_8b_model_send_their_sums(inputs, ranks):
    check_gemv(4096, inputs // ranks.count, BFLOAT16, ranks)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("tokens", "hidden", "group"), [(8, 8, 1), (300, 4096, 32), (1000, 264, 3), (77, 4096, 5)])
def test_ranks_divide_the_rows_of_a_sequence(tokens, hidden, group, dtype, ranks):
    for normed in (True, False):
        check_sequence_parallel(tokens, hidden, dtype, ranks, group, normed)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("tokens", "heads", "head_dim"), [(1, 1, 8), (1, 8, 128), (5, 3, 80), (64, 8, 128), (300, 4, 64)])
def test_ranks_that_share_contexts_exchange_queries_and_outputs(tokens, heads, head_dim, dtype, ranks):
    for seed in range(3):
        check_exchange(tokens, heads, head_dim, dtype, ranks, seed)


@pytest.mark.parametrize("name", NAMES)
def test_a_hundred_thousand_in_a_graph(name, ranks):
    """In place, so that each adds up what the last one wrote: one that is lost or early would not leave 0 on all."""
    first = random(4096, FLOAT32, 0)
    hosts = [first, -first, *[0 * first] * (ranks.count - 2)]  # their sum is 0 in any order
    xs = [ranks.array(rank, host) for rank, host in enumerate(hosts)]
    launches = [VARIANTS[name](x, x, own) for x, own in zip(xs, ranks.peers, strict=True)]
    ranks.run(launches)
    before = [int(ranks.host(own.own.counters)[0]) for own in ranks.peers]
    replay = ranks.devices.graphs(lambda: [ranks.devices.launch(launches) for _ in range(PER_GRAPH)])
    for _ in range(REPLAYS):
        replay()
    ranks.devices.synchronize()
    for rank, own in enumerate(ranks.peers):
        assert not ranks.host(xs[rank]).any() and int(ranks.host(own.own.fault)[0]) == 0
        assert int(ranks.host(own.own.counters)[0]) == before[rank] + REPLAYS * PER_GRAPH


@pytest.mark.parametrize("n", [24, 600])
def test_a_hundred_thousand_gemvs_in_a_graph(n, ranks):
    """In place: each shifts the row by one place, so a word that is lost, late or of another all-reduce would stay in it."""
    first = np.arange(n, dtype=np.float32)[None]
    xs = [ranks.array(rank, first) for rank in range(ranks.count)]
    weights = [ranks.array(rank, weight) for rank, weight in enumerate(shifting_weights(ranks.count, n))]
    pairs = zip(*(gemv_low_latency(x, weight, x, own) for x, weight, own in zip(xs, weights, ranks.peers, strict=True)), strict=True)
    send, receive = map(list, pairs)
    ranks.run(send)
    ranks.run(receive)
    before = [int(ranks.host(own.own.counters)[0]) for own in ranks.peers]
    replay = ranks.devices.graphs(lambda: [ranks.devices.launch(one) for _ in range(PER_GRAPH) for one in (send, receive)])
    for _ in range(REPLAYS):
        replay()
    ranks.devices.synchronize()
    for rank, own in enumerate(ranks.peers):
        np.testing.assert_array_equal(ranks.host(xs[rank]), np.roll(first, -(REPLAYS * PER_GRAPH + 1)))
        assert int(ranks.host(own.own.fault)[0]) == 0 and int(ranks.host(own.own.counters)[0]) == before[rank] + REPLAYS * PER_GRAPH


@pytest.mark.parametrize("name", NAMES)
def test_a_graph_reads_new_messages_at_each_replay(name, ranks):
    size = 32_768
    xs, outs = ([ranks.array(rank, np.zeros(size, BFLOAT16)) for rank in range(ranks.count)] for _ in range(2))
    launches = [VARIANTS[name](x, out, own) for x, out, own in zip(xs, outs, ranks.peers, strict=True)]
    ranks.run(launches)
    replay = ranks.devices.graphs(lambda: ranks.devices.launch(launches))
    for seed in range(200):
        hosts = messages(ranks.count, size, BFLOAT16, seed)
        for x, host in zip(xs, hosts, strict=True):
            x.copy_from_host(host)
        replay()
        ranks.devices.synchronize()
        check_sum(name, hosts, [ranks.host(out) for out in outs])


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_peer_that_never_comes_is_named(name, count):
    ranks = PeerGpus(count, 1 << 16, polls=1 << 16)
    x = ranks.array(0, np.ones(4096, np.float32))
    one = VARIANTS[name](x, x, ranks.peers[0])
    ranks.devices.load([one] * count)
    ranks.devices.devices[0].set_current()
    one.launch(ranks.devices.streams[0])
    ranks.devices.synchronize()
    assert 2 <= int(ranks.host(ranks.peers[0].own.fault)[0]) <= count


@pytest.mark.parametrize("count", COUNTS)
def test_a_peer_whose_gemv_never_sends_is_named(count):
    ranks = PeerGpus(count, 1 << 16, polls=1 << 16)
    x, weight = (ranks.array(0, np.ones(shape, np.float32)) for shape in ((1, 64), (64, 64)))
    for one in gemv_low_latency(x, weight, x, ranks.peers[0]):
        ranks.devices.load([one] * count)
        ranks.devices.devices[0].set_current()
        one.launch(ranks.devices.streams[0])
    ranks.devices.synchronize()
    assert 2 <= int(ranks.host(ranks.peers[0].own.fault)[0]) <= count
