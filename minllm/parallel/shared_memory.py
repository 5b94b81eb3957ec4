"""A Communicator of processes on one host: data through memory that all of them map, signals through sockets.

    all_reduce    each rank writes its array to its own slot, tells its peers, hears from all of them, and adds up all slots

Every rank reads every slot (one-shot) and adds them in the order of ranks, so all get the same bits. A signal is one byte on the socket
between two ranks: the system orders it after the data, and if a rank has ended, its peers read the end of the socket at once instead of
waiting. There are two sets of slots, used in turn: a rank that hears its peers' signals of one operation knows that they have read the
slots of the operation before, which the next one overwrites.
"""

import contextlib
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from minllm.errors import KernelArgumentError
from minllm.parallel.communicator import CommunicationError, PeerLostError

SLOT_BYTES = 1 << 20  # an array of more bytes is sent in parts of this size
TIME_LIMIT_S = 600.0  # the longest wait for a peer: loading a large model may take minutes longer on one rank than on another
SUMMED = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def memory_bytes(world_size: int) -> int:
    """Bytes that all ranks share: two sets of slots for all of them together, and two for the group that each may be in."""
    return 2 * 2 * world_size * SLOT_BYTES


class SharedMemoryCommunicator:
    """See communicator.Communicator; arrays are NumPy's. Only one thread of a process may use it."""

    def __init__(self, rank: int, memory: Any, links: Mapping[int, socket.socket], time_limit_s: float = TIME_LIMIT_S):
        """memory: `memory_bytes` writable bytes, the same on all ranks (a mmap.mmap). links: a connected socket to every other rank."""
        self.rank, self.world_size, self.links, self.time_limit_s = rank, len(links) + 1, dict(links), time_limit_s
        self._memory = memory
        self._slots: np.ndarray | None = self._slots_at(0, self.world_size)
        self._count = 0  # of parts so far
        for link in self.links.values():
            link.settimeout(time_limit_s)

    def group(self, members: range) -> "SharedMemoryCommunicator":
        """A communicator of some neighbouring ranks, this one among them, over the same links. Each rank can be in one group."""
        links = {peer - members.start: link for peer, link in self.links.items() if peer in members}
        group = SharedMemoryCommunicator(self.rank - members.start, self._memory, links, self.time_limit_s)
        group._slots = self._slots_at(2 * (self.world_size + members.start), len(members))
        return group

    def _slots_at(self, first: int, ranks: int) -> np.ndarray:
        """Two sets of slots from slot number `first` of the memory on: [2, ranks, SLOT_BYTES]."""
        return np.frombuffer(self._memory, np.uint8).reshape(-1, SLOT_BYTES)[first : first + 2 * ranks].reshape(2, ranks, SLOT_BYTES)

    def all_reduce(self, array: np.ndarray) -> None:
        """array = the sum of all ranks' arrays, in place: float32, float16 or bfloat16, added in float32 in the order of ranks."""
        if array.dtype not in SUMMED:
            raise KernelArgumentError(f"all_reduce was given {array.dtype}; it adds {', '.join(one.name for one in SUMMED)}")
        for own, slots in self._parts(array):
            total = slots[0].astype(np.float32)
            for other in slots[1:]:
                total += other
            own[:] = total

    def all_gather(self, array: np.ndarray, out: np.ndarray) -> None:
        """out[r] = rank r's array."""
        if out.shape != (self.world_size, *array.shape) or out.dtype != array.dtype or not out.flags.c_contiguous:
            wanted = f"{array.dtype} {[self.world_size, *array.shape]} for {list(array.shape)} of {self.world_size} ranks"
            raise KernelArgumentError(f"all_gather was given an out of {out.dtype} {list(out.shape)}; it must be a C-contiguous {wanted}")
        flat, first = out.reshape(self.world_size, -1), 0
        for own, slots in self._parts(array):
            flat[:, first : first + len(own)] = slots
            first += len(own)

    def broadcast(self, array: np.ndarray, source: int = 0) -> None:
        """array = that of rank `source`, in place."""
        for own, slots in self._parts(array):
            own[:] = slots[source]

    def send(self, array: np.ndarray, destination: int) -> None:
        """Give an array to the rank that calls recv."""
        try:
            self._link(destination).sendall(_bytes_of(array))
        except OSError as error:
            raise self._lost(destination, error) from error

    def recv(self, array: np.ndarray, source: int) -> None:
        """Overwrite an array with what rank `source` sends."""
        self._receive(source, memoryview(_bytes_of(array)))

    def barrier(self) -> None:
        """Return once every rank has called it: each hears from all others."""
        for peer in self.links:
            try:
                self._link(peer).sendall(b"\1")
            except OSError as error:
                raise self._lost(peer, error) from error
        signal = memoryview(bytearray(1))
        for peer in self.links:
            self._receive(peer, signal)

    def close(self) -> None:
        """Close the links and unmap the memory."""
        for link in self.links.values():
            link.close()
        self.links, self._slots = {}, None
        with contextlib.suppress(AttributeError, BufferError):  # no mapped file, or a view of it lives on: then it goes with the view
            self._memory.close()

    def _parts(self, array: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(a part of the array, [world_size, part] that of all ranks): one after the other, each once all ranks have written it."""
        if self._slots is None:
            raise CommunicationError("This communicator is closed.")
        flat, step = _flat(array), SLOT_BYTES // array.itemsize
        for first in range(0, flat.size, step):
            own = flat[first : first + step]
            slots = self._slots[self._count % 2, :, : own.nbytes]
            slots[self.rank] = own.view(np.uint8)
            self._count += 1
            self.barrier()
            yield own, slots.view(array.dtype)

    def _receive(self, source: int, buffer: memoryview) -> None:
        """Fill a buffer with what comes from a rank."""
        link, have = self._link(source), 0
        while have < len(buffer):
            try:
                found = link.recv_into(buffer[have:])
            except OSError as error:
                raise self._lost(source, error) from error
            if not found:
                raise self._lost(source)
            have += found

    def _link(self, peer: int) -> socket.socket:
        if peer not in self.links:
            raise CommunicationError(f"Rank {self.rank} has no link to rank {peer}: it is closed, or there are {self.world_size} ranks.")
        return self.links[peer]

    def _lost(self, peer: int, error: OSError | None = None) -> PeerLostError:
        if isinstance(error, TimeoutError):
            return PeerLostError(f"Rank {self.rank} has waited {self.time_limit_s:g} s for rank {peer}, which has not answered.", peer)
        return PeerLostError(f"Rank {peer} has ended while rank {self.rank} was waiting for it.", peer)


def _flat(array: np.ndarray) -> np.ndarray:
    """The array's elements in one row. KernelArgumentError unless they can be overwritten there."""
    if not array.flags.c_contiguous:
        raise KernelArgumentError(f"ranks exchange C-contiguous arrays, and one of strides {array.strides} was given: copy it first")
    return array.reshape(-1)


def _bytes_of(array: np.ndarray) -> np.ndarray:
    return _flat(array).view(np.uint8)
