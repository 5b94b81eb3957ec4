"""The memory that the all-reduce kernels of several processes share (kernels/all_reduce/peers.py), mapped by each of them.

Each rank makes one allocation for all its arrays, and sends its handle to the others. They map it, with the arrays at the same offsets. If
a rank cannot map a peer's memory, because the GPUs have no peer access or are on two hosts, no rank uses any.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from minllm.errors import DeviceError, MinLLMError
from minllm.kernels.all_reduce.peers import Peers, RankMemory, allocate
from minllm.parallel.communicator import CommunicationError, Communicator
from minllm.runtime.array_protocol import Array

ALIGNMENT = 256  # bytes
T = TypeVar("T")


class SharedMachine(NamedTuple):
    """The functions by which a process shares memory of its machine: see runtime/exported_memory.py."""

    export: Callable[[int], Any]  # number of bytes -> memory with a `handle` and a function `close`
    open: Callable[[bytes], Any]  # handle -> memory with a function `close`
    array: Callable[[Any, int, int, Any], Any]  # (memory, first byte, size, dtype) -> array


def gpu_machine() -> SharedMachine:
    """The SharedMachine of this process's GPU."""
    from minllm.runtime.exported_memory import ExportedMemory, ImportedMemory, array_at

    return SharedMachine(
        ExportedMemory, ImportedMemory, lambda memory, first, size, dtype: array_at(memory.pointer + first, size, dtype, memory)
    )


class PeerMemory(NamedTuple):
    """The memory of all ranks, mapped by this one."""

    peers: Peers
    mapped: list[Any]  # each rank's memory

    def close(self) -> None:
        """Return this rank's memory and its maps of the others': no kernel may use them any more."""
        for memory in self.mapped:
            memory.close()


def connect_peers(host: Communicator, most_bytes: int, inbox_bytes: int, machine: SharedMachine) -> PeerMemory | str:
    """The PeerMemory for messages of up to most_bytes, or the reason why there is none. All ranks get the same kind of result.

    host: a communicator of the same ranks, for NumPy arrays. inbox_bytes: the largest message of low_latency.
    """
    memories = mapped_by_all(host, arrays_of(None, host.world_size, most_bytes, inbox_bytes, machine)[1], machine)
    if isinstance(memories, str):
        return memories
    found = tuple(arrays_of(memory, host.world_size, most_bytes, inbox_bytes, machine)[0] for memory in memories)
    return PeerMemory(Peers(host.rank, found), memories)


def mapped_by_all(host: Communicator, nbytes: int, machine: SharedMachine) -> list[Any] | str:
    """The memories of all ranks, nbytes each, mapped by this one, or the reason why there are none. All ranks get the same kind of result.

    host: a communicator of the same ranks, for NumPy arrays.
    """
    own, reason = None, ""
    try:
        own = machine.export(nbytes)
    except DeviceError as error:
        reason = str(error)
    handles = _gathered(host, np.frombuffer(own.handle if own else b"", np.uint8) if own else np.zeros(0, np.uint8))
    memories = []
    if all(len(handle) for handle in handles):
        try:
            memories = [own if rank == host.rank else machine.open(handle.tobytes()) for rank, handle in enumerate(handles)]
        except DeviceError as error:
            reason = str(error)
    return reasons_of_all(host, reason) or memories


def on_all(host: Communicator, work: Callable[[], T]) -> T:
    """work() of this rank, once all ranks have done theirs. Raises CommunicationError on all, with the reasons, if one has failed."""
    try:
        found, reason = work(), ""
    except (MinLLMError, OSError) as error:
        reason = str(error)
    if reasons := reasons_of_all(host, reason):
        raise CommunicationError(reasons)
    return found


def reasons_of_all(host: Communicator, reason: str) -> str:
    """The reasons of all ranks that have one, as one text; "" if none has."""
    reasons = [text.tobytes().decode() for text in _gathered(host, np.frombuffer(reason.encode(), np.uint8))]
    return "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(reasons) if text)


def arrays_of(memory: Array, ranks: int, most_bytes: int, inbox_bytes: int, machine: SharedMachine) -> tuple[RankMemory, int]:
    """(the arrays in a rank's memory, their size in bytes). memory: None only counts bytes."""
    end = 0

    def take(size: int, dtype: DTypeLike) -> Any:
        nonlocal end
        first, end = end, end + math.ceil(size * np.dtype(dtype).itemsize / ALIGNMENT) * ALIGNMENT
        return None if memory is None else machine.array(memory, first, size, dtype)

    return allocate(ranks, most_bytes, take, inbox_bytes), end


def _gathered(host: Communicator, data: np.ndarray) -> list[np.ndarray]:
    """The bytes of every rank; their numbers may differ."""
    sizes = np.zeros((host.world_size, 1), np.int64)
    host.all_gather(np.array([data.size], np.int64), sizes)
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: data.size] = data
    out = np.zeros((host.world_size, padded.size), np.uint8)
    host.all_gather(padded, out)
    return [row[: int(size)] for row, size in zip(out, sizes[:, 0], strict=True)]
