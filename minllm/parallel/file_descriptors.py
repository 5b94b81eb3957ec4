"""File descriptors from every rank to every other, over Unix sockets: they cannot be sent as numbers.

Ranks may have been launched apart, so they meet at names in the kernel's abstract namespace. Every user can list these names, so a rank
takes descriptors only from processes of its own user that know a key. All ranks send before any receives, so no rank waits for a stranger.
Source: unix(7), "Abstract sockets", SCM_RIGHTS and SO_PEERCRED.
"""

import contextlib
import os
import socket
import struct

import numpy as np

from minllm.parallel.communicator import CommunicationError, Communicator
from minllm.parallel.peer_memory import on_all
from minllm.parallel.time_limits import step_seconds

MOST_AT_ONCE = 253  # SCM_MAX_FD, descriptors per message
KEY_BYTES, NAME_BYTES = 16, 8  # the key's first bytes make the sockets' names
HEADER = struct.Struct(f"{KEY_BYTES}s2i")  # key, rank, number of descriptors
CREDENTIALS = struct.Struct("3i")  # process, user, group


def exchanged(host: Communicator, given: list[list[int]]) -> list[list[int]]:
    """Descriptors of all ranks: result[r] are this process's own for what rank r has given to this rank; the caller closes them.

    given: for each rank, which the caller closes as well. host: a communicator of the same ranks, for NumPy arrays. Raises
    CommunicationError on all ranks if one fails, or a peer does not come within the host's time limit; nothing stays open then.
    """
    drawn = np.frombuffer(os.urandom(KEY_BYTES), np.uint8).copy()
    host.broadcast(drawn)
    key = drawn.tobytes()
    received: list[list[int]] = [[] for _ in given]
    with contextlib.ExitStack() as stack:
        server = on_all(host, lambda: stack.enter_context(listening(key, host.rank)))
        on_all(host, lambda: [send(key, host.rank, peer, of_peer) for peer, of_peer in enumerate(given) if peer != host.rank])
        try:
            on_all(host, lambda: receive(server, key, host.rank, received))
        except CommunicationError:
            for descriptor in sum(received, []):
                os.close(descriptor)
            raise
    return received


def name_of(key: bytes, rank: int) -> str:
    """The name of a rank's socket."""
    return f"\0minllm-{key[:NAME_BYTES].hex()}-{rank}"


def listening(key: bytes, rank: int) -> socket.socket:
    """The socket to which peers connect; accepting does not wait. Raises OSError, and CommunicationError on systems other than Linux."""
    if not hasattr(socket, "SO_PEERCRED"):
        raise CommunicationError("ranks hand over file descriptors on Linux alone")
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(name_of(key, rank))
    server.listen()
    server.setblocking(False)
    return server


def send(key: bytes, rank: int, peer: int, descriptors: list[int]) -> None:
    """Leave descriptors with a peer that is listening, for its `receive`. Raises CommunicationError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.settimeout(step_seconds())
        try:
            link.connect(name_of(key, peer))
            link.sendall(HEADER.pack(key, rank, len(descriptors)))
            for first in range(0, len(descriptors), MOST_AT_ONCE):
                socket.send_fds(link, [b"\0"], descriptors[first : first + MOST_AT_ONCE])
        except OSError as error:
            raise CommunicationError(
                f"no file descriptors could be sent to rank {peer} ({error}): ranks must share a host and a network namespace"
            ) from error


def receive(server: socket.socket, key: bytes, rank: int, received: list[list[int]]) -> None:
    """Receive what all peers have sent; strangers are passed over. If this raises an error, the caller closes what came until then."""
    missing = set(range(len(received))) - {rank}
    while missing:
        try:
            link, _ = server.accept()
        except BlockingIOError:
            raise CommunicationError(f"rank {min(missing)} has sent no file descriptors") from None
        with link:
            link.setblocking(False)
            if (found := sender(link, key)) is None:
                continue
            peer, count = found
            while len(received[peer]) < count:
                _, descriptors, _, _ = socket.recv_fds(link, 1, MOST_AT_ONCE)
                if not descriptors:
                    raise CommunicationError(
                        f"only {len(received[peer])} of {count} file descriptors of rank {peer} have arrived, because this process may "
                        "open no more: raise `ulimit -n`"
                    )
                received[peer] += descriptors
            missing.discard(peer)


def sender(link: socket.socket, key: bytes) -> tuple[int, int] | None:
    """(rank, number of descriptors that it has sent) of the process at the other end; None for a stranger."""
    _, user, _ = CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    try:
        header = link.recv(HEADER.size)
    except BlockingIOError:  # it has said nothing
        return None
    if user != os.geteuid() or len(header) != HEADER.size:
        return None
    told, rank, count = HEADER.unpack(header)
    return (rank, count) if told == key else None
