"""What the started ranks of the tests run."""

import contextlib
import os
import signal
import time

import ml_dtypes
import numpy as np

from minllm.parallel.file_descriptors import exchanged
from minllm.parallel.processes import Rank

SUMMED = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def random_array(rank, size, dtype):
    """What a rank brings to an operation; every process can make that of every rank."""
    return np.random.default_rng([rank, size]).normal(size=size).astype(dtype)


def collectives(rank: Rank, sizes: list[int]) -> dict:
    """The results of every operation on this rank, by a name."""
    found, link = {}, rank.host
    for size in sizes:
        for dtype in SUMMED:
            array = random_array(rank.rank, size, dtype)
            link.all_reduce(array)
            found[f"all_reduce {dtype} {size}"] = array
        array = random_array(rank.rank, size, np.float64)
        out = np.full((rank.world_size, size), np.nan)
        link.all_gather(array, out)
        found[f"all_gather {size}"] = out
        link.broadcast(array, source=1)
        found[f"broadcast {size}"] = array
        right, left = (rank.rank + 1) % rank.world_size, (rank.rank - 1) % rank.world_size
        received = np.empty(size, np.int32)
        mine = np.full(size, rank.rank, np.int32)
        if rank.rank % 2:  # a ring of ranks that all send first would wait for each other
            link.recv(received, left)
            link.send(mine, right)
        else:
            link.send(mine, right)
            link.recv(received, left)
        found[f"ring {size}"] = received
    link.barrier()
    return found


def texts_of_files(rank: Rank, count: int) -> tuple[list[list[str]], int]:
    """([peer][number] -> the text of a file that a peer has given to this rank, how many more files are open than before)."""
    before = len(os.listdir("/proc/self/fd"))
    with contextlib.ExitStack() as files:
        own = [[files.enter_context(open(os.memfd_create("text"), "w+b")) for _ in range(count)] for _ in range(rank.world_size)]
        for peer, of_peer in enumerate(own):
            for number, file in enumerate(of_peer):
                file.write(b"%d %d %d" % (rank.rank, peer, number))
                file.flush()
        received = exchanged(rank.host, [[file.fileno() for file in of_peer] for of_peer in own])
        opened = [[files.enter_context(open(one, "rb")) for one in of_peer] for of_peer in received]
        found = [[os.pread(file.fileno(), 99, 0).decode() for file in of_peer] for of_peer in opened]
    return found, len(os.listdir("/proc/self/fd")) - before


def wanted_texts(rank, ranks, count):
    """What a rank reads from the files of all ranks."""
    return [[f"{peer} {rank} {number}" for number in range(count if peer != rank else 0)] for peer in range(ranks)]


def run_commands(rank: Rank, _argument) -> None:
    """Do what rank 0 sends, in turn: ("collectives", sizes), ("files", count), ("raise",), ("kill",), ("sleep", seconds)."""
    while True:
        command, *rest = rank.channel.recv()
        if command == "collectives":
            rank.channel.send(collectives(rank, *rest))
        elif command == "files":
            rank.channel.send(texts_of_files(rank, *rest))
        elif command == "barrier":
            rank.host.barrier()
        elif rank.rank == 1 and command == "raise":
            raise ValueError("a fault of this test")
        elif rank.rank == 1 and command == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif rank.rank == 1 and command == "sleep":
            time.sleep(*rest)
        else:  # the others wait for rank 1
            rank.host.barrier()
