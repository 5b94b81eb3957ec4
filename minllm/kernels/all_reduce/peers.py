"""The memory through which the ranks of an all-reduce meet, and what one rank launches.

Every rank has one `RankMemory`, of which it sees that of all ranks: its own, and its peers' over NVLink.

    staging     uint32 [2 * words]       what the rank lends its peers to read, or its left neighbour writes: two halves, used in turn
    signals     uint32 [phases * BLOCKS * ranks]    flags that peers raise here, and only this rank waits for
    inbox       uint64 [2 * ranks * words]   words of 4 bytes of data and 4 of flag, which peers write
    counters    uint32 [BLOCKS]          the number of all-reduces that each block has taken part in
    fault       uint32 [1]               0, or 1 + the rank for which this one waited in vain

A flag is the number of the all-reduce, its *epoch*, which lies on the device and grows by one with each launch: so a captured graph can be
replayed, and no flag is ever reset. A rank that finishes epoch e has heard from all peers in e, so each of them has finished e - 1: it may
write over what they read then. That is why two halves are enough, and one would not be.

All ranks launch the same all-reduces in the same order, with the same shapes. A wait is bounded: a rank whose peer never comes notes it in
`fault` and goes on, so its kernels end. What it has computed, and perhaps passed on, is wrong: a fault of one rank concerns them all.
"""

from typing import Any, NamedTuple

import numpy as np

from minllm.errors import DeviceError
from minllm.kernels.arguments import FLOAT_DTYPES, ceil_div, check_array
from minllm.kernels.vector import VECTOR_BYTES, vectors_per_row
from minllm.runtime.kernel import check
from minllm.sim import simulate_ranks

BLOCKS = 64  # the most blocks of a launch; fewer than any GPU has SMs, so all of them run at once
MOST_RANKS = 8
PHASES = 2 * MOST_RANKS - 2  # flags per block and rank: a ring takes this many steps
POLLS = 1 << 24  # polls after which a wait gives up: about ten seconds
WORD_BYTES = 4  # data bytes of a word of the staging memory, and of the inbox


class RankMemory(NamedTuple):
    """One rank's memory, see above. The arrays are NumPy arrays for the simulator, or lie on the rank's GPU."""

    staging: Any
    signals: Any
    inbox: Any
    counters: Any
    fault: Any


class Peers(NamedTuple):
    """What a rank knows of the others: its number, and the memories of all ranks as this rank's GPU addresses them."""

    rank: int
    memories: tuple[RankMemory, ...]
    polls: int = POLLS

    @property
    def own(self) -> RankMemory:
        """This rank's memory."""
        return self.memories[self.rank]

    def all(self, name: str) -> tuple:
        """The arrays of this name, of all ranks in order."""
        return tuple(getattr(memory, name) for memory in self.memories)


class RankLaunch(NamedTuple):
    """A launch that one rank makes while the others make theirs."""

    kernel: Any
    grid: int
    block: int
    arguments: tuple

    def launch(self, stream: Any = None) -> None:
        """Launch on the GPU that is current."""
        self.kernel[self.grid, self.block, stream](*self.arguments)


def allocate(ranks: int, most_bytes: int, zeros: Any, inbox_bytes: int | None = None) -> RankMemory:
    """One rank's memory, for messages of up to `most_bytes`; `low_latency` takes up to `inbox_bytes`, by default as many.

    zeros(size, dtype): an array of zeros on the rank's GPU, or np.zeros.
    """
    check(2 <= ranks <= MOST_RANKS, f"{ranks} ranks; an all-reduce takes 2 to {MOST_RANKS}")
    words = ceil_div(most_bytes, VECTOR_BYTES) * VECTOR_BYTES // WORD_BYTES
    inbox_words = ceil_div(most_bytes if inbox_bytes is None else inbox_bytes, VECTOR_BYTES) * VECTOR_BYTES // WORD_BYTES
    return RankMemory(
        staging=zeros(2 * words, np.uint32),
        signals=zeros(PHASES * BLOCKS * ranks, np.uint32),
        inbox=zeros(2 * ranks * inbox_words, np.uint64),
        counters=zeros(BLOCKS, np.uint32),
        fault=zeros(1, np.uint32),
    )


def simulated_peers(ranks: int, most_bytes: int, polls: int = POLLS) -> list[Peers]:
    """The Peers of all ranks, for the simulator."""
    memories = tuple(allocate(ranks, most_bytes, np.zeros) for _ in range(ranks))
    return [Peers(rank, memories, polls) for rank in range(ranks)]


def launch_together(launches: list[RankLaunch], **options: Any) -> None:
    """Launch what all ranks launch in the simulator, at the same time; options: those of simulate_ranks."""
    first = launches[0]
    simulate_ranks(first.kernel, first.grid, first.block, [one.arguments for one in launches], **options)


def check_fault(rank: int, fault: int) -> None:
    """Raise DeviceError if `fault`, the number in a rank's memory, says that it waited for a peer in vain."""
    if fault:
        raise DeviceError(
            f"rank {rank} waited for rank {fault - 1} in an all-reduce, and gave up: that rank has ended, or launched something else. "
            "Results since then are wrong: end all ranks and start them again"
        )


def check_message(x: Any, out: Any, peers: Peers) -> int:
    """The number of 16-byte vectors of `x`. Raises KernelArgumentError unless x and out are alike, aligned, and fit the ranks."""
    check(2 <= len(peers.memories) <= MOST_RANKS, f"{len(peers.memories)} ranks; an all-reduce takes 2 to {MOST_RANKS}")
    check(x.ndim in (1, 2), f"x has {x.ndim} axes; an all-reduce takes [elements] or [tokens, hidden]")
    names = ("elements",) if x.ndim == 1 else ("tokens", "hidden")
    check_array("x", x, FLOAT_DTYPES, **dict.fromkeys(names))
    check_array("out", out, (x.dtype,), **dict(zip(names, x.shape)))
    vectors = vectors_per_row(x.size, x, out)
    check(
        vectors > 0,
        f"x has {x.size} elements of {x.dtype}; an all-reduce takes whole vectors of {VECTOR_BYTES} bytes, aligned to that: pad x",
    )
    return vectors


def check_capacity(name: str, needed: int, memory: Any, parts: int = 2) -> None:
    """Raise KernelArgumentError unless each of the `parts` of a memory has the `needed` words."""
    check(
        needed <= memory.size // parts,
        f"{name} needs {needed * WORD_BYTES} bytes per message and rank, and the ranks' memory has {memory.size // parts * WORD_BYTES}: "
        "allocate it for larger messages",
    )
