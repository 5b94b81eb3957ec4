"""What the ranks of test_sequence_memory.py run: each stores numbers in the pages of all, and looks at its own."""

import numpy as np
from numba import cuda

from minllm.parallel.processes import Rank
from minllm.parallel.sequence_memory import connect_sequence
from minllm.runtime.array import DeviceArray
from minllm.runtime.cuda_pages import CudaPages
from minllm.runtime.device import use_device
from minllm.runtime.kernel import kernel

GROUPS, PAGES = 3, 2  # groups of each rank, pages per group
WAIT_S = 60.0
ROUNDS = 3  # memory that a round does not return is missing in the next


@kernel
def count_kernel(words, first):
    """words uint32 [n]: stores first + 3 i."""
    start, step = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x, cuda.gridDim.x * cuda.blockDim.x
    for i in range(start, words.shape[0], step):
        words[i] = first + 3 * i


def store(memory: DeviceArray, rank: int) -> None:
    """Store a rank's numbers in bytes of memory."""
    count_kernel[64, 256](memory.view(np.uint32), rank << 28)


def numbers(rank: int, nbytes: int) -> np.ndarray:
    """The numbers that `store` stores in this many bytes."""
    return np.uint32(rank << 28) + 3 * np.arange(nbytes // 4, dtype=np.uint32)


def stored(rank: Rank) -> list[int]:
    """The free bytes of the rank's GPU after each round. Raises AssertionError if a number is not where it belongs."""
    use_device(rank.gpu)
    rank.host.limit_waits(WAIT_S)
    pages = CudaPages()
    return [one_round(rank, pages) for _ in range(ROUNDS)]


def one_round(rank: Rank, pages: CudaPages) -> int:
    """Connect, store, compare, close; returns the free bytes afterwards."""
    ranks, group_bytes = rank.world_size, PAGES * pages.page_bytes
    nbytes = ranks * GROUPS * group_bytes
    found = connect_sequence(rank.host, group_bytes, nbytes)
    assert not isinstance(found, str), found
    own = slice(rank.rank * group_bytes, (rank.rank + 1) * group_bytes)  # of everyone's rows, the part that this rank writes
    store(found.memory.partials, rank.rank)
    for rows in found.memory.rows:
        store(rows[own], rank.rank)
    pages.wait()
    rank.host.barrier()
    rows = found.memory.rows[rank.rank].copy_to_host().reshape(-1, group_bytes)
    for source, received in enumerate(found.memory.received):
        wanted = numbers(source, nbytes).view(np.uint8).reshape(GROUPS, ranks, group_bytes)
        np.testing.assert_array_equal(received.copy_to_host().reshape(GROUPS, group_bytes), wanted[:, rank.rank])
        np.testing.assert_array_equal(rows[source].view(np.uint32), numbers(source, group_bytes))
    rank.host.barrier()
    found.close()
    rank.host.barrier()
    free, _ = pages.device.memory_info()
    rank.host.barrier()
    return free


def answer(rank: Rank, _argument: object) -> None:
    """Send rank 0 what `stored` returns, and wait until rank 0 ends this process."""
    rank.to_leader.send(stored(rank))
    rank.to_leader.recv()
