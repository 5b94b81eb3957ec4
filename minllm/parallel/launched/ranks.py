"""The other ranks of a launched program, seen from one of them; when one rank ends, all end.

    channel  from rank 0 to each other rank: messages, and replies
    report   between rank 0 and each other rank: why one of them ends; the system closes it if a rank is killed or its host is lost

A thread of every rank watches the reports. Rank 0 forwards the report of a rank's end to the others; each shuts its sockets down, so that
every wait for a peer returns, and the program gets a RankError with the reason. A rank that closes its LLM sends a goodbye first: then the
others fail only if they call something that needs this rank.
"""

import contextlib
import os
import pickle
import socket
import threading
import time
import traceback
import weakref
from multiprocessing.connection import Connection, wait
from typing import Any

from minllm.parallel.launched.environment import LaunchedRank
from minllm.parallel.launched.memory import connect
from minllm.parallel.launched.rendezvous import meet
from minllm.parallel.let_go import let_go
from minllm.parallel.processes import GRACE_S, SAME_CAUSE_S, OtherRanks, Rank, RankError, is_effect

GOODBYE = "goodbye"


class LaunchedRanks(OtherRanks):
    """All other ranks. `own`: the Rank of this process. Raises CommunicationError if the ranks do not meet within time_limit_s."""

    def __init__(self, launched: LaunchedRank, agreed: dict[str, str], time_limit_s: float, gpu: int = 0):
        """agreed: names and values that must be the same on all ranks. gpu: the number of this rank's GPU."""
        connections = meet(launched, agreed, time_limit_s)
        rank, self.failure, self.departed = launched.rank, None, None
        self._sockets = [*connections.links.values(), *connections.channels.values()]
        self.channels = {peer: _connection(one) for peer, one in connections.channels.items()}
        self.reports = {peer: _connection(one) for peer, one in connections.reports.items()}
        self._lock, self._others_know = threading.Lock(), threading.Event()
        host = connect(rank, connections)
        channel = self.channels[0] if rank else None
        self.own = Rank(rank, launched.world_size, host, [], channel, gpu)
        self._goodbye = weakref.finalize(self, say_goodbye, self.reports, connections.reports)  # also at the interpreter's exit
        threading.Thread(target=watch, args=(weakref.ref(self), dict(self.reports)), daemon=True).start()

    def check(self) -> None:
        """Raise RankError if a rank has ended, or closed its LLM."""
        if self.failure is not None or self.departed is not None:
            raise RankError(self.failure or self.departed)

    def failed(self, error: BaseException) -> RankError:
        """Report an error of this rank, which ends all ranks; returns the error to raise. If another has ended, that is the reason."""
        effect, text = is_effect(error), "".join(traceback.format_exception(error))
        reason = f"Rank {self.own.rank} has failed, and all ranks have ended:\n{text}"
        is_cause = not effect and self._note(self.departed or reason)  # before the others get the report, because their end is an effect
        if self.own.rank:
            with contextlib.suppress(OSError, ValueError):
                self.reports[0].send((effect, text))
        if is_cause:
            self._let_go()
            return RankError(self.failure)
        deadline = time.monotonic() + GRACE_S
        while self.failure is None and self.departed is None and time.monotonic() < deadline:
            time.sleep(0.01)
        self.end(self.departed or reason)
        return RankError(self.failure)

    def end(self, reason: str) -> None:
        """Record the reason, send it to the other ranks if this is rank 0, and end all waits for peers."""
        if self._note(reason):
            self._let_go()

    def _note(self, reason: str) -> bool:
        """Record a reason to end; returns whether it is the first one."""
        with self._lock:
            is_first = self.failure is None
            self.failure = self.failure or reason
        return is_first

    def _let_go(self) -> None:
        """Send the reason to the other ranks if this is rank 0, and end all waits for peers."""
        if self.own.rank == 0:
            for report in self.reports.values():
                with contextlib.suppress(OSError, ValueError):
                    report.send((True, self.failure))
        self._others_know.set()
        let_go(self.own.at_failure, self.failure)
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Send a goodbye and close all connections. Calling it again does nothing."""
        if self._note("These ranks were closed."):
            self._others_know.set()
        self._others_know.wait()  # a goodbye must not overtake the reason, which another thread may be sending
        self._goodbye()
        self.own.host.close()
        for channel in self.channels.values():
            channel.close()
        for one in self._sockets:
            one.close()

    def ended(self, peer: int, message: object) -> None:
        """Handle the last message of a rank, from the watching thread; None if its connection has ended without one."""
        if message == GOODBYE:
            self.departed = self.departed or f"Rank {peer} has closed its LLM, or its program has ended."
        elif message is None:
            self.end(f"Rank {peer} has ended without a word, and so have all ranks: it was killed, or its host was lost.")
        elif self.own.rank:
            self.end(message[1])
        else:
            self.end(f"Rank {peer} has failed, and all ranks have ended:\n{message[1]}")


def watch(ranks: "weakref.ref[LaunchedRanks]", reports: dict[int, Connection]) -> None:
    """Wait for the last message of every other rank, and handle it."""
    while reports:
        ready = wait(reports.values())
        found = {peer: _last(report) for peer, report in reports.items() if report in ready}
        if all(_is_effect(message) for message in found.values()):
            time.sleep(SAME_CAUSE_S)  # these waited for another rank, whose report comes next
            found |= {peer: _last(report) for peer, report in reports.items() if peer not in found and report.poll()}
        for peer, message in sorted(found.items(), key=lambda one: _is_effect(one[1])):  # causes before effects
            reports.pop(peer).close()
            alive = ranks()
            if alive is not None:
                alive.ended(peer, message)
            del alive


def say_goodbye(reports: dict[int, Connection], sockets: dict[int, socket.socket]) -> None:
    """Tell the other ranks that this one has closed."""
    for peer, one in sockets.items():
        with contextlib.suppress(OSError, ValueError):
            reports[peer].send(GOODBYE)
            one.shutdown(socket.SHUT_RDWR)  # this also ends the wait of the watching thread
        one.close()


def _is_effect(message: object) -> bool:
    """Whether a message reports an end that another rank's end has caused."""
    return isinstance(message, tuple) and message[0]


def _last(report: Connection) -> Any:
    """The last message of a rank; None if its connection has ended."""
    try:
        return report.recv()
    except (OSError, EOFError, pickle.UnpicklingError):
        return None


def _connection(one: socket.socket) -> Connection:
    """A Connection over a copy of a socket."""
    return Connection(os.dup(one.fileno()))
