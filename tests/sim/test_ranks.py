"""Several GPUs in the simulator: what orders two of them, what does not, and that a message names the rank."""

import numpy as np
import pytest
from numba import cuda, uint32

from minllm.errors import SimulationError
from minllm.ptx import ld_acquire_sys_u32, ld_relaxed_sys_v2_u64, st_relaxed_sys_u32, st_relaxed_sys_v2_u64, st_release_sys_u32
from minllm.runtime.kernel import kernel
from minllm.sim import simulate_ranks

THREADS = 64  # two warps, so that a barrier is needed
RACE = r"race on global memory: this thread (reads|writes) the global array rank \d's data\[\d\], element .* which thread .* of rank \d, "


def exchange(publish="release", take="acquire", before=True, after=True):
    """A kernel that hands 64 numbers to the other rank. publish, take: how the flag is stored and loaded; before, after: the barriers."""

    @kernel
    def exchange_kernel(x, out, rank, data, flags):
        i, peer = cuda.threadIdx.x, 1 - rank
        data[rank][i] = x[i]
        if before:
            cuda.syncthreads()
        if i == 0:
            if publish == "release":
                st_release_sys_u32(flags[peer], rank, 1)
            elif publish == "system fence":
                cuda.threadfence_system()
                st_relaxed_sys_u32(flags[peer], rank, 1)
            elif publish == "fence":
                cuda.threadfence()
                st_relaxed_sys_u32(flags[peer], rank, 1)
            else:
                st_relaxed_sys_u32(flags[peer], rank, 1)
            if take == "acquire":
                while ld_acquire_sys_u32(flags[rank], peer) == 0:
                    pass
            elif take == "atomic":
                while cuda.atomic.cas(flags[rank], peer, uint32(1), uint32(1)) == 0:
                    pass
        if after:
            cuda.syncthreads()
        out[i] = data[peer][i]

    return exchange_kernel


def run(kernel, **options):
    """Both ranks' results."""
    x = np.arange(2 * THREADS, dtype=np.float32).reshape(2, THREADS)
    out, data = np.full_like(x, np.nan), tuple(np.zeros((2, THREADS), np.float32))
    flags = tuple(np.zeros((2, 2), np.uint32))
    simulate_ranks(kernel, 1, THREADS, [(x[rank], out[rank], rank, data, flags) for rank in range(2)], **options)
    return x, out


@pytest.mark.parametrize("publish", ["release", "system fence"])
def test_a_release_and_an_acquire_hand_data_over(publish):
    x, out = run(exchange(publish), detect=True)
    np.testing.assert_array_equal(out, x[::-1])


@pytest.mark.parametrize(
    "bug",
    [
        dict(publish="relaxed"),
        dict(publish="fence"),  # of GPU scope
        dict(take="none"),
        dict(take="atomic"),  # of GPU scope
        dict(before=False),
        dict(after=False),
    ],
    ids=str,
)
def test_peers_data_that_are_read_before_their_flag_are_a_race(bug):
    with pytest.raises(SimulationError, match=RACE) as found:
        run(exchange(**bug), detect=True)
    assert "test_ranks.py" in str(found.value) and "exchange_kernel, rank " in str(found.value)


def test_a_third_rank_sees_what_the_second_has_seen():
    """Rank 0 tells rank 1, and rank 1 tells rank 2, which reads the memory of rank 0: release and acquire are cumulative."""

    @kernel
    def relay_kernel(out, rank, data, flags):
        if rank == 0:
            data[0][0] = 7
        else:
            while ld_acquire_sys_u32(flags[rank], 0) == 0:
                pass
        out[0] = data[0][0]
        if rank < 2:
            st_release_sys_u32(flags[rank + 1], 0, 1)

    out, data, flags = (tuple(np.zeros((3, 1), np.uint32)) for _ in range(3))
    simulate_ranks(relay_kernel, 1, 1, [(out[rank], rank, data, flags) for rank in range(3)], detect=True)
    assert [int(one[0]) for one in out] == [7, 7, 7]


def test_words_with_a_flag_need_no_order():
    @kernel
    def words_kernel(out, rank, inbox):
        i = 2 * cuda.threadIdx.x
        st_relaxed_sys_v2_u64(inbox[1 - rank], i, 1 << 32 | (rank + i), 1 << 32 | (rank + i + 1))
        first, second = ld_relaxed_sys_v2_u64(inbox[rank], i)
        while first >> 32 == 0 or second >> 32 == 0:
            first, second = ld_relaxed_sys_v2_u64(inbox[rank], i)
        out[i], out[i + 1] = uint32(first), uint32(second)

    out, inbox = tuple(np.zeros((2, 64), np.uint32)), tuple(np.zeros((2, 64), np.uint64))
    simulate_ranks(words_kernel, 1, 32, [(out[rank], rank, inbox) for rank in range(2)], detect=True)
    for rank in range(2):
        np.testing.assert_array_equal(out[rank], 1 - rank + np.arange(64))


def test_a_flag_that_nobody_raises_hangs_and_the_rank_is_named():
    @kernel
    def waiting_kernel(flags):
        while ld_acquire_sys_u32(flags, 0) == 0:
            pass

    with pytest.raises(SimulationError, match=r"the kernel hangs: .*, rank [01], block \(0, 0, 0\), thread \(0, 0, 0\)"):
        simulate_ranks(waiting_kernel, 1, 1, [(np.zeros(1, np.uint32),) for _ in range(2)])


def test_bounds_of_a_peers_array_are_checked_and_the_rank_is_named():
    @kernel
    def outside_kernel(rank, data):
        data[1 - rank][4] = rank

    with pytest.raises(SimulationError, match=r"out of bounds for the global array .* rank 0, block"):
        simulate_ranks(outside_kernel, 1, 1, [(rank, tuple(np.zeros((2, 4), np.int32))) for rank in range(2)])


def test_arguments_of_other_types_and_grid_barriers_are_refused():
    @kernel
    def fill_kernel(out):
        out[cuda.grid(1)] = 1

    @kernel
    def synchronised_kernel(out):
        cuda.cg.this_grid().sync()

    with pytest.raises(SimulationError, match="arguments of the same types, and are given 2 kinds"):
        simulate_ranks(fill_kernel, 1, 1, [(np.zeros(1, np.float32),), (np.zeros(1, np.int32),)])
    with pytest.raises(SimulationError, match="no barrier of a grid: use flags"):
        simulate_ranks(synchronised_kernel, 1, 1, [(np.zeros(1, np.float32),)] * 2)


@pytest.mark.parametrize("order", [None, 3])
def test_every_rank_runs_all_blocks_on_its_own_memory(order):
    @kernel
    def number_kernel(out, rank):
        out[cuda.grid(1)] = 100 * rank + cuda.blockIdx.x

    outs = np.zeros((3, 64), np.int32)
    simulate_ranks(number_kernel, 4, 16, [(outs[rank], rank) for rank in range(3)], order=order, detect=True)
    np.testing.assert_array_equal(outs, 100 * np.arange(3)[:, None] + np.arange(64) // 16)
