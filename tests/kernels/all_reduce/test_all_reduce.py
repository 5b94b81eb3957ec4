"""The all-reduces in the simulator, under all detectors: against float64, the same bits on all ranks, waits that end, callers' mistakes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.errors import DeviceError, KernelArgumentError, SimulationError
from minllm.kernels.all_reduce import VARIANTS, low_latency, one_shot, two_shot
from minllm.kernels.all_reduce.choice import LIMITS, choose
from minllm.kernels.all_reduce.fused_norm import fused_norm
from minllm.kernels.all_reduce.ladder import ring
from minllm.kernels.all_reduce.peers import allocate, check_fault, launch_together, simulated_peers
from minllm.kernels.all_reduce.reference import all_reduce_reference
from minllm.kernels.all_reduce.sequence_parallel import SequenceMemory, group_and_sequence_bytes, sequence_parallel_norm
from minllm.kernels.normalization import row
from minllm.kernels.normalization.rms_norm import rms_norm
from tests.kernels.all_reduce.cases import (
    EPSILON,
    NAMES,
    SIZES,
    WITH_NORM,
    SimulatedRanks,
    check_all_reduce,
    check_exchange,
    check_fused_norm,
    check_sequence_parallel,
    messages,
)
from tests.kernels.guarded import BFLOAT16, DTYPES, FLOAT32, bits, random


@pytest.fixture(scope="module", autouse=True)
def small_blocks(request):
    """Blocks of 64 threads, of which a few vectors fill several; with --exhaustive those of a GPU, most of whose threads are idle here."""
    if request.config.option.exhaustive:
        yield
        return
    factories = low_latency.low_latency_kernel, one_shot.one_shot_kernel, two_shot.two_shot_kernel, ring.ring_kernel
    with pytest.MonkeyPatch.context() as patch:
        for module in (low_latency, one_shot, two_shot, ring):
            patch.setattr(module, "THREADS", 64)
        for factory in factories:  # a kernel keeps the launch bounds with which it was made
            factory.cache_clear()
        yield
    for factory in factories:
        factory.cache_clear()


@pytest.mark.detected("name + count")
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_all_ranks_get_the_sum_at_odd_sizes(name, count, dtype):
    ranks = SimulatedRanks(count, 16 * max(SIZES))
    for seed, size in enumerate(SIZES):  # through one memory, as an engine does: flags and halves are used again
        check_all_reduce(name, size, dtype, ranks, seed)


@pytest.mark.parametrize("name", NAMES)
def test_eight_ranks(name):
    """One vector, which two_shot gives to one rank; a chunk for each; and chunks of several vectors, the last one shorter."""
    ranks = SimulatedRanks(8, 4096)
    for seed, size in enumerate((8, 136, 520)):
        check_all_reduce(name, size, BFLOAT16, ranks, seed)


@pytest.mark.parametrize("algorithm", WITH_NORM)
def test_the_norm_is_fused_on_eight_ranks(algorithm):
    check_fused_norm(3, 264, BFLOAT16, SimulatedRanks(8, 2**14), algorithm)


@pytest.mark.parametrize(("count", "dtype"), [(8, BFLOAT16), (3, FLOAT32)])
def test_ranks_that_share_contexts_exchange_queries_and_outputs(count, dtype):
    ranks = SimulatedRanks(count, 2**15)
    for seed, (tokens, heads) in enumerate(((1, 1), (5, 3))):  # through one memory, between all-reduces
        check_exchange(tokens, heads, 24, dtype, ranks, seed)
        check_all_reduce("one_shot", 24, dtype, ranks, seed)


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from(NAMES), st.integers(2, 4), st.integers(1, 40), st.sampled_from(DTYPES), st.integers(0, 99),
    st.sampled_from([1e-3, 1.0, 1e3]),
)  # fmt: skip
def test_random_sizes_and_magnitudes(name, count, vectors, dtype, seed, magnitude):
    check_all_reduce(name, 8 * vectors, dtype, SimulatedRanks(count, 4096), seed, magnitude)


def test_one_memory_serves_all_algorithms_in_any_order():
    ranks = SimulatedRanks(2, 4096)
    for seed, name in enumerate(np.random.default_rng(0).choice(NAMES, 12)):
        check_all_reduce(name, 8 * (1 + seed * 5 % 17), BFLOAT16, ranks, seed)
    assert {int(count) for peers in ranks.peers for count in peers.own.counters} == {12}


@pytest.mark.parametrize("name", ["ring", "one_shot", "low_latency"])
def test_the_epoch_may_wrap(name):
    ranks = SimulatedRanks(2, 1024)
    for peers in ranks.peers:
        peers.own.counters[:] = 2**32 - 2
        peers.own.signals[:] = 2**32 - 2
    for seed in range(4):
        check_all_reduce(name, 64, FLOAT32, ranks, seed)
    assert int(ranks.peers[0].own.counters[0]) == 4  # after 2**32 - 1 came 2


@pytest.mark.parametrize("last", [2**31 - 1, 2**31 + 5, 2**32 - 9])
@pytest.mark.parametrize("name", NAMES)
def test_a_flag_that_was_not_raised_for_billions_of_all_reduces_is_waited_for(name, last):
    """Decode steps of one sequence raise none, and make 2 ** 31 all-reduces in a day."""
    peers, x = simulated_peers(2, 1024, polls=40), np.ones(40, np.float32)
    for own in peers:
        own.own.counters[:] = last
    launch_together([VARIANTS[name](x, x, peers[0])], detect=False)
    assert int(peers[0].own.fault[0]) == 2


@pytest.mark.parametrize("name", NAMES)
def test_the_result_may_take_the_place_of_the_message(name):
    peers, xs = simulated_peers(2, 1024), messages(2, 40, FLOAT32)
    expected = all_reduce_reference(xs)
    launch_together([VARIANTS[name](x, x, own) for x, own in zip(xs, peers)])
    assert all(np.array_equal(bits(x), bits(expected)) for x in xs)


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_the_blocks_does_not_matter(name):
    peers, xs = simulated_peers(2, 2**15), messages(2, 8 * (1040 if name == "two_shot" else 520), BFLOAT16)
    outs = [np.empty_like(x) for x in xs]
    launches = [VARIANTS[name](x, out, own) for x, out, own in zip(xs, outs, peers)]
    assert launches[0].grid > 1
    launch_together(launches, order=5)
    assert np.array_equal(bits(outs[0]), bits(all_reduce_reference(xs))) and np.array_equal(bits(outs[0]), bits(outs[1]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("algorithm", WITH_NORM)
def test_the_norm_is_fused(algorithm, dtype):
    ranks = SimulatedRanks(2, 4096)
    for tokens, hidden in ((1, 8), (3, 264), (2, 256)):
        check_fused_norm(tokens, hidden, dtype, ranks, algorithm)


@pytest.mark.parametrize("algorithm", WITH_NORM)
def test_the_norm_of_rows_with_several_vectors_per_thread_and_of_more_tokens_than_blocks(algorithm, monkeypatch):
    """On three ranks, where the sum depends on its order."""
    monkeypatch.setattr(row, "THREADS", 32)
    monkeypatch.setattr("minllm.kernels.all_reduce.fused_norm.BLOCKS", 2)
    check_fused_norm(5, 512, BFLOAT16, SimulatedRanks(3, 2**14), algorithm)


@pytest.mark.parametrize(("dtype", "normed"), [*((dtype, True) for dtype in DTYPES), (BFLOAT16, False)], ids=str)
def test_ranks_divide_the_rows_of_a_sequence(dtype, normed):
    ranks = SimulatedRanks(2, 2**10)
    for seed, (tokens, hidden, group) in enumerate(((2, 8, 1), (21, 264, 2), (11, 40, 5))):
        check_sequence_parallel(tokens, hidden, dtype, ranks, group, normed, seed)


@pytest.mark.parametrize("count", [3, 8])
def test_more_ranks_divide_the_rows_of_a_sequence(count, monkeypatch):
    """More rows than the blocks take at a time, a last group that is not whole, and rows for which a thread has half the registers."""
    monkeypatch.setattr("minllm.kernels.all_reduce.sequence_parallel.BLOCKS", 2)
    monkeypatch.setattr("minllm.kernels.all_reduce.sequence_parallel.THREADS", 32)
    ranks = SimulatedRanks(count, 2**10)
    for tokens, hidden in ((count * 9 + 4, 128), (count * 6, 256)):
        check_sequence_parallel(tokens, hidden, BFLOAT16, ranks, 3)


@pytest.mark.parametrize("algorithm", WITH_NORM)
def test_the_fused_kernel_writes_the_bits_of_the_two_that_it_replaces(algorithm):
    xs, weight, residual = messages(2, (3, 264), BFLOAT16), random(264, BFLOAT16, 1), random((3, 264), BFLOAT16, 2)
    fused = [(np.empty_like(x), residual.copy()) for x in xs]
    peers = simulated_peers(2, 2**14)
    launch_together([fused_norm(x, weight, out, EPSILON, kept, own, algorithm) for x, (out, kept), own in zip(xs, fused, peers)])
    launch_together([VARIANTS[algorithm](x, x, own) for x, own in zip(xs, peers)])
    rms_norm(xs[0], weight, xs[0], EPSILON, residual)
    for out, kept in fused:
        assert np.array_equal(bits(out), bits(xs[0])) and np.array_equal(bits(kept), bits(residual))


@pytest.mark.parametrize("name", NAMES)
def test_a_wait_ends_and_says_for_whom(name):
    """Rank 1 of three never comes. The others end, and say so."""
    peers, xs = simulated_peers(3, 1024, polls=40), messages(3, 24, FLOAT32)
    launches = [VARIANTS[name](x, np.empty_like(x), own) for x, own in zip(xs, peers)]
    launch_together([launches[0], launches[2]])
    blamed = [int(peers[rank].own.fault[0]) - 1 for rank in (0, 2)]
    assert blamed == ([-1, 1] if name == "ring" else [1, 1])  # in a ring rank 0 waits for rank 2, which went on
    with pytest.raises(DeviceError, match="rank 2 waited for rank 1 in an all-reduce, and gave up"):
        check_fault(2, int(peers[2].own.fault[0]))
    check_fault(0, 0)


def test_after_a_fault_waits_are_short():
    """A graph holds a hundred all-reduces: once a peer is lost, the others must not wait for it a hundred times."""
    peers, x = simulated_peers(2, 1024, polls=10**6), np.ones(8, np.float32)
    peers[0].own.fault[0] = 2
    launch_together([VARIANTS["one_shot"](x, np.empty_like(x), peers[0])], detect=False)
    assert int(peers[0].own.fault[0]) == 2


def test_a_peer_that_lags_behind_in_one_block_is_waited_for_in_that_block_only():
    """Blocks wait for the same block of their peers: flags of all others may be missing."""
    peers, xs = simulated_peers(2, 2**15), messages(2, 8 * 520, BFLOAT16)
    launches = [VARIANTS["one_shot"](x, np.empty_like(x), own) for x, own in zip(xs, peers)]
    launch_together(launches)
    raised = peers[0].own.signals.reshape(-1, 64, 2)[0]
    assert raised[: launches[0].grid].all() and not raised[launches[0].grid :].any()


@pytest.mark.parametrize(
    ("residual", "weight", "why"),
    [
        (np.zeros((8, 64), np.float64), None, "its dtype must be float32 or float16 or bfloat16"),
        (np.zeros((8, 64), np.float32), np.ones(60, np.float32), "weight is float32"),
        (np.zeros((8, 6), np.float32), None, "rows of 24 bytes are not whole vectors"),
        (np.zeros((8, 8192), np.float32), None, "or more than 1024"),
        (np.zeros((8, 80), np.float32), None, "rows of 320 bytes do not fill groups of 512"),
        (np.zeros((3, 64), np.float32), None, "less than a group of 512 bytes for each of 2 ranks"),
        (np.zeros((17, 64), np.float32), None, "17 rows of 256 bytes are more than the memory's 4096"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rows_that_ranks_cannot_divide_are_refused(residual, weight, why):
    whole, own = np.zeros(4096, np.uint8), np.zeros(2048, np.uint8)
    memory = SequenceMemory(512, whole, (own, own), (whole, whole))
    with pytest.raises(KernelArgumentError, match=why):
        sequence_parallel_norm(residual, weight, EPSILON, memory, simulated_peers(2, 16)[0])


def test_groups_fill_whole_pages_and_memory_is_for_whole_groups():
    assert group_and_sequence_bytes(2, 8192) == (2 << 20, 64 << 20)
    assert group_and_sequence_bytes(2, 2 * 5120) == (10 << 20, 60 << 20)
    assert group_and_sequence_bytes(8, 2 * 5120) is None  # a group of each is more than is divided
    assert group_and_sequence_bytes(2, 16384) and group_and_sequence_bytes(2, 16384 + 16) is None  # no block has as many threads
    assert group_and_sequence_bytes(2, 8200) is None


def test_bad_input_is_refused():
    peers = simulated_peers(2, 1024)[0]
    x = np.zeros(64, np.float32)
    for launcher in (VARIANTS[name] for name in NAMES):
        with pytest.raises(KernelArgumentError, match="whole vectors of 16 bytes"):
            launcher(x[:63].copy(), x[:63].copy(), peers)
        with pytest.raises(KernelArgumentError, match="out is float32 .* its shape"):
            launcher(x, x[:60], peers)
        with pytest.raises(KernelArgumentError, match="its dtype must be float32 or float16 or bfloat16"):
            launcher(x.astype(np.float64), x.astype(np.float64), peers)
        with pytest.raises(KernelArgumentError, match="and the ranks' memory has 1024: allocate it for larger messages"):
            launcher(np.zeros(4096, np.float32), np.zeros(4096, np.float32), peers)
    with pytest.raises(KernelArgumentError, match="the norm needs"):
        fused_norm(x, x, x, EPSILON, x, peers)
    with pytest.raises(KernelArgumentError, match="there is no 'ring' with a norm; there are low_latency, one_shot"):
        fused_norm(x[None], x, x[None], EPSILON, x[None], peers, "ring")
    for ranks in (1, 9):
        with pytest.raises(KernelArgumentError, match="takes 2 to 8"):
            allocate(ranks, 1024, np.zeros)


def test_without_its_flag_a_peers_message_is_a_race(monkeypatch):
    """The detectors look at the kernels of the package: one that does not wait is found."""

    def reckless(signals, phase, rank, epoch, fault, limit):
        pass

    one_shot.one_shot_kernel.cache_clear()
    monkeypatch.setattr(one_shot, "meet", reckless)
    peers, xs = simulated_peers(2, 1024), messages(2, 8, FLOAT32)
    with pytest.raises(SimulationError, match="race on global memory: this thread (reads|writes) the global array rank"):
        launch_together([one_shot.one_shot(x, np.empty_like(x), own) for x, own in zip(xs, peers)])
    one_shot.one_shot_kernel.cache_clear()


def test_the_table_of_sizes():
    assert (
        choose(2, 8192) == "low_latency"
        and choose(2, 1 << 20) == "one_shot"
        and choose(2, 64 << 20) == "two_shot"
        and choose(2, 65 << 20) is None
    )
    assert choose(3, 4 << 20) == choose(4, 4 << 20) == "two_shot" and choose(5, 1 << 18) == choose(8, 1 << 18) == "one_shot"
    for limits in LIMITS.values():
        sizes = [largest for largest, _ in limits]
        assert sizes == sorted(sizes) and {name for _, name in limits} <= set(NAMES)
    with pytest.raises(KernelArgumentError, match="9 ranks"):
        choose(9, 8)
