"""Connect launched ranks over TCP, and check that they belong to one run.

    rank r > 0   connects to rank 0 three times (link, channel, report), and sends its rank, the port at which it listens, and its options
    rank 0       waits for all, compares, and sends all a token of this run and the addresses of the others, or an error
    rank r > 0   connects to ranks 1 to r - 1, and accepts the connections of higher ranks

Greetings are lines of JSON; a connection that sends something else is closed and ignored. All waits end at one deadline, with the numbers
of the missing ranks. Once the ranks are connected, none of them listens any more. Later messages are neither encrypted nor signed, as with
torch.distributed and NCCL: the network between the hosts must be one that you trust.
"""

import contextlib
import json
import secrets
import socket
import time
from typing import Any, NamedTuple

from minllm.parallel.communicator import CommunicationError
from minllm.parallel.launched.environment import LaunchedRank

LINK, CHANNEL, REPORT = PURPOSES = "link", "channel", "report"
# the fields of a greeting to rank 0 that are read there, and of its answer
GREETING = dict(rank=int, world_size=int, first_of_host=int, host=str, agreed=dict, purpose=str, listens=int)
ANSWER = dict(token=str, places=dict, hosts=list)
MOST_BYTES = 1 << 20  # limit of a greeting
GREETING_S = 5.0  # time limit for the greeting of an accepted connection; another program may send nothing
RETRY_S = 0.05
PROBES = (("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 4))  # a host that answers no probe for 5 s counts as lost
Sockets = dict[int, socket.socket]  # rank -> socket


class Connections(NamedTuple):
    """A rank's sockets to the other ranks."""

    links: Sockets  # to every other rank
    channels: Sockets  # between rank 0 and every other rank
    reports: Sockets
    hosts: list[int]  # for each rank, the lowest rank of its host


def meet(own: LaunchedRank, agreed: dict[str, str], time_limit_s: float) -> Connections:
    """Connect all ranks. agreed: names and values that must be the same on all of them.

    Raises CommunicationError on every rank that takes part if ranks are missing after the time limit, appear twice, or disagree, if the
    port is in use, or if another program answers there.
    """
    with contextlib.ExitStack() as opened:
        meeting = Meeting(own, agreed, time_limit_s, opened)
        try:
            found = meeting.join() if own.rank else meeting.gather()
        except OSError as error:
            raise CommunicationError(f"Rank {own.rank} has lost another while they were meeting ({error}): see what that says.") from error
        opened.pop_all()
    for one in (*found.links.values(), *found.channels.values(), *found.reports.values()):
        one.settimeout(None)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in PROBES:
            if hasattr(socket, name):
                one.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return found


class Meeting:
    """One rank's part in the rendezvous. opened: closes its sockets if it fails."""

    def __init__(self, own: LaunchedRank, agreed: dict[str, str], time_limit_s: float, opened: contextlib.ExitStack):
        self.own, self.time_limit_s, self.opened = own, time_limit_s, opened
        self.deadline = time.monotonic() + time_limit_s
        self.where = f"{own.address}:{own.port}"
        self.greeting = own._asdict() | {"first_of_host": own.first_of_host, "host": socket.gethostname(), "agreed": agreed}

    def gather(self) -> Connections:
        """Rank 0: wait for all others, and send them each other's addresses."""
        arrived: dict[str, Sockets] = {purpose: {} for purpose in PURPOSES}
        greetings, links = {0: self.greeting}, []
        with self._listen(self.own.address, self.own.port) as listener:
            try:
                while missing := [rank for rank in range(1, self.own.world_size) if any(rank not in found for found in arrived.values())]:
                    connection, greeting = self._accept(listener, missing)
                    if not has_fields(greeting, GREETING) or greeting["purpose"] not in arrived:  # not a rank
                        connection.close()
                        continue
                    rank, purpose = greeting["rank"], greeting["purpose"]
                    if purpose == LINK:
                        links.append(connection)
                        self._check(rank, greeting, arrived[LINK])
                        greetings[rank] = greeting | {"place": connection.getpeername()[0]}
                    arrived[purpose][rank] = connection
                hosts = hosts_of(greetings)
            except CommunicationError as error:
                tell_all(links, {"error": str(error)})
                raise
        places = {rank: (one["place"], one["listens"]) for rank, one in greetings.items() if rank}
        tell_all(links, {"token": secrets.token_hex(16), "places": places, "hosts": hosts})
        return Connections(arrived[LINK], arrived[CHANNEL], arrived[REPORT], hosts)

    def join(self) -> Connections:
        """Any other rank: connect to rank 0, then to the others."""
        link = self._connect(0, (self.own.address, self.own.port))
        with self._listen(link.getsockname()[0], 0) as listener:
            to_leader = {LINK: link}
            with contextlib.suppress(OSError):  # rank 0 has refused this rank already, and sends the reason on the link
                for purpose in PURPOSES:
                    if purpose != LINK:
                        place = self.own.address, self.own.port
                        to_leader[purpose] = self.opened.enter_context(socket.create_connection(place, self._left()))
                    _send(to_leader[purpose], self.greeting | {"purpose": purpose, "listens": listener.getsockname()[1]})
            welcome = self._answer(link)
            mine, links = {"token": welcome["token"], "rank": self.own.rank}, {0: link}
            for rank in range(1, self.own.rank):
                links[rank] = self._connect(rank, tuple(welcome["places"][str(rank)]))
                _send(links[rank], mine)
            while missing := [rank for rank in range(1, self.own.world_size) if rank not in links and rank != self.own.rank]:
                connection, greeting = self._accept(listener, missing)
                if greeting.get("token") == welcome["token"]:
                    links[greeting["rank"]] = connection
        return Connections(links, {0: to_leader[CHANNEL]}, {0: to_leader[REPORT]}, welcome["hosts"])

    def _listen(self, address: str, port: int) -> socket.socket:
        """A listening socket. port: 0 for any. Raises CommunicationError if the address cannot be used."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = self.opened.enter_context(socket.socket(family))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the port of a run that has just ended counts as free
        try:
            listener.bind((address, port))
        except OSError as error:
            raise CommunicationError(
                f"Rank {self.own.rank} cannot listen at {address}:{port} ({error}): MASTER_ADDR must be an address of the host of rank 0, "
                "and MASTER_PORT a port that is free there, the same on all ranks."
            ) from error
        listener.listen(4 * self.own.world_size)
        return listener

    def _accept(self, listener: socket.socket, missing: list[int]) -> tuple[socket.socket, dict[str, Any]]:
        """The next connection with a valid greeting, and the greeting. Raises CommunicationError after the deadline."""
        while True:
            try:
                listener.settimeout(self._left())
                connection, _ = listener.accept()
            except TimeoutError as error:
                ranks = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
                raise CommunicationError(
                    f"Rank {self.own.rank} has waited {self.time_limit_s:g} s for {ranks} of {self.own.world_size}, and nobody has come: "
                    "start all of them, with the same MASTER_ADDR and MASTER_PORT."
                ) from error
            connection.settimeout(min(GREETING_S, self._left()))
            try:
                return self.opened.enter_context(connection), _receive(connection)
            except (OSError, ValueError):  # not a rank
                connection.close()

    def _connect(self, rank: int, place: tuple[str, int]) -> socket.socket:
        """A connection to the address at which a rank listens, or soon will. Raises CommunicationError after the deadline."""
        while True:
            try:
                return self.opened.enter_context(socket.create_connection(place, self._left()))
            except socket.gaierror as error:
                raise CommunicationError(f"Rank {self.own.rank} does not find the host {place[0]!r} ({error}): set MASTER_ADDR.") from error
            except OSError as error:
                if time.monotonic() + RETRY_S >= self.deadline:
                    raise CommunicationError(
                        f"Rank {self.own.rank} has waited {self.time_limit_s:g} s for rank {rank} at {place[0]}:{place[1]} ({error}): "
                        "start all ranks, with the same MASTER_ADDR and MASTER_PORT."
                    ) from error
                time.sleep(RETRY_S)

    def _answer(self, link: socket.socket) -> dict[str, Any]:
        """The answer of rank 0 once all ranks are connected. Raises CommunicationError if it is an error, or there is no answer."""
        link.settimeout(self._left() + GREETING_S)  # longer than rank 0 waits, so that its error names the missing ranks
        try:
            answer = _receive(link)
            if "error" not in answer and not has_fields(answer, ANSWER):
                raise ValueError("no answer of rank 0")
        except TimeoutError as error:
            raise CommunicationError(
                f"Rank {self.own.rank} has had no answer from {self.where} for {self.time_limit_s:g} s: something else than rank 0 may "
                "listen there; take another MASTER_PORT on all ranks."
            ) from error
        except (OSError, ValueError) as error:
            raise CommunicationError(
                f"What answers at {self.where} is not rank 0 of this program, or it has ended: see what rank 0 says, and take a "
                "MASTER_PORT that is free on its host."
            ) from error
        if "error" in answer:
            raise CommunicationError(str(answer["error"]))
        return answer

    def _check(self, rank: int, greeting: dict[str, Any], arrived: Sockets) -> None:
        """Raise CommunicationError unless a rank belongs to this run and has the same options."""
        world_size = greeting["world_size"]
        if world_size != self.own.world_size or not 0 < rank < world_size:
            raise CommunicationError(
                f"Rank {rank} says WORLD_SIZE={world_size}, and rank 0 has WORLD_SIZE={self.own.world_size}: start all ranks at once, with "
                "the same number."
            )
        if rank in arrived:
            raise CommunicationError(f"Two processes say that they are rank {rank}: every process must have a RANK of its own.")
        theirs, mine = greeting["agreed"], self.greeting["agreed"]
        apart = [name for name in {**mine, **theirs} if theirs.get(name) != mine.get(name)]
        if apart:
            difference = "; ".join(f"{name}: {theirs.get(name)}, and rank 0 has {mine.get(name)}" for name in apart)
            raise CommunicationError(f"Rank {rank} disagrees about {difference}. All ranks must run one program with the same options.")

    def _left(self) -> float:
        """Seconds to the deadline, at least RETRY_S."""
        return max(RETRY_S, self.deadline - time.monotonic())


def hosts_of(greetings: dict[int, dict[str, Any]]) -> list[int]:
    """For each rank, the lowest rank of its host. Raises CommunicationError unless the ranks of a host have consecutive numbers."""
    hosts = [greetings[rank]["first_of_host"] for rank in sorted(greetings)]
    for rank, first in enumerate(hosts):
        names = {greetings[one]["host"] for one in range(first, rank + 1)}
        if hosts[first : rank + 1] != [first] * (rank + 1 - first) or len(names) > 1:
            raise CommunicationError(
                f"Ranks {first} to {rank} should be on one host, because LOCAL_RANK of rank {rank} is {rank - first}, and are on "
                f"{', '.join(sorted(names))}: number the ranks host by host (srun --distribution=block, mpirun --map-by slot)."
            )
    return hosts


def has_fields(message: dict[str, Any], fields: dict[str, type]) -> bool:
    """Whether a message has all of these fields, {name: type}."""
    return all(isinstance(message.get(name), kind) for name, kind in fields.items())


def tell_all(links: list[socket.socket], message: dict[str, Any]) -> None:
    """Send a message to every rank; ranks that have ended are ignored here, and detected at their next use."""
    for link in links:
        with contextlib.suppress(OSError):
            _send(link, message)


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _receive(connection: socket.socket) -> dict[str, Any]:
    """One line of JSON, read byte by byte so that nothing after it is consumed. Raises ValueError for anything else."""
    line = bytearray()
    while not line.endswith(b"\n"):
        if len(line) > MOST_BYTES or not (byte := connection.recv(1)):
            raise ValueError("no greeting")
        line += byte
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("no greeting")
    return message
