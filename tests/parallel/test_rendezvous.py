"""How launched ranks meet, with a thread for each: who is missing, who does not belong, and what shares memory."""

import contextlib
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from minllm.errors import InvalidOptionError
from minllm.parallel.communicator import CommunicationError
from minllm.parallel.launched.environment import LaunchedRank, launched_rank
from minllm.parallel.launched.memory import connect
from minllm.parallel.launched.ranks import LaunchedRanks
from minllm.parallel.launched.rendezvous import meet
from minllm.parallel.processes import RankError
from minllm.parallel.shared_memory import SharedMemoryCommunicator
from minllm.parallel.sockets import PART_BYTES, SocketCommunicator
from tests.parallel.rank_programs import SUMMED, collectives, random_array

TORCHRUN = dict(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", MASTER_ADDR="node7", MASTER_PORT="1234")
OPEN_MPI = {f"OMPI_COMM_WORLD_{name}": value for name, value in dict(RANK="3", SIZE="4", LOCAL_RANK="1", LOCAL_SIZE="2").items()}
SLURM = dict(SLURM_PROCID="0", SLURM_NTASKS="2", SLURM_LOCALID="0", SLURM_NNODES="1")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def of_launch(ranks, per_host):
    """The ranks of a launch with this number on each host."""
    port = free_port()
    return [LaunchedRank(rank, ranks, rank % per_host, port=port) for rank in range(ranks)]


def together(ranks, work):
    """What work(rank) returns or raises for each, all at once."""

    def caught(rank):
        try:
            return work(rank)
        except CommunicationError as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(caught, ranks))


def close(connections):
    for one in (*connections.links.values(), *connections.channels.values(), *connections.reports.values()):
        one.close()


@pytest.mark.parametrize(
    ("environment", "wanted", "rank"),
    [
        (TORCHRUN, 2, LaunchedRank(1, 2, 1, "node7", 1234)),
        ({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"}, 2, LaunchedRank(1, 2, 1, "node7", 1235)),
        ({**OPEN_MPI, "MASTER_ADDR": "10.0.0.1"}, 4, LaunchedRank(3, 4, 1, "10.0.0.1", 29500)),
        (OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}, 2, LaunchedRank(1, 2, 1, "127.0.0.1", 29500)),
        (SLURM, 2, LaunchedRank(0, 2, 0, "127.0.0.1", 29500)),
    ],
)
def test_the_launchers_variables_say_which_rank_this_is(environment, wanted, rank):
    assert launched_rank(environment, wanted) == rank


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "RANK, WORLD_SIZE and LOCAL_RANK, which are not set: start the program with torchrun, mpirun or srun"),
        ({"RANK": "0", "LOCAL_RANK": "0"}, "WORLD_SIZE=None must be a number of at least 0"),
        ({**TORCHRUN, "RANK": "-1"}, "RANK='-1' must be a number of at least 0"),
        ({**TORCHRUN, "RANK": "2"}, "RANK=2, WORLD_SIZE=2, LOCAL_RANK=1 contradict each other"),
        ({**TORCHRUN, "WORLD_SIZE": "3"}, "WORLD_SIZE=3 processes were launched, and tensor_parallel_size x pipeline_parallel_size is 2"),
        ({**TORCHRUN, "MASTER_PORT": "70000"}, "MASTER_PORT=70000 is no port"),
        ({**SLURM, "SLURM_NNODES": "2"}, "MASTER_ADDR is not set: set it to the address of rank 0's host"),
    ],
)
def test_wrong_variables_are_refused(environment, message):
    with pytest.raises(InvalidOptionError) as error:
        launched_rank(environment, 2)
    assert message in str(error.value)


def test_collectives_across_hosts_have_the_bits_of_one_host():
    """Two hosts of two ranks: sockets among all, and shared memory in each host, whose group is that communicator."""
    sizes = [0, 1, 37, PART_BYTES // 4 + 3]

    def work(own):
        connections = meet(own, {}, 20.0)
        host = connect(own.rank, connections)
        group = host.group(range(own.first_of_host, own.first_of_host + 2))
        mine = np.full(3, own.rank, np.float32)
        group.all_reduce(mine)
        found = collectives(LaunchedRanksStandIn(own, host), sizes), mine, type(host), type(group)
        host.close()
        close(connections)
        return found

    results = together(of_launch(4, 2), work)
    for size in sizes:
        for dtype in SUMMED:
            wanted = sum(
                (random_array(rank, size, dtype).astype(np.float32) for rank in range(1, 4)),
                random_array(0, size, dtype).astype(np.float32),
            )
            for found, *_ in results:
                np.testing.assert_array_equal(found[f"all_reduce {dtype} {size}"], wanted.astype(dtype))
        for found, *_ in results:
            np.testing.assert_array_equal(found[f"broadcast {size}"], random_array(1, size, np.float64))
            np.testing.assert_array_equal(found[f"all_gather {size}"], [random_array(rank, size, np.float64) for rank in range(4)])
    for rank, (found, mine, world, group) in enumerate(results):
        assert all((found[f"ring {size}"] == (rank - 1) % 4).all() for size in sizes)
        assert (mine == (1 if rank < 2 else 5)).all() and (world, group) == (SocketCommunicator, SharedMemoryCommunicator)


class LaunchedRanksStandIn:
    """What `collectives` reads of a Rank."""

    def __init__(self, own, host):
        self.rank, self.world_size, self.host = own.rank, own.world_size, host


def test_a_rank_that_never_comes_is_named_by_all():
    own = of_launch(3, 3)
    start = time.monotonic()
    found = together(own[:2], lambda rank: meet(rank, {}, 0.3))
    assert "Rank 0 has waited 0.3 s for rank 2 of 3, and nobody has come" in str(found[0]) and str(found[1]) == str(found[0])
    [alone] = together(own[1:2], lambda rank: meet(rank, {}, 0.2))
    assert "Rank 1 has waited 0.2 s for rank 0 at 127.0.0.1:" in str(alone)
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(rank=1), "Two processes say that they are rank 1: every process must have a RANK of its own."),
        (dict(world_size=4), "Rank 2 says WORLD_SIZE=4, and rank 0 has WORLD_SIZE=3: start all ranks at once"),
    ],
)
def test_ranks_that_do_not_belong_end_all(change, message):
    own = of_launch(3, 3)
    own[2] = own[2]._replace(**change)
    found = together(own, lambda rank: meet(rank, {}, 5.0))
    assert message in str(found[0]) and message in str(found[2])
    assert isinstance(found[1], CommunicationError)


