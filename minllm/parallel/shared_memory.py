"""A Communicator of processes on one host: data through memory that all of them map, signals through sockets.

    all_reduce    each rank writes its array to its own slot, signals its peers, waits for their signals, and adds up all slots

Every rank reads every slot (one-shot) and adds them in the order of ranks, so all get the same bits. A signal is the number of bytes, on
the socket between two ranks: the system orders it after the data, and ranks that do not compute the same find out. There are two sets of
slots, used alternately: the peers' signals of one operation imply that they have read the slots of the previous operation, which the next
one overwrites.
"""

import contextlib
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from minllm.parallel.communicator import CommunicationError
from minllm.parallel.sockets import PART_BYTES, TIME_LIMIT_S, SocketCommunicator, flat_row

SLOT_BYTES = PART_BYTES
SIZE_BYTES = 4  # the signal before an exchange is its number of bytes
LEVELS = 3  # levels of groups: all ranks, the ranks of a stage, and those of a stage that share a context


def memory_bytes(world_size: int) -> int:
    """Bytes that all ranks share: two sets of slots for all of them together, and two for the groups of each level."""
    return 2 * LEVELS * world_size * SLOT_BYTES


class SharedMemoryCommunicator(SocketCommunicator):
    """See communicator.Communicator; arrays are NumPy's. Only one thread of a process may use it."""

    def __init__(self, rank: int, memory: Any, links: Mapping[int, socket.socket], time_limit_s: float = TIME_LIMIT_S):
        """memory: `memory_bytes` writable bytes, the same on all ranks (a mmap.mmap). links: a connected socket to every other rank."""
        super().__init__(rank, links, time_limit_s)
        self._memory = memory
        self._slots: np.ndarray | None = self._slots_at(0, self.world_size)
        self._count = 0  # number of parts exchanged so far
        self._level, self._ranks, self._first = 0, self.world_size, 0  # level of the group, all ranks, number of the group's first rank

    def group(self, members: range) -> "SharedMemoryCommunicator":
        """A communicator of some consecutive ranks, this one among them, over the same links.

        A rank can be in one group, and in one group within that group.
        """
        group = SharedMemoryCommunicator(self.rank - members.start, self._memory, self._links_of(members), self.time_limit_s)
        group._level, group._ranks, group._first = self._level + 1, self._ranks, self._first + members.start
        group._slots = group._slots_at(2 * (group._level * group._ranks + group._first), len(members))
        return group

    def close(self) -> None:
        """Close the links and unmap the memory."""
        super().close()
        self._slots = None
        with contextlib.suppress(AttributeError, BufferError):  # no mapped file, or a view keeps it: then it is unmapped with the view
            self._memory.close()

    def _meet(self, nbytes: int) -> None:
        """A barrier of ranks that all exchange this number of bytes. Raises CommunicationError if a peer exchanges another number."""
        for peer in self.links:
            self._give(peer, nbytes.to_bytes(SIZE_BYTES, "little"))
        told = bytearray(SIZE_BYTES)
        for peer in self.links:
            self._receive(peer, memoryview(told))
            if (other := int.from_bytes(told, "little")) != nbytes:
                raise CommunicationError(
                    f"Rank {self.rank} exchanges {nbytes} bytes and rank {peer} {other}: they do not compute the same."
                )

    def _slots_at(self, first: int, ranks: int) -> np.ndarray:
        """Two sets of slots from slot number `first` of the memory on: [2, ranks, SLOT_BYTES]."""
        return np.frombuffer(self._memory, np.uint8).reshape(-1, SLOT_BYTES)[first : first + 2 * ranks].reshape(2, ranks, SLOT_BYTES)

    def _parts(self, array: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (a part of the array, this part of all ranks [world_size, part]), each once all ranks have written it."""
        self._check_open()
        flat, step = flat_row(array), SLOT_BYTES // array.itemsize
        for first in range(0, flat.size, step):
            own = flat[first : first + step]
            slots = self._slots[self._count % 2, :, : own.nbytes]
            slots[self.rank] = own.view(np.uint8)
            self._count += 1
            self._meet(own.nbytes)
            yield own, slots.view(array.dtype)
