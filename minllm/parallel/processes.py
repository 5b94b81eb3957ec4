"""The processes of all ranks on one host: rank 0 is this process, which starts the others and ends them.

    channel  from rank 0 to each other rank: messages, and replies
    report   from each other rank to rank 0: why it ends; the system closes it if the rank is killed
    link     between any two ranks: signals (shared_memory.py), beside memory that all of them map

All of these are passed on as open files, and the file of the memory has no name, so nothing is left behind, whatever ends the processes. A
thread of rank 0 watches the reports: when a rank ends, it ends all others, and their next use raises RankError with the reason.
"""

import contextlib
import functools
import itertools
import mmap
import os
import pickle
import signal
import socket
import subprocess
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from minllm.errors import InvalidOptionError
from minllm.machine.host import available_cores
from minllm.parallel.communicator import CommunicationError, PeerLostError
from minllm.parallel.let_go import let_go
from minllm.parallel.ranks_per_gpu import ranks_per_gpu
from minllm.parallel.shared_memory import SharedMemoryCommunicator, memory_bytes
from minllm.parallel.sockets import SocketCommunicator
from minllm.runtime.child_process import end_children, receive_task, send_task, start_child

MEMORY_FOLDER = Path("/dev/shm")  # files here are memory
GRACE_S = 2.0  # after a communication error, the time within which the rank that caused it must report
SAME_CAUSE_S = 0.2  # ranks that end within this time count as ended by the same cause
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class RankError(CommunicationError):
    """A rank has failed, and all have ended; the message holds its traceback. Nothing more can be computed with them."""


class Rank(NamedTuple):
    """A rank in its own process: its number and its connections."""

    rank: int
    world_size: int
    host: SocketCommunicator  # for NumPy arrays
    at_failure: list[Callable[[], Any]]  # functions that another thread of this process calls when a rank has ended
    channel: Connection | None = None  # to rank 0; None on rank 0
    own_gpu: int | None = None  # None: by the rank's number

    @property
    def to_leader(self) -> Connection:
        """The channel to rank 0. Raises CommunicationError on rank 0."""
        if self.channel is None:
            raise CommunicationError("rank 0 has no channel to itself")
        return self.channel

    @property
    def gpu(self) -> int:
        """The number of the rank's GPU."""
        return self.rank // ranks_per_gpu() if self.own_gpu is None else self.own_gpu


class Task(NamedTuple):
    """The message to a started process: main(Rank, argument) to run, and the numbers of its open files."""

    main: Callable[[Rank, Any], None]
    argument: Any
    rank: int
    world_size: int
    memory: int
    channel: int
    report: int
    links: dict[int, int]  # rank -> file


class OtherRanks:
    """The other ranks, seen from rank 0: `channels` to them, and `failure`, the reason why they have ended, None while they live."""

    channels: dict[int, Connection]
    failure: str | None

    def end(self, reason: str) -> None:
        """End all ranks, unless they have ended."""
        raise NotImplementedError

    def close(self) -> None:
        """End the other ranks."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise RankError if a rank has ended."""
        if self.failure is not None:
            raise RankError(self.failure)

    def send(self, message: object) -> None:
        """Send a message to every other rank. Raises RankError if one has ended."""
        self.check()
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        for channel in self.channels.values():
            try:
                channel.send_bytes(data)
            except OSError as error:
                raise self.failed(error) from error

    def replies(self) -> list[Any]:
        """One message from every other rank, in the order of ranks. Raises RankError if one has ended."""
        try:
            return [self.channels[rank].recv() for rank in sorted(self.channels)]
        except (OSError, EOFError) as error:
            raise self.failed(error) from error

    def failed(self, error: BaseException) -> RankError:
        """End all ranks because of an error of this one, which leaves them waiting for each other; returns the error to raise.

        If another rank has ended, its end is the reason given.
        """
        deadline = time.monotonic() + GRACE_S if is_effect(error) else 0
        while self.failure is None and time.monotonic() < deadline:
            time.sleep(0.01)
        self.end(f"Rank 0 has failed, and all ranks have ended: {error!r}")
        return RankError(self.failure)


