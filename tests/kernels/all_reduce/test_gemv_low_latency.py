"""GEMVs that send their sums, in the simulator, under all detectors: the bits of GEMV and low_latency, epochs, halves, missing ranks."""

import numpy as np
import pytest

from minllm.errors import DeviceError, KernelArgumentError
from minllm.kernels.all_reduce import gemv_low_latency as module
from minllm.kernels.all_reduce.gemv_low_latency import gemv_low_latency
from minllm.kernels.all_reduce.peers import check_fault, launch_together, simulated_peers
from minllm.kernels.matmul.gemv.gemv import choose_tiling
from minllm.kernels.matmul.gemv.sums import GemvTiling
from tests.kernels.all_reduce.cases import (
    NAMES,
    WITH_NORM,
    SimulatedRanks,
    check_all_reduce,
    check_fused_norm,
    check_gemv,
    shifting_weights,
)
from tests.kernels.guarded import BFLOAT16, DTYPES, FLOAT32

SHAPES = ((1, 8), (7, 40), (16, 9), (40, 520))  # a row of one element, an odd one, rows that are not whole vectors, and several blocks
SMALL = GemvTiling(rows=2, warps=2, unroll=1)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of two warps, of which a few rows fill several."""
    module.receive_sums_kernel.cache_clear()  # a kernel keeps the launch bounds with which it was made
    monkeypatch.setattr(module, "THREADS", 32)
    monkeypatch.setattr(module, "choose_tiling", lambda m, n, k: SMALL)
    yield
    module.receive_sums_kernel.cache_clear()


@pytest.mark.detected("count")
@pytest.mark.parametrize(("count", "dtype"), [*((2, dtype) for dtype in DTYPES), (3, BFLOAT16), (4, BFLOAT16)], ids=str)
def test_all_ranks_get_the_bits_of_gemv_and_low_latency(count, dtype, small_blocks):
    ranks = SimulatedRanks(count, 1024)
    for seed, shape in enumerate(SHAPES):  # through one memory, as an engine does: halves are used again
        check_gemv(*shape, dtype, ranks, seed)


def test_the_tiling_is_that_of_other_gemvs_with_two_rows_at_least():
    check_gemv(24, 264, BFLOAT16, SimulatedRanks(2, 4096))
    own = simulated_peers(4, 4096 * 4)[0]
    for k, warps, grid in ((1024, 8, 512), (3584, 4, 512)):
        x, weight, out = (np.empty(shape, BFLOAT16) for shape in ((1, k), (4096, k), (1, 4096)))
        tiling, (send, _) = choose_tiling(1, 4096, k), gemv_low_latency(x, weight, out, own)
        assert send.grid == grid and send.block == 32 * warps == 32 * tiling.warps


def test_eight_ranks(small_blocks):
    check_gemv(13, 24, BFLOAT16, SimulatedRanks(8, 1024))


def test_blocks_loop_over_longer_rows(small_blocks, monkeypatch):
    monkeypatch.setattr(module, "BLOCKS", 1)
    check_gemv(131, 8, FLOAT32, SimulatedRanks(2, 4096))


@pytest.mark.parametrize("count", [2, 3])
def test_twenty_in_a_row(count, small_blocks):
    """In place, so that each reads what the last one wrote: a word that is lost, or of another all-reduce, would stay in the row."""
    n, peers = 4, simulated_peers(count, 64)
    first, weights = np.arange(1, n + 1, dtype=np.float32)[None], shifting_weights(count, n)
    xs = [first.copy() for _ in range(count)]
    launches = list(zip(*(gemv_low_latency(x, weight, x, own) for x, weight, own in zip(xs, weights, peers)), strict=True))
    for number in range(1, 21):
        for together in launches:
            launch_together(together, detect=False)
        for x in xs:
            np.testing.assert_array_equal(x, np.roll(first, -number))
    assert all((own.own.counters == 20).all() and not own.own.fault[0] for own in peers)


def test_a_rank_may_be_one_all_reduce_ahead(small_blocks):
    """It sends into the other half of the inboxes, while its peers have not read the first one yet."""
    n, peers = 4, simulated_peers(2, 64)
    first, weights = np.arange(n, dtype=np.float32)[None], shifting_weights(2, n)
    xs = [first.copy(), first.copy()]
    (send, receive), (late_send, late_receive) = (gemv_low_latency(x, weight, x, own) for x, weight, own in zip(xs, weights, peers))
    for launch in (send, late_send, receive, send, late_receive, late_send, late_receive, receive):
        launch_together([launch])
    for x in xs:
        np.testing.assert_array_equal(x, np.roll(first, -2))


def test_one_memory_serves_all_all_reduces_in_any_order(small_blocks):
    """Of which check_gemv takes one, or two if rows are whole vectors."""
    ranks, kinds = SimulatedRanks(2, 4096), (*NAMES, *WITH_NORM, "gemv", "gemv")
    count = 0
    for seed, kind in enumerate(np.random.default_rng(1).choice(kinds, 12)):
        size = 8 * (1 + seed * 5 % 17)
        if kind == "gemv":
            n = size - seed % 2
            check_gemv(n, 24, BFLOAT16, ranks, seed)
            count += n % 8 == 0
        elif seed % 2 and kind in WITH_NORM:
            check_fused_norm(2, size, BFLOAT16, ranks, kind)
        else:
            check_all_reduce(kind, size, BFLOAT16, ranks, seed)
        count += 1
        assert {int(one) for peers in ranks.peers for one in peers.own.counters} == {count}


def test_the_epoch_may_wrap(small_blocks):
    ranks = SimulatedRanks(2, 1024)
    for peers in ranks.peers:
        peers.own.counters[:] = 2**32 - 2
    for seed in range(4):
        check_gemv(7, 24, FLOAT32, ranks, seed)
    assert int(ranks.peers[0].own.counters[0]) == 4  # after 2**32 - 1 came 2


def test_a_wait_ends_and_says_for_whom(small_blocks):
    """Rank 1 of three never comes. The others end, and say so."""
    peers, x, weight = simulated_peers(3, 1024, polls=40), np.ones((1, 8), np.float32), np.ones((5, 8), np.float32)
    launches = [gemv_low_latency(x, weight, np.empty((1, 5), np.float32), own) for own in peers]
    for first, _, last in zip(*launches, strict=True):
        launch_together([first, last])
    assert [int(own.own.fault[0]) for own in peers] == [2, 0, 2]
    with pytest.raises(DeviceError, match="rank 2 waited for rank 1 in an all-reduce, and gave up"):
        check_fault(2, int(peers[2].own.fault[0]))


def test_after_a_fault_waits_are_short(small_blocks):
    peers, x = simulated_peers(2, 1024, polls=10**6), np.ones((1, 8), np.float32)
    peers[0].own.fault[0] = 2
    for launch in gemv_low_latency(x, np.ones((4, 8), np.float32), np.empty((1, 4), np.float32), peers[0]):
        launch_together([launch], detect=False)
    assert int(peers[0].own.fault[0]) == 2


def test_bad_input_is_refused():
    peers, x, weight, out = simulated_peers(2, 64)[0], *(np.zeros(shape, np.float32) for shape in ((1, 8), (16, 8), (1, 16)))
    gemv_low_latency(x, weight, out, peers)
    with pytest.raises(KernelArgumentError, match=r"out is \[2, 16\]; the GEMV sends one row"):
        gemv_low_latency(np.zeros((2, 8), np.float32), weight, np.zeros((2, 16), np.float32), peers)
    with pytest.raises(KernelArgumentError, match="needs 72 bytes per message and rank, and the ranks' memory has 64"):
        gemv_low_latency(x, np.zeros((17, 8), np.float32), np.zeros((1, 17), np.float32), peers)
    with pytest.raises(KernelArgumentError, match="out is float32"):
        gemv_low_latency(x.astype(BFLOAT16), weight.astype(BFLOAT16), out, peers)
    with pytest.raises(KernelArgumentError, match="residual is float32"):
        gemv_low_latency(x, weight, out, peers, residual=np.zeros((1, 8), np.float32))
