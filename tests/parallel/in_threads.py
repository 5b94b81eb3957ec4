"""Ranks as threads of one process, which start at once, and memory that they share: for tests of what they compute, not of how they end."""

import itertools
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np

from minllm.errors import DeviceError
from minllm.parallel.peer_memory import SharedMachine
from minllm.parallel.processes import Rank
from minllm.parallel.shared_memory import SharedMemoryCommunicator, memory_bytes

TIME_LIMIT_S = 60.0


def in_threads(world_size: int, work: Callable[[Rank], Any]) -> list[Any]:
    """What work(rank) returns on each rank. Raises the first error."""
    memory = bytearray(memory_bytes(world_size))
    links: list[dict[int, socket.socket]] = [{} for _ in range(world_size)]
    for a, b in itertools.combinations(range(world_size), 2):
        links[a][b], links[b][a] = socket.socketpair()
    ranks = [Rank(i, world_size, SharedMemoryCommunicator(i, memory, links[i], TIME_LIMIT_S), []) for i in range(world_size)]

    def run(rank: Rank) -> Any:
        try:
            return work(rank)
        finally:
            rank.host.close()  # the others learn of an error at once

    with ThreadPoolExecutor(world_size) as threads:
        futures = [threads.submit(run, rank) for rank in ranks]
        return [future.result() for future in futures]


class ThreadsMemory:
    """Memory that threads share by handles, as processes do that of a GPU. fails: ranks that cannot map it. closed: handles."""

    def __init__(self, fails=()):
        self.exported, self.fails, self.closed = {}, fails, []

    def machine(self, rank: int) -> SharedMachine:
        """The SharedMachine of a rank."""

        def export(nbytes):
            memory, handle = np.zeros(nbytes, np.uint8), b"%d of rank %d" % (len(self.exported), rank)
            self.exported[handle] = SimpleNamespace(
                bytes=memory, pointer=memory.ctypes.data, handle=handle, close=lambda: self.closed.append(handle)
            )
            return self.exported[handle]

        def opened(handle):
            if rank in self.fails:
                raise DeviceError("cannot map the memory of another rank's GPU")
            return self.exported[handle]

        def array(memory, first, size, dtype):
            return memory.bytes[first : first + size * np.dtype(dtype).itemsize].view(dtype)

        return SharedMachine(export, opened, array)
