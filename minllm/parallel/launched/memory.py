"""Memory that the launched ranks of one host share, and their communicators."""

import mmap
import os
import tempfile

import numpy as np

from minllm.parallel.communicator import CommunicationError
from minllm.parallel.launched.rendezvous import Connections
from minllm.parallel.processes import MEMORY_FOLDER
from minllm.parallel.shared_memory import SharedMemoryCommunicator, memory_bytes
from minllm.parallel.sockets import SocketCommunicator

NAME_BYTES = 4096  # the longest path on Linux


def connect(rank: int, connections: Connections) -> SocketCommunicator:
    """A communicator of all ranks. Ranks of one host use shared memory: for everything if all are on it, else within its groups."""
    hosts, links = connections.hosts, connections.links
    first = hosts[rank]
    here = range(first, first + hosts.count(first))
    world = SocketCommunicator(rank, links)
    if len(here) == 1:
        return world
    sockets = SocketCommunicator(rank - first, {peer - first: link for peer, link in links.items() if peer in here})
    own = SharedMemoryCommunicator(sockets.rank, shared_memory(sockets), sockets.links)
    if len(here) == len(hosts):
        return own
    world.neighbours = here, own
    return world


def shared_memory(ranks: SocketCommunicator) -> mmap.mmap:
    """Memory that the ranks of one host map: a file that has a name only until all ranks have opened it."""
    size, name = memory_bytes(ranks.world_size), np.zeros(NAME_BYTES, np.uint8)
    folder = MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None
    if ranks.rank == 0:
        number, path = tempfile.mkstemp(prefix="minllm-", dir=folder)
        try:
            os.truncate(number, size)
            data = os.fsencode(path)
            name[: len(data)] = np.frombuffer(data, np.uint8)
            ranks.broadcast(name)
            mapped = mmap.mmap(number, size)
            failed = _any_failed(ranks, False)
        finally:
            os.unlink(path)
            os.close(number)
    else:
        ranks.broadcast(name)
        path, mapped = os.fsdecode(name.tobytes().rstrip(b"\0")), None
        try:
            with open(path, "r+b") as file:
                mapped = mmap.mmap(file.fileno(), size)
        except (OSError, ValueError):
            pass
        failed = _any_failed(ranks, mapped is None)
    if failed:
        raise CommunicationError(
            f"Ranks with consecutive LOCAL_RANKs cannot share memory at {path}: they must run on one host as one user, and containers must "
            "share it (docker run --ipc=host)."
        )
    return mapped


def _any_failed(ranks: SocketCommunicator, failed: bool) -> bool:
    """Whether a rank could not map the memory."""
    of_all = np.zeros((ranks.world_size, 1), np.uint8)
    ranks.all_gather(np.array([failed], np.uint8), of_all)
    return bool(of_all.any())
