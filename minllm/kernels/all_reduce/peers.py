"""The memory that the ranks of an all-reduce share, and the launch of one rank.

Every rank has one `RankMemory`, and can access those of all ranks: its own, and its peers' over NVLink.

    staging     uint32 [2 * words]       data that peers read, or that the left neighbour writes: two halves, used alternately
    signals     uint32 [phases * BLOCKS * ranks]    flags raised by peers; only this rank waits for them
    inbox       uint64 [2 * ranks * words]   words of 4 bytes of data and 4 bytes of flag, written by peers, and by GEMVs of this rank
    counters    uint32 [BLOCKS]          the number of all-reduces of each block so far
    fault       uint32 [1]               0, or 1 + the rank for which this one waited in vain

A flag is the number of the all-reduce, its *epoch*, which is stored on the device and grows by one with each of them: so a captured graph
can be replayed, and flags are never reset. A rank that finishes epoch e has received flags of epoch e from all peers, so each of them has
finished e - 1: it may overwrite the data that they read then. That is why two halves are enough, and one would not be.

All ranks launch the same all-reduces in the same order, with the same shapes. A wait is bounded: if a peer never arrives, the rank records
it in `fault` and continues, so its kernels end. Its results, which it may have passed on, are wrong: a fault of one rank affects all.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from minllm.errors import DeviceError
from minllm.kernels.arguments import FLOAT_DTYPES, ceil_div, check_array
from minllm.kernels.vector import VECTOR_BYTES, vectors_per_row
from minllm.runtime.array_protocol import Array
from minllm.runtime.kernel import check
from minllm.sim import simulate_ranks

BLOCKS = 64  # the most blocks per launch; fewer than the SMs of any GPU, so all of them run at once
MOST_RANKS = 8
PHASES = 2 * MOST_RANKS - 2  # flags per block and rank: a ring takes this many steps
POLLS = 1 << 24  # polls after which a wait gives up: about ten seconds
WORD_BYTES = 4  # data bytes per word of the staging memory and of the inbox


class RankMemory(NamedTuple):
    """One rank's memory, as described above: NumPy arrays for the simulator, else arrays on the rank's GPU."""

    staging: Array
    signals: Array
    inbox: Array
    counters: Array
    fault: Array


class Peers(NamedTuple):
    """A rank's number, and the memories of all ranks as addressed by this rank's GPU. polls: after which a wait gives up."""

    rank: int
    memories: tuple[RankMemory, ...]
    polls: int = POLLS

    @property
    def own(self) -> RankMemory:
        """This rank's memory."""
        return self.memories[self.rank]

    def all(self, name: str) -> tuple:
        """The arrays of this name of all ranks, in rank order."""
        return tuple(getattr(memory, name) for memory in self.memories)


class RankLaunch(NamedTuple):
    """One rank's launch of an all-reduce; all ranks must launch theirs at the same time.

    waits: whether blocks wait for those of peers, so that all of them must run at once; they then loop in a grid of any size.
    """

    kernel: Any
    grid: int
    block: int
    arguments: tuple
    waits: bool = True

    def within(self, most_blocks: int | None) -> "RankLaunch":
        """The same work by at most this number of blocks if they wait, else, and for None, this launch. All ranks' grids must be equal."""
        return self if most_blocks is None or not self.waits else self._replace(grid=min(self.grid, most_blocks))

    def launch(self, stream: Any = None) -> None:
        """Launch on the current GPU."""
        self.kernel[self.grid, self.block, stream](*self.arguments)


def allocate(ranks: int, most_bytes: int, zeros: Callable, inbox_bytes: int | None = None) -> RankMemory:
    """One rank's memory, for messages of up to `most_bytes`, with `low_latency` up to `inbox_bytes`, by default the same.

    zeros: zeros(size, dtype) allocates on the rank's GPU, or np.zeros. Raises KernelArgumentError for fewer than 2 ranks or more than 8.
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
    """Run the launches of all ranks in the simulator at the same time; options: those of simulate_ranks.

    Launches that do not wait for each other run one after another, because their arguments may be of different types.
    """
    for together in [launches] if launches[0].waits else [[one] for one in launches]:
        first = together[0]
        simulate_ranks(first.kernel, first.grid, first.block, [one.arguments for one in together], **options)


def check_fault(rank: int, fault: int) -> None:
    """Raise DeviceError if `fault`, the number in a rank's memory, is not 0: the rank waited for a peer in vain."""
    if fault:
        raise DeviceError(
            f"rank {rank} waited for rank {fault - 1} in an all-reduce, and gave up: that rank has ended, or launched something else. "
            "Results since then are wrong: end all ranks and start them again"
        )


def check_message(x: Array, out: Array, peers: Peers) -> int:
    """The number of 16-byte vectors of `x`. Raises KernelArgumentError for arrays of other shapes and dtypes, unaligned or not alike."""
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


def check_capacity(name: str, needed: int, memory: Array, parts: int = 2) -> None:
    """Raise KernelArgumentError unless each of the `parts` parts of a memory has `needed` words."""
    check(
        needed <= memory.size // parts,
        f"{name} needs {needed * WORD_BYTES} bytes per message and rank, and the ranks' memory has {memory.size // parts * WORD_BYTES}: "
        "allocate it for larger messages",
    )
