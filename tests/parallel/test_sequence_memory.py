"""The memory for rows that ranks divide: pages of several ranks side by side, here of the host, and their file descriptors."""

import contextlib
import ctypes
import mmap
import os
import resource
import socket
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from minllm.errors import DeviceError
from minllm.kernels.all_reduce.sequence_parallel import MOST_BYTES, PAGE_BYTES
from minllm.models.config_reader import read_model_config
from minllm.parallel import file_descriptors
from minllm.parallel.communicator import CommunicationError, PeerLostError
from minllm.parallel.sequence_memory import connect_sequence, sequence_bytes
from tests.engine.models import model_directory
from tests.parallel.in_threads import ThreadsMemory, in_threads
from tests.parallel.rank_programs import texts_of_files, wanted_texts

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets and memfd are Linux's")
PAGE = mmap.PAGESIZE
MAP_FIXED = 0x10


class HostSharedPages:
    """SharedPages of the host's memory. fails: whether pages of others cannot be opened. left: pages that it may still create."""

    def __init__(self, page_bytes, fails=False, left=99):
        self.page_bytes, self.fails, self.left = page_bytes, fails, left
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.mmap.restype = ctypes.c_void_p
        self.libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        self.libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

    def create(self):
        self.left -= 1
        if self.left < 0:
            return None
        page = os.memfd_create("page")
        os.truncate(page, self.page_bytes)
        return page

    def descriptor(self, page):
        return os.dup(page)

    def opened(self, descriptor):
        if self.fails:
            raise DeviceError("cannot open a page of another rank's memory")
        return os.dup(descriptor)

    def release(self, page):
        os.close(page)

    def side_by_side(self, pages):
        nbytes = len(pages) * self.page_bytes
        start = self.libc.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        for number, page in enumerate(pages):
            at, flags = start + number * self.page_bytes, mmap.MAP_SHARED | MAP_FIXED
            assert self.libc.mmap(at, self.page_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, page, 0) == at
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(start))

    def taken_apart(self, array):
        self.libc.munmap(array.ctypes.data, array.nbytes)


@pytest.fixture(autouse=True)
def nothing_stays_open():
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("ranks", "groups"), [(2, 3), (3, 1)])
def test_what_a_rank_stores_is_received_by_the_owners_of_the_groups(ranks, groups):
    host, group_bytes = ThreadsMemory(), 2 * PAGE
    numbers = np.arange(ranks * groups * group_bytes, dtype=np.uint32) * 7

    def work(rank):
        sequence = connect_sequence(rank.host, group_bytes, ranks * groups * group_bytes, host.machine(rank.rank), HostSharedPages)
        memory = sequence.memory
        memory.partials[:] = (numbers + rank.rank).astype(np.uint8)
        for rows in memory.rows:
            rows[rank.rank] = 1 + rank.rank
        rank.host.barrier()
        found = [one.copy() for one in memory.received], memory.rows[rank.rank][:ranks].copy(), memory.group_bytes
        rank.host.barrier()
        sequence.close()
        return found

    for rank, (received, rows, found_bytes) in enumerate(in_threads(ranks, work)):
        assert list(rows) == list(range(1, 1 + ranks)) and found_bytes == group_bytes
        for source, one in enumerate(received):
            stored = (numbers + source).astype(np.uint8).reshape(groups, ranks, group_bytes)
            np.testing.assert_array_equal(one.reshape(groups, group_bytes), stored[:, rank])
    assert sorted(host.closed) == sorted([*host.exported] * ranks)


@pytest.mark.parametrize(
    ("options", "reason"),
    [(dict(fails=True), "rank 1: cannot open a page of another rank's memory"), (dict(left=3), "rank 1: the GPU has no 4096 bytes left")],
    ids=["opening", "creating"],
)
def test_a_rank_that_fails_leaves_all_without(options, reason):
    host = ThreadsMemory()

    def work(rank):
        def make_pages(nbytes):
            return HostSharedPages(nbytes, **options if rank.rank == 1 else {})

        return connect_sequence(rank.host, PAGE, 4 * PAGE, host.machine(rank.rank), make_pages)

    found = in_threads(2, work)
    assert found[0] == found[1] and found[0].startswith(reason)
    assert sorted(host.closed) == sorted([*host.exported] * 2)