def test_ranks_that_disagree_end_all_with_both_values():
    agreed = [{"minllm": "0.1", "max_num_seqs": "4"}, {"minllm": "0.2", "max_num_seqs": "4"}]
    found = together(of_launch(2, 2), lambda rank: meet(rank, agreed[rank.rank], 5.0))
    message = "Rank 1 disagrees about minllm: 0.2, and rank 0 has 0.1. All ranks must run one program with the same options."
    assert [str(one) for one in found] == [message] * 2


@pytest.mark.parametrize("data", [b"SSH-2.0\n", b'{"token": "x"}\n'])
def test_a_port_in_use_is_named_by_rank_0_and_the_stranger_by_the_others(data):
    own = of_launch(2, 2)
    with socket.create_server(("127.0.0.1", own[0].port)) as stranger, ThreadPoolExecutor(1) as threads:

        def answer():
            for _ in range(3):
                stranger.accept()[0].sendall(data)

        threads.submit(answer)
        found = together(own, lambda rank: meet(rank, {}, 3.0))
    assert f"Rank 0 cannot listen at 127.0.0.1:{own[0].port}" in str(found[0]) and "a port that is free there" in str(found[0])
    assert "is not rank 0 of this program" in str(found[1])


def test_strangers_do_not_disturb():
    """A port scanner, a browser and programs that send JSON of their own connect to rank 0 first."""
    own = of_launch(2, 2)

    def stranger():
        with contextlib.suppress(OSError):
            greeting = dict(rank=1, world_size=2, first_of_host=0, host="h", agreed={}, purpose="link", listens=1)
            of_others = [[1], {}, {"purpose": ["link"]}, greeting | {"rank": "1"}, greeting | {"purpose": "store"}]
            lacking = [{name: value for name, value in greeting.items() if name != left_out} for left_out in greeting]
            for data in (b"", b"GET / HTTP/1.1\r\n\r\n", *(json.dumps(one).encode() + b"\n" for one in (*of_others, *lacking))):
                with socket.create_connection(("127.0.0.1", own[0].port), 5) as one:
                    one.sendall(data)

    with ThreadPoolExecutor(1) as threads:
        leader = threads.submit(meet, own[0], {}, 10.0)
        time.sleep(0.1)
        stranger()
        other = meet(own[1], {}, 10.0)
        found = leader.result()
    assert set(found.links) == {1} and set(other.links) == {0} and found.hosts == [0, 0]
    close(found)
    close(other)


def test_ranks_of_a_host_must_have_consecutive_numbers():
    own = [one._replace(local_rank=local) for one, local in zip(of_launch(4, 4), (0, 0, 2, 1), strict=True)]
    found = together(own, lambda rank: meet(rank, {}, 5.0))
    assert "number the ranks host by host (srun --distribution=block" in str(found[0]) and {str(one) for one in found} == {str(found[0])}


def test_a_failure_reaches_every_rank_and_a_goodbye_only_who_asks():
    def work(own):
        ranks = LaunchedRanks(own, {}, 10.0)
        try:
            if own.rank == 2:
                ranks.own.host.barrier()
                return str(ranks.failed(ValueError("a fault of this test")))
            ranks.own.host.barrier()
            ranks.own.host.barrier()  # rank 2 calls none here, so this one fails
        except CommunicationError as error:
            return str(ranks.failed(error))
        finally:
            ranks.close()

    start = time.monotonic()
    found = together(of_launch(3, 1), work)
    assert all(one.startswith("Rank 2 has failed, and all ranks have ended:") and "a fault of this test" in one for one in found)
    assert time.monotonic() - start < 5

    def leave(own):
        ranks = LaunchedRanks(own, {}, 10.0)
        ranks.own.host.barrier()
        if own.rank == 1:
            return ranks.close()
        while ranks.departed is None:
            time.sleep(0.01)
        with pytest.raises(RankError, match="Rank 1 has closed its LLM, or its program has ended"):
            ranks.send("a message")
        return ranks.close()

    assert together(of_launch(2, 2), leave) == [None, None]
