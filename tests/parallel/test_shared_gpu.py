"""Ranks that share a GPU: their mailboxes, in threads that share this process's memory, and the checks before ranks start."""

import ctypes
import threading
import time

import ml_dtypes
import numpy as np
import pytest

from minllm.engine.ranks import check
from minllm.errors import InvalidOptionError, KernelArgumentError
from minllm.kernels.all_reduce.peers import launch_together
from minllm.kernels.all_reduce.reference import all_reduce_reference
from minllm.parallel import shared_gpu
from minllm.parallel.communicator import CommunicationError
from minllm.parallel.processes import Rank
from minllm.parallel.ranks_per_gpu import RANKS_PER_GPU, ranks_per_gpu
from minllm.parallel.shared_gpu import MailboxCommunicator
from minllm.runtime.array import DeviceArray
from tests.kernels.guarded import bits, random
from tests.parallel.in_threads import ThreadsMemory, in_threads

RANKS = 3
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture(autouse=True)
def small_boxes(monkeypatch):
    """Boxes of 96 bytes, so that small messages take several pieces; the words of a failed rank are written to this process's memory."""
    monkeypatch.setattr(shared_gpu, "BOX_BYTES", 96)
    monkeypatch.setattr(shared_gpu, "write_now", lambda words, number: words.fill(number))


class Gpu(ThreadsMemory):
    """Memory, stream flags and launches of ranks that are threads. Everything is done when it is launched."""

    def __init__(self, fails=()):
        super().__init__(fails)
        self.launches = {}
        self.barrier = threading.Barrier(RANKS, action=self.run, timeout=60)

    def run(self):
        launch_together([self.launches[rank] for rank in range(RANKS)])

    def connect(self, rank: Rank) -> MailboxCommunicator:
        def launch(one):
            self.launches[rank.rank] = one
            self.barrier.wait()

        return MailboxCommunicator(rank.host, 77, self.machine(rank.rank), self, launch)

    def raise_flag(self, address, stream):
        assert stream == 77
        ctypes.c_uint32.from_address(address).value = 1

    def take_flag(self, address, stream, seconds=60):
        deadline, flag = time.monotonic() + seconds, ctypes.c_uint32.from_address(address)
        while flag.value == 0:
            assert time.monotonic() < deadline, "nobody has raised the flag"
            time.sleep(0)
        flag.value = 0

    def copy_bytes(self, target, source, nbytes, stream):
        assert stream == 77
        ctypes.memmove(target, source, nbytes)


def on_gpu(array):
    """A NumPy array as a DeviceArray."""
    return DeviceArray(array.ctypes.data, array.shape, array.dtype, array, None, array.strides)


def on_ranks(work, **options):
    """What work(communicator, rank) returns on each rank."""
    gpu = Gpu(**options)
    return in_threads(RANKS, lambda rank: work(gpu.connect(rank), rank.rank))


def messages(size, dtype=np.int32):
    return [random((size,), dtype, rank) if dtype == BFLOAT16 else np.arange(size, dtype=dtype) + 1000 * rank for rank in range(RANKS)]


@pytest.mark.parametrize("size", [1, 24, 25, 101])
def test_everything_arrives_in_whole_pieces_and_in_parts(size):
    """Every operation twice, so that the second one finds the boxes as the first one has left them."""

    def work(communicator, rank):
        found = []
        for step in range(2):
            own = messages(size)[rank] + step
            gathered, second, passed = np.zeros((RANKS, size), np.int32), own.copy(), own.copy()
            communicator.all_gather(on_gpu(own), on_gpu(gathered))
            communicator.broadcast(on_gpu(second), 2)
            if rank < RANKS - 1:
                communicator.send(on_gpu(own), rank + 1)
            if rank > 0:
                communicator.recv(on_gpu(passed), rank - 1)
            found.append((gathered, second, passed))
        return found

    for rank, found in enumerate(on_ranks(work)):
        for step, (gathered, second, passed) in enumerate(found):
            sent = [one + step for one in messages(size)]
            np.testing.assert_array_equal(gathered, sent)
            np.testing.assert_array_equal(second, sent[2])
            np.testing.assert_array_equal(passed, sent[max(0, rank - 1)])


@pytest.mark.parametrize("size", [8, 13, 48, 101])
def test_sums_have_the_bits_of_the_reference(size):
    def work(communicator, rank):
        array = messages(size, BFLOAT16)[rank]
        communicator.all_reduce(on_gpu(array))
        return array

    wanted = all_reduce_reference(messages(size, BFLOAT16))
    for found in on_ranks(work):
        np.testing.assert_array_equal(bits(found), bits(wanted))


def test_an_abort_ends_every_wait_and_refuses_what_comes_after():
    def work(communicator, rank):
        if rank:
            return
        array = on_gpu(np.zeros(101, np.int32))
        threading.Timer(0.05, communicator.abort).start()
        with pytest.raises(CommunicationError, match="closed"):
            while True:  # nobody sends, and nobody empties a box
                communicator.recv(array, 1)
                communicator.send(array, 2)
        communicator.close()
        communicator.close()
        communicator.abort()

    on_ranks(work)


def test_memory_that_a_rank_cannot_map_is_told_on_all():
    gpu = Gpu(fails=(1,))

    def work(rank):
        with pytest.raises(CommunicationError, match="rank 1: cannot map the memory of another rank's GPU"):
            gpu.connect(rank)

    in_threads(RANKS, work)


def test_closing_returns_all_memories_once():
    gpu = Gpu()
    first, *_ = in_threads(RANKS, gpu.connect)
    first.close()
    first.close()
    assert len(gpu.closed) == len(set(gpu.closed)) == 2 * RANKS


def test_wrong_arrays_are_told():
    def work(communicator, _rank):
        with pytest.raises(KernelArgumentError, match="all_reduce was given int32"):
            communicator.all_reduce(on_gpu(np.zeros(3, np.int32)))
        with pytest.raises(KernelArgumentError, match=r"must be float32 \[3, 2\]"):
            communicator.all_gather(on_gpu(np.zeros(2, np.float32)), on_gpu(np.zeros((2, 2), np.float32)))
        with pytest.raises(KernelArgumentError, match="C-contiguous"):
            communicator.broadcast(on_gpu(np.zeros((4, 4), np.float32)[:, 0]))

    on_ranks(work)


def test_ranks_may_share_gpus_if_the_environment_says_so(monkeypatch):
    monkeypatch.setattr(check, "device_names", lambda: ["NVIDIA H200"] * 2)
    with pytest.raises(InvalidOptionError, match=rf"4 ranks need 4 GPUs, one each, .* shows 2 .* set {RANKS_PER_GPU}=2"):
        check.check_gpus(4)
    monkeypatch.setenv(RANKS_PER_GPU, "2")
    check.check_gpus(4)  # without NCCL
    assert [Rank(number, 4, None, []).gpu for number in range(4)] == [0, 0, 1, 1]
    with pytest.raises(InvalidOptionError, match="5 ranks need 3 GPUs, 2 ranks each"):
        check.check_gpus(5)
    for wrong in ("0", "-1", "two", "1.5", ""):
        monkeypatch.setenv(RANKS_PER_GPU, wrong)
        with pytest.raises(InvalidOptionError, match=f"{RANKS_PER_GPU}='{wrong}' must be a number of ranks"):
            ranks_per_gpu()
