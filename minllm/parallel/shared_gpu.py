"""A Communicator of ranks that share a GPU, each in its own process: for tests and lessons on a machine with one GPU.

    MINLLM_RANKS_PER_GPU=8 python program.py    ranks 0 to 7 use GPU 0, the next eight GPU 1

NCCL refuses two ranks on one GPU. Here every rank has a mailbox for each other rank, in memory that all of them map:

    box     BOX_BYTES bytes that one sender writes
    full    a flag of the reader: the box holds a message
    free    a flag of the sender: the reader has emptied the box

A sender takes `free`, fills the box and raises `full`; the reader takes `full`, copies the box and raises `free`. Longer messages are sent
in pieces. The stream waits for flags, not the host, so graphs can capture all of it. Processes take turns on a GPU, and a kernel that waits
for a peer uses up its turn of some milliseconds, so steps take many times as long as with a GPU for each rank.
"""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from minllm.kernels.all_reduce.one_shot import one_shot
from minllm.kernels.all_reduce.peers import RankLaunch
from minllm.kernels.arguments import ceil_div
from minllm.kernels.vector import VECTOR_BYTES
from minllm.parallel.communicator import CommunicationError, Communicator, check_contiguous, check_gathered, check_summed
from minllm.parallel.peer_communicator import WARM_UP_POLLS
from minllm.parallel.peer_memory import SharedMachine, connect_peers, gpu_machine, mapped_by_all
from minllm.runtime import stream_flags
from minllm.runtime.array_protocol import Array
from minllm.runtime.exported_memory import write_now
from minllm.runtime.stream_flags import FLAG_BYTES, RAISED

BOX_BYTES = 1 << 20
FULL, FREE = 0, 1  # kinds of flags
RELEASE_S = 0.001  # seconds between two releases of everything that waits