class RankProcesses(OtherRanks):
    """Ranks 1 to world_size - 1, each running main(rank, argument) in its own process. `own`: the Rank of this process."""

    def __init__(self, world_size: int, main: Callable[[Rank, Any], None], argument: Any):
        """main: a function of a module. argument: any picklable object. Raises InvalidOptionError if this system cannot pass on files."""
        if os.name != "posix":
            raise InvalidOptionError("Several ranks need Linux or macOS: this system cannot pass open files to another process.")
        others = range(1, world_size)
        links = {(a, b): end for a, b in itertools.combinations(range(world_size), 2) for (a, b), end in _link(a, b)}
        channels, reports = ({rank: socket.socketpair() for rank in others} for _ in range(2))
        theirs = [end for (rank, _), end in links.items() if rank]
        theirs += [end for pairs in (channels, reports) for _, end in pairs.values()]
        self.channels = {rank: Connection(ours.detach()) for rank, (ours, _) in channels.items()}
        self.children: list[subprocess.Popen] = []
        self._watched = Watched(self.children, {rank: Connection(ours.detach()) for rank, (ours, _) in reports.items()})
        self._end = weakref.finalize(self, end_children, self.children)
        with tempfile.TemporaryFile(dir=MEMORY_FOLDER if MEMORY_FOLDER.is_dir() else None) as memory, contextlib.ExitStack() as after:
            for one in theirs:
                after.enter_context(one)
            memory.truncate(memory_bytes(world_size))
            mapped = mmap.mmap(memory.fileno(), memory_bytes(world_size))
            communicator = SharedMemoryCommunicator(0, mapped, {b: end for (a, b), end in links.items() if a == 0})
            self.own = Rank(0, world_size, communicator, self._watched.at_failure)
            for rank in others:
                files = memory.fileno(), channels[rank][1].fileno(), reports[rank][1].fileno()
                task = Task(main, argument, rank, world_size, *files, {b: end.fileno() for (a, b), end in links.items() if a == rank})
                passed = dict(pass_fds=(*files, *task.links.values()))
                self.children.append(start_child(__name__, _threads(world_size), **passed))
                send_task(self.children[-1], pickle.dumps(task))
        threading.Thread(target=self._watched.watch, daemon=True).start()

    @property
    def failure(self) -> str | None:
        """The reason why the ranks have ended; None while they live."""
        return self._watched.failure

    def end(self, reason: str) -> None:
        """End all processes, unless they have ended."""
        self._watched.end(reason)

    def close(self) -> None:
        """End all other ranks. Calling it again does nothing."""
        self._watched.failure = self._watched.failure or "These ranks were closed."
        self._end()
        self.own.host.close()
        for channel in self.channels.values():
            channel.close()


class Watched:
    """The started processes and their reports. failure: the reason why they have ended, or None."""

    def __init__(self, children: list[subprocess.Popen], reports: dict[int, Connection]):
        self.children, self.reports, self.failure = children, reports, None
        self.at_failure: list[Callable[[], Any]] = [functools.partial(end_children, children)]

    def watch(self) -> None:
        """Wait until a rank ends, record the reason, and end all others."""
        ready = wait(self.reports.values())
        causes = [self._cause(rank) for rank, report in self.reports.items() if report in ready]
        if all(is_effect for is_effect, _ in causes):  # these waited for another rank, whose report comes next
            time.sleep(SAME_CAUSE_S)
            causes += [self._cause(rank) for rank, report in self.reports.items() if report not in ready and report.poll()]
        _, text = min(causes)  # False, a cause, before True, an effect
        self.end(text)
        for report in self.reports.values():
            report.close()

    def end(self, reason: str) -> None:
        """End all processes, and call this process's at_failure functions the first time."""
        if self.failure is None:
            self.failure = reason
            let_go(self.at_failure, reason)
        end_children(self.children)

    def _cause(self, rank: int) -> tuple[bool, str]:
        """(whether the rank ended because another had ended, the reason), once its report has arrived or was closed."""
        try:
            is_effect, text = self.reports[rank].recv()
            return is_effect, f"Rank {rank} has failed, and all ranks have ended:\n{text}"
        except (OSError, EOFError):
            code = self.children[rank - 1].wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"has ended with exit code {code}"
        return False, f"Rank {rank} {how}, and all ranks have ended."


def main() -> None:
    """The main function of a started process."""
    task: Task = pickle.loads(receive_task())
    with Connection(task.report) as report:
        try:
            with open(task.memory, "r+b") as memory:
                mapped = mmap.mmap(memory.fileno(), memory_bytes(task.world_size))
            links = {rank: socket.socket(fileno=number) for rank, number in task.links.items()}
            communicator = SharedMemoryCommunicator(task.rank, mapped, links)
            task.main(Rank(task.rank, task.world_size, communicator, [], Connection(task.channel)), task.argument)
        except BaseException as error:  # noqa: BLE001 - rank 0 raises it
            report.send((isinstance(error, PeerLostError), traceback.format_exc()))
            os._exit(1)
    os._exit(0)  # without waiting for threads of a library


def is_effect(error: BaseException) -> bool:
    """Whether an error may be only the effect of another rank's end."""
    return isinstance(error, OSError | EOFError | CommunicationError)


def _link(a: int, b: int) -> list[tuple[tuple[int, int], socket.socket]]:
    """The two ends of a link, each with (the rank that holds it, the other rank)."""
    one, other = socket.socketpair()
    return [((a, b), one), ((b, a), other)]


def _threads(world_size: int) -> dict[str, str]:
    """Environment variables that divide the host's cores among the ranks."""
    return {name: str(max(1, available_cores() // world_size)) for name in THREADS if name not in os.environ}
