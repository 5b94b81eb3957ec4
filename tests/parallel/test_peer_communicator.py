"""All-reduces by kernels of our own behind the Communicator: ranks as threads, whose launches run together in the simulator."""

import threading
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from minllm.errors import DeviceError, KernelArgumentError
from minllm.kernels.all_reduce.choice import BY_SIZE, LIBRARY, LIMITS, choose, chosen, memory_bytes, names
from minllm.kernels.all_reduce.peers import POLLS, launch_together, simulated_peers
from minllm.kernels.all_reduce.reference import all_reduce_reference
from minllm.ops.cuda_ops import CudaOps
from minllm.parallel.peer_communicator import WARM_UP_POLLS, PeerCommunicator
from minllm.parallel.peer_memory import connect_peers
from minllm.parallel.time_limits import STEP
from minllm.runtime.parameters import pack_int, parameter
from tests.kernels.guarded import bits, random
from tests.parallel.in_threads import ThreadsMemory, in_threads

RANKS, MOST, INBOX = 2, 4096, 1040
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class Together:
    """Runs what all ranks launch at once in the simulator."""

    def __init__(self):
        self.launches, self.barrier = {}, threading.Barrier(RANKS, action=self.run, timeout=60)

    def run(self):
        launch_together([self.launches[rank] for rank in range(RANKS)])

    def of(self, rank):
        def launch(one):
            self.launches[rank] = one
            self.barrier.wait()

        return launch


def on_ranks(name, work):
    """What work(communicator, rank) returns on each rank."""
    host, together = ThreadsMemory(), Together()

    def run(rank):
        peers = connect_peers(rank.host, MOST, INBOX, host.machine(rank.rank)).peers
        return work(PeerCommunicator(rank.host, peers, name, together.of(rank.rank)), rank.rank)

    return in_threads(RANKS, run)


def alone(name, is_capturing=lambda: False):
    """(the communicator of rank 0 without a library, what it launches)."""
    unused = dict.fromkeys(("all_gather", "broadcast", "barrier", "send", "recv", "close"))
    library, launched = SimpleNamespace(rank=0, world_size=RANKS, **unused), []
    return PeerCommunicator(library, simulated_peers(RANKS, MOST)[0], name, launched.append, is_capturing), launched


@pytest.mark.parametrize("name", names())
def test_sums_have_the_bits_of_the_reference_by_kernels_and_by_the_library(name):
    """520 elements fit all kernels, 1000 not the inbox, 2056 no memory; 13 are no whole vectors."""
    sizes = (520, 13, 1000, 2056)

    def work(communicator, rank):
        found = []
        for seed, size in enumerate(sizes):
            array = random((size,), BFLOAT16, 10 * seed + rank)
            launched = communicator.launch_of(array) is not None
            communicator.all_reduce(array)
            found.append((array, launched))
        return found, int(communicator.peers.own.counters[0]), int(communicator.fault[0])

    results = on_ranks(name, work)
    for seed, size in enumerate(sizes):
        wanted = all_reduce_reference([random((size,), BFLOAT16, 10 * seed + rank) for rank in range(RANKS)])
        for found, _, _ in results:
            np.testing.assert_array_equal(bits(found[seed][0]), bits(wanted))
    launched = {"nccl": [], "by_size": [520], "low_latency": [520]}.get(name, [520, 1000])  # small messages are low_latency's
    for found, count, fault in results:
        ours = [size for size, (_, is_ours) in zip(sizes, found, strict=True) if is_ours]
        assert ours == launched and count == len(ours) and fault == 0


def test_a_rank_that_cannot_map_its_peers_leaves_all_without():
    host = ThreadsMemory(fails=(1,))
    found = in_threads(RANKS, lambda rank: connect_peers(rank.host, MOST, INBOX, host.machine(rank.rank)))
    assert found == ["rank 1: cannot map the memory of another rank's GPU"] * RANKS


def test_closed_memory_is_that_of_all_ranks():
    host = ThreadsMemory()
    first, *_ = in_threads(RANKS, lambda rank: connect_peers(rank.host, MOST, INBOX, host.machine(rank.rank)))
    first.close()
    assert sorted(host.closed) == sorted(host.exported)


def test_a_fault_is_told_with_both_ranks():
    def work(communicator, rank):
        communicator.fault[0] = 0 if rank else 2
        return communicator

    first, second = on_ranks("one_shot", work)
    with pytest.raises(DeviceError, match="rank 0 waited for rank 1 in an all-reduce, and gave up"):
        first.check(first.fault)
    second.check(second.fault)


@pytest.mark.parametrize(
    ("is_capturing", "is_warm", "polls"), [(False, False, WARM_UP_POLLS), (True, False, 2 * POLLS), (False, True, 2 * POLLS)]
)
def test_peers_are_waited_for_longer_while_they_warm_up(is_capturing, is_warm, polls):
    """What is captured meanwhile is replayed by steps, so it does not wait so long."""
    communicator, launched = alone(BY_SIZE, lambda: is_capturing)
    communicator.is_warm = is_warm
    communicator.all_reduce(np.zeros(520, np.float32))
    assert [one.arguments[-1] for one in launched] == [polls]


def test_a_wait_of_hours_is_cut_to_polls_that_a_kernel_can_count(monkeypatch):
    monkeypatch.setenv(STEP, "7200")
    communicator, launched = alone(BY_SIZE)
    communicator.is_warm = True
    communicator.all_reduce(np.zeros(520, np.float32))
    assert parameter(launched[0].arguments[-1]) == (int, pack_int(2**31 - 1))


@pytest.mark.parametrize(
    ("name", "n", "dtype", "kernels"),
    [
        (BY_SIZE, 9, BFLOAT16, 2),
        ("low_latency", MOST // 4, BFLOAT16, 2),
        (BY_SIZE, MOST // 4 + 1, BFLOAT16, 0),
        ("one_shot", 8, BFLOAT16, 0),
        (BY_SIZE, 8, np.dtype(np.float64), 0),
    ],
)
def test_a_gemv_sends_what_low_latency_would_and_what_fits_the_inbox(name, n, dtype, kernels):
    """Words of 4 bytes of data, also for 16-bit numbers. Otherwise nothing is launched."""
    communicator, launched = alone(name)
    x, weight, out = (np.zeros(shape, dtype) for shape in ((1, 8), (n, 8), (1, n)))
    assert communicator.gemv_all_reduce(x, weight, None, None, out) == (kernels > 0)
    assert len(launched) == kernels and all(one.arguments[-1] == WARM_UP_POLLS for one in launched[1:])


def test_one_table_chooses_by_bytes_and_names_are_checked():
    for ranks, limits in LIMITS.items():
        assert memory_bytes(ranks)[0] == limits[-1][0] and memory_bytes(ranks)[1] == limits[0][0]
        for largest, name in limits:
            assert chosen(BY_SIZE, ranks, largest) == choose(ranks, largest) == name
            assert chosen(LIBRARY, ranks, largest) is None and chosen("ring", ranks, largest) == "ring"
    assert CudaOps("float32", {"all_reduce": "two_shot"}, simulated=True).variants == {"all_reduce": "two_shot"}
    with pytest.raises(KernelArgumentError, match="there is no all_reduce kernel 'fused_norm'; there are by_size, nccl, ring"):
        CudaOps("float32", {"all_reduce": "fused_norm"}, simulated=True)
