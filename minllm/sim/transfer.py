"""Transfers: what the copy engine and the tensor cores read and write in shared memory beside the threads.

A transfer is under way from the instruction that starts it until somebody has waited for it; in between nobody may write what it reads, or
touch what it writes. Monitors hear of both ends; without a monitor there are no transfers.
"""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from minllm.sim.place import kernel_frame

CHUNK = 16  # bytes: transfers read and write whole chunks


@dataclass(eq=False)
class Transfer:
    """thread: who started it. block: whose shared memory. unit: who does it, as text. kind: "read" or "write".

    chunks: the numbers of the 16-byte chunks, each once. code, offset, line: the instruction that started it. barrier, phase: the address
    of the mbarrier that it completes on, if there is one, and the number of its phase.
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
        """The first byte of a transfer of one run of bytes."""
        return int(self.chunks[0]) * CHUNK


def start_transfer(thread, block, unit, kind, chunks, mbarrier=None):
    """A transfer begins: -> Transfer, or None without a monitor."""
    if block.monitor is None:
        return None
    frame = kernel_frame(sys._getframe(1))
    transfer = Transfer(thread, block, unit, kind, chunks, frame.f_code, frame.f_lasti, frame.f_lineno)
    if mbarrier is not None:
        transfer.barrier, transfer.phase = mbarrier.offset, mbarrier.completed
    block.monitor.transfer_starts(transfer)
    return transfer


def end_transfer(transfer, threads=(), thing=None):
    """A transfer is done, and `threads`, who have waited for it, know that, or who acquires `thing` will."""
    if transfer is not None:
        transfer.block.monitor.transfer_ends(transfer, threads, thing)


def run_of_chunks(offset, byte_count):
    """The chunks of a run of bytes that begins and ends between chunks."""
    return np.arange(offset // CHUNK, (offset + byte_count) // CHUNK)