def test_a_rank_that_ends_is_no_reason_to_go_on_without():
    """Its peers raise what any other wait for it would."""
    host = ThreadsMemory()

    def work(rank):
        def make_pages(nbytes):
            if rank.rank == 1:
                raise ZeroDivisionError("a fault of this test")
            return HostSharedPages(nbytes)

        with pytest.raises(ZeroDivisionError if rank.rank == 1 else PeerLostError, match="a fault of this test|Rank 1 has ended"):
            connect_sequence(rank.host, PAGE, 4 * PAGE, host.machine(rank.rank), make_pages)
        rank.host.close()

    in_threads(2, work)
    assert sorted(host.closed) == sorted([*host.exported] * 2)


@pytest.mark.parametrize(("ranks", "count"), [(3, 300), (2, 0)])
def test_more_descriptors_than_a_message_holds_arrive_in_order(ranks, count):
    found = in_threads(ranks, lambda rank: texts_of_files(rank, count)[0])
    assert found == [wanted_texts(rank, ranks, count) for rank in range(ranks)]


def test_a_rank_that_never_comes_is_named_within_the_time_limit():
    is_over = threading.Event()

    def work(rank):
        if rank.rank == 1:
            is_over.wait(10)
            return
        rank.host.limit_waits(0.3)
        with pytest.raises(PeerLostError, match=r"Rank 0 has waited 0\.3 s for rank 1"):
            file_descriptors.exchanged(rank.host, [[], [0]])
        is_over.set()

    in_threads(2, work)
    assert is_over.is_set()


def test_a_rank_that_cannot_be_reached_is_named_to_all(monkeypatch):
    """As in a network namespace of its own, where nobody listens to the name."""
    listening = file_descriptors.listening
    monkeypatch.setattr(file_descriptors, "listening", lambda key, rank: listening(key, rank + 9 * (rank == 2)))

    def work(rank):
        with pytest.raises(CommunicationError, match=r"^rank 0: no .* to rank 2 .* refused.* namespace; rank 1: no .* to rank 2 [^;]*$"):
            file_descriptors.exchanged(rank.host, [[0] if peer != rank.rank else [] for peer in range(3)])

    in_threads(3, work)


def test_strangers_are_passed_over_and_a_missing_peer_is_named():
    """One says nothing, one does not know the key, and one ends at once."""
    key, received = os.urandom(file_descriptors.KEY_BYTES), [[], [], []]
    with file_descriptors.listening(key, 0) as server, contextlib.ExitStack() as strangers:
        assert key.hex() not in Path("/proc/net/unix").read_text()
        silent, loud, hasty = (strangers.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) for _ in range(3))
        for one in (silent, loud, hasty):
            one.connect(file_descriptors.name_of(key, 0))
        socket.send_fds(loud, [file_descriptors.HEADER.pack(bytes(len(key)), 1, 1)], [0])
        socket.send_fds(loud, [b"\0"], [0])
        hasty.close()
        file_descriptors.send(key, 2, 0, [0, 1])
        with pytest.raises(CommunicationError, match="^rank 1 has sent no file descriptors$"):
            file_descriptors.receive(server, key, 0, received)
    assert [len(one) for one in received] == [0, 0, 2]
    for one in received[2]:
        os.close(one)


def test_processes_of_other_users_are_strangers(monkeypatch):
    key, received = os.urandom(file_descriptors.KEY_BYTES), [[], []]
    with file_descriptors.listening(key, 0) as server:
        file_descriptors.send(key, 1, 0, [0])
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
        with pytest.raises(CommunicationError, match="rank 1 has sent no file descriptors"):
            file_descriptors.receive(server, key, 0, received)
    assert received == [[], []]


def test_a_process_that_may_open_no_more_files_says_so():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def work(rank):
        first_free = os.dup(0)
        os.close(first_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (first_free + 40, limits[1]))  # both are threads of this process
        rank.host.barrier()
        with pytest.raises(CommunicationError, match=r"only \d+ of 300 file descriptors of rank \d have arrived.*raise `ulimit -n`"):
            file_descriptors.exchanged(rank.host, [[0] * 300 if peer != rank.rank else [] for peer in range(2)])

    try:
        in_threads(2, work)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen2_moe", "gemma2", "gemma3", "gpt2"])
def test_models_without_an_rms_norm_after_every_sum_have_no_memory_for_rows(family):
    assert sequence_bytes(read_model_config(model_directory(family)), np.dtype("float32"), 2) is None


def test_rows_fill_few_pages():
    llama = read_model_config(model_directory("llama3"))
    group_bytes, nbytes = sequence_bytes(llama, np.dtype("float32"), 2)
    assert group_bytes % PAGE_BYTES == group_bytes % (4 * llama.hidden_size) == nbytes % (2 * group_bytes) == 0 and nbytes <= MOST_BYTES