class MailboxCommunicator:
    """See communicator.Communicator; arrays are DeviceArrays of the GPU that the ranks share."""

    def __init__(
        self, host: Communicator, stream: int, machine: SharedMachine | None = None, operations: Any = stream_flags,
        launch: Callable[[RankLaunch], None] | None = None,
    ):  # fmt: skip
        """host: a communicator of the same ranks, for NumPy arrays. stream: the driver's handle.

        The others are stand-ins for the GPU: its memory, runtime/stream_flags.py, and launches. Raises CommunicationError if the processes
        cannot map each other's memory.
        """
        self.rank, self.world_size, self.stream, self._operations = host.rank, host.world_size, stream, operations
        self._launch = (lambda one: one.launch(stream)) if launch is None else launch
        self._machine = gpu_machine() if machine is None else machine
        self._flags_at = self.world_size * BOX_BYTES
        self._lock, self._is_ending, self._is_closed = threading.Lock(), False, False
        sums: Any = connect_peers(host, BOX_BYTES, VECTOR_BYTES, self._machine) if self.world_size > 1 else None
        memories: Any = mapped_by_all(host, self._flags_at + 2 * self.world_size * FLAG_BYTES, self._machine)
        for found in (sums, memories):
            if isinstance(found, str):
                raise CommunicationError(f"The ranks that share a GPU cannot map each other's memory: {found}")
        self._memories, self._mapped = memories, memories if sums is None else memories + sums.mapped
        self._peers = None if sums is None else sums.peers._replace(polls=WARM_UP_POLLS)  # longer than the time limit of a step
        for reader in range(self.world_size):
            operations.raise_flag(self._flag(self.rank, FREE, reader), stream)

    def all_reduce(self, array: Array) -> None:
        """array = the sum of all ranks' arrays, in place: float32, float16 or bfloat16."""
        check_summed(array)
        if self._peers is None:
            return
        own = self._box(self.rank, self.rank)  # the place of the sum: a rank sends itself no messages
        for at, nbytes in self._pieces(array):
            size = ceil_div(nbytes, VECTOR_BYTES) * VECTOR_BYTES // array.dtype.itemsize
            piece = self._machine.array(self._memories[self.rank], self.rank * BOX_BYTES, size, array.dtype)
            self._operations.copy_bytes(own, at, nbytes, self.stream)
            self._launch(one_shot(piece, piece, self._peers))
            self._operations.copy_bytes(at, own, nbytes, self.stream)

    def all_gather(self, array: Array, out: Array) -> None:
        """out[r] = rank r's array."""
        check_gathered(array, out, self.world_size)
        rows = [self._pieces(out[rank]) for rank in range(self.world_size)]
        for (at, nbytes), *targets in zip(self._pieces(array), *rows, strict=True):
            self._operations.copy_bytes(targets[self.rank][0], at, nbytes, self.stream)
            self._put(at, nbytes, self._others)
            for other in self._others:
                self._take(*targets[other], other)

    def broadcast(self, array: Array, source: int = 0) -> None:
        """array = the array of rank `source`, in place."""
        for at, nbytes in self._pieces(array):
            if self.rank == source:
                self._put(at, nbytes, self._others)
            else:
                self._take(at, nbytes, source)

    def send(self, array: Array, destination: int) -> None:
        """Send an array to a rank that calls recv."""
        for at, nbytes in self._pieces(array):
            self._put(at, nbytes, [destination])

    def recv(self, array: Array, source: int) -> None:
        """Overwrite an array with the array that rank `source` sends."""
        for at, nbytes in self._pieces(array):
            self._take(at, nbytes, source)

    def barrier(self) -> None:
        """Does nothing: operations on one stream have the same order on all ranks, and events report completion."""

    def abort(self) -> None:
        """Let everything that waits for a peer go on, from now until it is closed; results are undefined. Any thread may call it."""
        with self._lock:
            if not (self._is_ending or self._is_closed):
                self._is_ending = True
                threading.Thread(target=self._release, daemon=True).start()

    def close(self) -> None:
        """Release memory and links: nothing may use them any more."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                for memory in self._mapped:
                    memory.close()

    @property
    def _others(self) -> list[int]:
        return [rank for rank in range(self.world_size) if rank != self.rank]

    def _pieces(self, array: Array) -> Iterator[tuple[int, int]]:
        """(address, number of bytes) of the pieces of an array."""
        if self._is_ending or self._is_closed:
            raise CommunicationError("This communicator is closed.")
        check_contiguous(array)
        for first in range(0, array.nbytes, BOX_BYTES):
            yield array.pointer + first, min(BOX_BYTES, array.nbytes - first)

    def _put(self, at: int, nbytes: int, readers: list[int]) -> None:
        """Send a piece to each reader."""
        for reader in readers:
            self._operations.take_flag(self._flag(self.rank, FREE, reader), self.stream)
            self._operations.copy_bytes(self._box(reader, self.rank), at, nbytes, self.stream)
            self._operations.raise_flag(self._flag(reader, FULL, self.rank), self.stream)

    def _take(self, at: int, nbytes: int, sender: int) -> None:
        """Receive a piece."""
        self._operations.take_flag(self._flag(self.rank, FULL, sender), self.stream)
        self._operations.copy_bytes(at, self._box(self.rank, sender), nbytes, self.stream)
        self._operations.raise_flag(self._flag(sender, FREE, self.rank), self.stream)

    def _box(self, reader: int, sender: int) -> int:
        """The address of a box."""
        return self._memories[reader].pointer + sender * BOX_BYTES

    def _flag(self, owner: int, kind: int, other: int) -> int:
        """The address of a flag in the memory of its owner, who waits for it: FULL of the box from `other`, or FREE of the box for it."""
        return self._memories[owner].pointer + self._flags_at + (kind * self.world_size + other) * FLAG_BYTES

    def _release(self) -> None:
        """Raise every flag for which this rank may wait, again and again: what goes on lowers them."""
        flags = self._machine.array(self._memories[self.rank], self._flags_at, 2 * self.world_size, np.uint32)
        while True:
            with self._lock:
                if self._is_closed:
                    return
                write_now(flags, RAISED)
                if self._peers is not None:
                    write_now(self._peers.own.fault, self.rank + 1)
            time.sleep(RELEASE_S)
