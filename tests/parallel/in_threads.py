"""Ranks as threads of one process, which start at once: for tests of what they compute, not of how they end."""

import itertools
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

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
