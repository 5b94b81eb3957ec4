"""File descriptors from every rank to every other, over Unix sockets: they cannot be sent as numbers.

Ranks may have been launched apart, so they meet at names in the kernel's abstract namespace, made of a key that only they know.
Source: unix(7), "Abstract sockets", SCM_RIGHTS and SO_PEERCRED.
"""

import contextlib
import os
import socket
import struct
import time

import numpy as np

from minllm.parallel.communicator import CommunicationError, Communicator
from minllm.parallel.peer_memory import on_all
from minllm.parallel.time_limits import step_seconds

MOST_AT_ONCE = 253  # SCM_MAX_FD, descriptors per message
KEY_BYTES = 16
CREDENTIALS = struct.Struct("3i")  # process, user, group


def exchanged(host: Communicator, given: list[list[int]]) -> list[list[int]]:
    """Descriptors of all ranks: result[r] are this process's own for what rank r has given to this rank; the caller closes them.

    given: for each rank, which the caller closes as well. host: a communicator of the same ranks, for NumPy arrays. Raises
    CommunicationError on all ranks if one fails, or a peer does not come within a step's time limit; nothing stays open then.
    """
    key = np.frombuffer(os.urandom(KEY_BYTES), np.uint8).copy()
    host.broadcast(key)
    received: list[list[int]] = [[] for _ in given]
    with contextlib.ExitStack() as stack:
        server = on_all(host, lambda: stack.enter_context(listening(key.tobytes(), host.rank)))
        try:
            on_all(host, lambda: exchange(server, key.tobytes(), host.rank, given, received))
        except CommunicationError:
            for descriptor in sum(received, []):
                os.close(descriptor)
            raise
    return received


def name_of(key: bytes, rank: int) -> str:
    """The name of a rank's socket."""
    return f"\0minllm-{key.hex()}-{rank}"


def listening(key: bytes, rank: int) -> socket.socket:
    """The socket to which peers connect. Raises OSError."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(name_of(key, rank))
    server.listen()
    return server


def exchange(server: socket.socket, key: bytes, rank: int, given: list[list[int]], received: list[list[int]]) -> None:
    """Send to all peers, which are listening, then receive from all. Raises CommunicationError or OSError."""
    with contextlib.ExitStack() as stack:
        for peer, descriptors in enumerate(given):
            if peer != rank:
                link = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                link.settimeout(step_seconds())
                link.connect(name_of(key, peer))
                link.sendall(key + struct.pack("2i", rank, len(descriptors)))
                for first in range(0, len(descriptors), MOST_AT_ONCE):
                    socket.send_fds(link, [b"\0"], descriptors[first : first + MOST_AT_ONCE])
        missing, end = set(range(len(given))) - {rank}, time.monotonic() + step_seconds()
        while missing:
            server.settimeout(max(end - time.monotonic(), 1e-3))
            try:
                link, _ = server.accept()
            except TimeoutError:
                raise CommunicationError(f"rank {min(missing)} has sent no file descriptors for {step_seconds():g} s") from None
            with link:
                link.settimeout(step_seconds())
                missing.discard(receive(link, key, received))


def receive(link: socket.socket, key: bytes, received: list[list[int]]) -> int | None:
    """Receive what one peer sends; returns its rank, or None for a stranger."""
    _, user, _ = CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    first = link.recv(KEY_BYTES + 8) if user == os.geteuid() else b""
    if len(first) != KEY_BYTES + 8 or first[:KEY_BYTES] != key:
        return None
    peer, count = struct.unpack("2i", first[KEY_BYTES:])
    while len(received[peer]) < count:
        word, descriptors, _, _ = socket.recv_fds(link, 1, MOST_AT_ONCE)
        received[peer] += descriptors
        if not word:
            raise CommunicationError(f"rank {peer} has ended before it sent {count} file descriptors")
    return peer
