"""Transfers: asynchronous reads and writes of shared memory.

They are made by TMA (the tensor memory accelerator), cp.async and the tensor cores (wgmma). A transfer is in flight from the instruction
that starts it until a thread has waited for it; meanwhile no thread may write the memory that it reads, or access the memory that it
writes. Its start and end are reported to monitors; without a monitor there are no Transfer objects.
"""

import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from minllm.sim.place import kernel_frame

CHUNK = 16  # bytes; transfers read and write whole chunks
GROUPED = {"cp.async": "cp.async", "a bulk store": "cp.async.bulk", "wgmma": "wgmma"}  # unit -> its instructions' prefix


class RegisterUse(NamedTuple):
    """The registers that a wgmma has in flight: bytes start to stop of a local array. kind: whether it reads or writes them.

    code, offset: the instruction that started it.
    """

    root: Any
    start: int
    stop: int
    kind: str
    code: Any
    offset: int


@dataclass(eq=False)
class Transfer:
    """One asynchronous read or write of shared memory.

    thread: the one that started it. block: the owner of the shared memory. unit: the instruction's name for messages. kind: "read" or
    "write". chunks: addresses / 16 of the 16-byte chunks, each once. code, offset, line: the instruction that started it. barrier, phase:
    the address of the mbarrier on which it completes, if there is one, and the number of the phase.
    committed: whether it belongs to a group, if threads wait for it by groups.
    """

    thread: Any
    block: Any
    unit: str
    kind: str
    chunks: np.ndarray
    code: Any
    offset: int
    line: int
    barrier: int | None = None
    phase: int = 0
    committed: bool = False

    @property
    def start(self):
        """The shared address of the first byte, if the transfer is contiguous."""
        return int(self.chunks[0]) * CHUNK


def start_transfer(thread, block, unit, kind, chunks, mbarrier=None):
    """Begin a transfer; returns the Transfer, or None without a monitor."""
    if block.monitor is None:
        return None
    frame = kernel_frame(sys._getframe(1))
    transfer = Transfer(thread, block, unit, kind, chunks, frame.f_code, frame.f_lasti, frame.f_lineno)
    if mbarrier is not None:
        transfer.barrier, transfer.phase = mbarrier.offset, mbarrier.completed
    block.monitor.transfer_starts(transfer)
    return transfer


def take_registers(thread, *parts):
    """Report to the monitor the registers that a wgmma of the thread has in flight; returns the RegisterUses, none without a monitor.

    parts: (local array, first byte in it, bytes, "read" or "write").
    """
    monitor = thread.block.monitor
    if monitor is None:
        return ()
    frame = kernel_frame(sys._getframe(1))
    for array, *_ in parts:
        monitor.registers_taken(array)
    return tuple(
        RegisterUse(array.root, array.base + first, array.base + first + count, kind, frame.f_code, frame.f_lasti)
        for array, first, count, kind in parts
    )


def end_transfer(transfer, threads=(), thing=None):
    """End a transfer (unless it is None) for `threads` and for threads that acquire `thing`."""
    if transfer is not None:
        transfer.block.monitor.transfer_ends(transfer, threads, thing)


def commit(transfers):
    """Note that transfers, or Nones, belong to a group from now on."""
    for transfer in transfers:
        if transfer is not None:
            transfer.committed = True


def why_in_flight(unit, committed):
    """Why a transfer of a unit is not done, as a clause."""
    if unit in GROUPED and not committed:
        return f"no {GROUPED[unit]}.commit_group has committed it, so no wait waits for it"
    return "nobody has waited for that yet"


def run_of_chunks(offset, byte_count):
    """The chunks of `byte_count` bytes from `offset` on, both multiples of CHUNK."""
    return np.arange(offset // CHUNK, (offset + byte_count) // CHUNK)
