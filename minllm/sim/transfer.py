"""Transfers: asynchronous reads and writes of shared memory.

They are made by TMA (the tensor memory accelerator), cp.async and the tensor cores (wgmma). A transfer is in flight from the instruction
that starts it until a thread has waited for it; meanwhile no thread may write the memory that it reads, or access the memory that it
writes. Its start and end are reported to monitors; without a monitor there are no Transfer objects.
"""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from minllm.sim.place import kernel_frame

CHUNK = 16  # bytes; transfers read and write whole chunks


@dataclass(eq=False)
class Transfer:
    """One asynchronous read or write of shared memory.

    thread: the one that started it. block: the owner of the shared memory. unit: the instruction's name for messages. kind: "read" or
    "write". chunks: addresses / 16 of the 16-byte chunks, each once. code, offset, line: the instruction that started it. barrier, phase:
    the address of the mbarrier on which it completes, if there is one, and the number of the phase.
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


def end_transfer(transfer, threads=(), thing=None):
    """End a transfer (unless it is None) for `threads` and for threads that acquire `thing`."""
    if transfer is not None:
        transfer.block.monitor.transfer_ends(transfer, threads, thing)


def run_of_chunks(offset, byte_count):
    """The chunks of `byte_count` bytes from `offset` on, both multiples of CHUNK."""
    return np.arange(offset // CHUNK, (offset + byte_count) // CHUNK)
