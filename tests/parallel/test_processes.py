"""Ranks as processes: what they tell each other, and how they end."""

import contextlib
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.parallel.communicator import CommunicationError, PeerLostError
from minllm.parallel.processes import RankError, RankProcesses
from minllm.parallel.shared_memory import SLOT_BYTES, SharedMemoryCommunicator, memory_bytes
from tests.parallel.in_threads import in_threads
from tests.parallel.rank_programs import SUMMED, collectives, random_array, run_commands, texts_of_files, wanted_texts

RANKS = 4
SIZES = [0, 1, 37, 2 * SLOT_BYTES // 4 + 3]  # the last takes several parts


@pytest.fixture(scope="module")
def processes():
    """Four ranks that wait for commands."""
    found = RankProcesses(RANKS, run_commands, None)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def results(processes):
    """[rank][name of an operation] -> its result."""
    processes.send(("collectives", SIZES))
    return [collectives(processes.own, SIZES), *processes.replies()]


def test_sums_are_bitwise_equal_on_all_ranks_and_in_the_order_of_ranks(results):
    for size in SIZES:
        for dtype in SUMMED:
            wanted = random_array(0, size, dtype).astype(np.float32)
            for rank in range(1, RANKS):
                wanted = wanted + random_array(rank, size, dtype).astype(np.float32)
            for found in results:
                np.testing.assert_array_equal(found[f"all_reduce {dtype} {size}"], wanted.astype(dtype))


def test_every_rank_gathers_all_arrays_and_gets_the_broadcast_one(results):
    for size in SIZES:
        arrays = np.stack([random_array(rank, size, np.float64) for rank in range(RANKS)])
        for found in results:
            np.testing.assert_array_equal(found[f"all_gather {size}"], arrays)
            np.testing.assert_array_equal(found[f"broadcast {size}"], arrays[1])


def test_messages_between_two_ranks_arrive(results):
    for rank, found in enumerate(results):
        assert all((found[f"ring {size}"] == (rank - 1) % RANKS).all() for size in SIZES)


@pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets and memfd are Linux's")
def test_every_rank_opens_the_files_of_all(processes):
    processes.send(("files", 5))
    for rank, (texts, left_open) in enumerate([texts_of_files(processes.own, 5), *processes.replies()]):
        assert texts == wanted_texts(rank, RANKS, 5) and left_open == 0


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raise", r"(?s)Rank 1 has failed, and all ranks have ended:\nTraceback.*run_commands.*ValueError: a fault of this test"),
        ("kill", "Rank 1 was ended by SIGKILL, and all ranks have ended"),
    ],
)  # fmt: skip
def test_a_rank_that_fails_ends_all_with_the_reason_within_five_seconds(fault, reason):
    """Ranks 0 and 2 are waiting for rank 1 when it ends."""
    before = set(Path("/dev/shm").iterdir()) if Path("/dev/shm").is_dir() else set()
    processes = RankProcesses(3, run_commands, None)
    processes.send(("barrier",))
    processes.own.host.barrier()  # all have started
    start = time.monotonic()
    with contextlib.suppress(RankError):  # rank 1 may fail before rank 2 has the message
        processes.send((fault,))
    with pytest.raises(PeerLostError, match=r"Rank \d has ended while rank 0 was waiting") as error:
        processes.own.host.barrier()
    assert str(processes.failed(error.value)).startswith("Rank 1 ")
    with pytest.raises(RankError, match=reason):
        processes.send(("barrier",))
    assert time.monotonic() - start < 5
    assert all(child.returncode is not None for child in processes.children)  # nothing runs, and nothing is a zombie
    processes.close()
    assert before >= {one for one in Path("/dev/shm").iterdir() if one.owner() == Path("/proc/self").owner()} if before else True


def test_a_rank_that_does_not_answer_is_given_up():
    processes = RankProcesses(2, run_commands, None)
    try:
        processes.send(("barrier",))
        processes.own.host.barrier()
        processes.own.host.links[1].settimeout(0.1)
        processes.own.host.time_limit_s = 0.1
        processes.send(("sleep", 60))
        with pytest.raises(PeerLostError, match=r"Rank 0 has waited 0.1 s for rank 1, which has not answered") as error:
            processes.own.host.barrier()
        assert error.value.peer == 1
    finally:
        processes.close()
    assert processes.children[0].returncode is not None


def test_ranks_end_with_the_process_that_started_them():
    """Without a call of close(), as when a program is killed: standard input and channels are closed by the system."""
    processes = RankProcesses(2, run_commands, None)
    [child] = processes.children
    child.stdin.close()
    assert child.wait(timeout=5) == 0
    processes.close()


def test_wrong_arrays_are_refused():
    alone = SharedMemoryCommunicator(0, bytearray(memory_bytes(1)), {})
    with pytest.raises(KernelArgumentError, match="all_reduce was given int32; it adds float32, float16, bfloat16"):
        alone.all_reduce(np.zeros(3, np.int32))
    with pytest.raises(KernelArgumentError, match=r"C-contiguous arrays, and one of strides \(8,\) was given"):
        alone.all_reduce(np.zeros(6, np.float32)[::2])
    with pytest.raises(KernelArgumentError, match=r"an out of float32 \[2, 3\]; it must be a C-contiguous float32 \[1, 3\] for \[3\] of 1"):
        alone.all_gather(np.zeros(3, np.float32), np.zeros((2, 3), np.float32))
    with pytest.raises(CommunicationError, match="Rank 0 has no link to rank 1"):
        alone.send(np.zeros(3), 1)
    alone.close()
    with pytest.raises(CommunicationError, match="closed"):
        alone.all_reduce(np.zeros(3, np.float32))


def test_this_process_keeps_no_files_open():
    """After all tests above: links, channels and the memory are closed."""
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("this system does not list open files")
    before = len(os.listdir("/proc/self/fd"))
    processes = RankProcesses(2, run_commands, None)
    processes.close()
    del processes
    deadline = time.monotonic() + 5
    while len(os.listdir("/proc/self/fd")) > before and time.monotonic() < deadline:  # the watching thread closes its own
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_ranks_that_do_not_compute_the_same_find_out():
    def exchange(rank):
        with pytest.raises(
            CommunicationError, match=f"Rank {rank.rank} exchanges .* bytes and rank {1 - rank.rank} .*: they do not compute"
        ):
            rank.host.all_reduce(np.zeros(4 + rank.rank, np.float32))

    in_threads(2, exchange)
