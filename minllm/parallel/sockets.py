"""A Communicator of processes with sockets to each other, which also works between hosts.

    all_reduce    each rank sends its array to every peer, and adds up all arrays in the order of ranks

Of two ranks, the lower one sends first. Every rank takes its pairs in the order (0, 1), (0, 2), .., (1, 2), .., so the first pair that has
not exchanged yet can always do so, however little the system buffers: there is no circular wait. If a rank has ended, its peers read the
end of the socket at once instead of waiting.
"""

import socket
from collections.abc import Iterator, Mapping

import numpy as np

from minllm.errors import KernelArgumentError
from minllm.parallel.communicator import CommunicationError, PeerLostError, check_summed

PART_BYTES = 1 << 20  # an array of more bytes is exchanged in parts of this size
TIME_LIMIT_S = 600.0  # time limit of a wait: loading a large model may take minutes longer on one rank than on another


class SocketCommunicator:
    """See communicator.Communicator; arrays are NumPy's. Only one thread of a process may use it."""

    def __init__(self, rank: int, links: Mapping[int, socket.socket], time_limit_s: float = TIME_LIMIT_S):
        """links: a connected socket to every other rank."""
        self.rank, self.world_size, self.links, self.time_limit_s = rank, len(links) + 1, dict(links), time_limit_s
        self.neighbours: tuple[range, SocketCommunicator] | None = None  # the ranks of this host, and their faster communicator
        self._is_closed = False
        for link in self.links.values():
            link.settimeout(time_limit_s)

    def group(self, members: range) -> "SocketCommunicator":
        """A communicator of some consecutive ranks, this one among them, over the same links. Each rank can be in one group."""
        if self.neighbours is not None:
            ranks, communicator = self.neighbours
            if members == ranks:
                return communicator
            if members.start in ranks and members[-1] in ranks:
                return communicator.group(range(members.start - ranks.start, members.stop - ranks.start))
        return SocketCommunicator(self.rank - members.start, self._links_of(members), self.time_limit_s)

    def limit_waits(self, seconds: float) -> None:
        """From now on wait at most this long for a peer, also in the groups, which have the same links."""
        for link in self.links.values():
            link.settimeout(seconds)
        if self.neighbours is not None:
            self.neighbours[1].limit_waits(seconds)

    def all_reduce(self, array: np.ndarray) -> None:
        """array = the sum of all ranks' arrays, in place: float32, float16 or bfloat16, added in float32 in the order of ranks."""
        check_summed(array)
        for own, parts in self._parts(array):
            total = parts[0].astype(np.float32)
            for other in parts[1:]:
                total += other
            own[:] = total

    def all_gather(self, array: np.ndarray, out: np.ndarray) -> None:
        """out[r] = rank r's array."""
        if out.shape != (self.world_size, *array.shape) or out.dtype != array.dtype or not out.flags.c_contiguous:
            wanted = f"{array.dtype} {[self.world_size, *array.shape]} for {list(array.shape)} of {self.world_size} ranks"
            raise KernelArgumentError(f"all_gather was given an out of {out.dtype} {list(out.shape)}; it must be a C-contiguous {wanted}")
        flat, first = out.reshape(self.world_size, -1), 0
        for own, parts in self._parts(array):
            flat[:, first : first + len(own)] = parts
            first += len(own)

    def broadcast(self, array: np.ndarray, source: int = 0) -> None:
        """array = the array of rank `source`, in place."""
        for own, parts in self._parts(array):
            own[:] = parts[source]

    def send(self, array: np.ndarray, destination: int) -> None:
        """Send an array to a rank that calls recv."""
        self._give(destination, _bytes_of(array))

    def recv(self, array: np.ndarray, source: int) -> None:
        """Overwrite an array with the array that rank `source` sends."""
        self._receive(source, memoryview(_bytes_of(array)))

    def barrier(self) -> None:
        """Return once every rank has called it: each receives a byte from all others."""
        for peer in self.links:
            self._give(peer, b"\1")
        signal = memoryview(bytearray(1))
        for peer in self.links:
            self._receive(peer, signal)

    def close(self) -> None:
        """Close the links."""
        for link in self.links.values():
            link.close()
        self.links, self._is_closed = {}, True
        if self.neighbours is not None:
            self.neighbours[1].close()

    def _parts(self, array: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (a part of the array, this part of all ranks [world_size, part])."""
        self._check_open()
        flat, step = flat_row(array), PART_BYTES // array.itemsize
        for first in range(0, flat.size, step):
            own = flat[first : first + step]
            parts = np.empty((self.world_size, own.nbytes), np.uint8)
            parts[self.rank] = own.view(np.uint8)
            for peer in sorted(self.links):
                if peer < self.rank:
                    self._receive(peer, memoryview(parts[peer]))
                self._give(peer, parts[self.rank])
                if peer > self.rank:
                    self._receive(peer, memoryview(parts[peer]))
            yield own, parts.view(array.dtype)

    def _links_of(self, members: range) -> dict[int, socket.socket]:
        """The links to some consecutive ranks, by the ranks' numbers within this group."""
        return {peer - members.start: link for peer, link in self.links.items() if peer in members}

    def _give(self, destination: int, data: np.ndarray | bytes) -> None:
        """Send bytes to a rank."""
        try:
            self._link(destination).sendall(data)
        except OSError as error:
            raise self._lost(destination, error) from error

    def _receive(self, source: int, buffer: memoryview) -> None:
        """Fill a buffer with bytes from a rank."""
        link, have = self._link(source), 0
        while have < len(buffer):
            try:
                found = link.recv_into(buffer[have:])
            except OSError as error:
                raise self._lost(source, error) from error
            if not found:
                raise self._lost(source)
            have += found

    def _check_open(self) -> None:
        if self._is_closed:
            raise CommunicationError("This communicator is closed.")

    def _link(self, peer: int) -> socket.socket:
        if peer not in self.links:
            raise CommunicationError(f"Rank {self.rank} has no link to rank {peer}: it is closed, or there are {self.world_size} ranks.")
        return self.links[peer]

    def _lost(self, peer: int, error: OSError | None = None) -> PeerLostError:
        if isinstance(error, TimeoutError):
            waited = self.links[peer].gettimeout() or 0
            return PeerLostError(f"Rank {self.rank} has waited {waited:g} s for rank {peer}, which has not answered.", peer)
        return PeerLostError(f"Rank {peer} has ended while rank {self.rank} was waiting for it.", peer)


def flat_row(array: np.ndarray) -> np.ndarray:
    """A flat view of the array. Raises KernelArgumentError unless the array is C-contiguous."""
    if not array.flags.c_contiguous:
        raise KernelArgumentError(f"ranks exchange C-contiguous arrays, and one of strides {array.strides} was given: copy it first")
    return array.reshape(-1)


def _bytes_of(array: np.ndarray) -> np.ndarray:
    return flat_row(array).view(np.uint8)
