"""Flags between ranks: a block raises its flag, and waits for the flags of the same block of its peers.

Block b of a rank works on the same elements as block b of every other rank, so only these synchronise, and no grid barrier is needed.
"""

from numba import cuda, uint32

from minllm.kernels.all_reduce.peers import BLOCKS
from minllm.ptx import ld_acquire_sys_u32, st_release_sys_u32

MOST_AHEAD = 3  # a peer's flag is of this all-reduce or of the next one, whose number is larger by 3 where numbers wrap (next_epoch)
IMPATIENT = 1024  # polls between checks of `fault`: whether another wait was in vain, or the host has set it to end all waits


@cuda.jit(device=True)
def next_epoch(counters):
    """The number of this all-reduce: one more than that of the last one.

    It wraps to 2, which is even like 0, because 0 is the flag of words that were never written.
    """
    last = counters[cuda.blockIdx.x]
    return uint32(2) if last == uint32(0xFFFFFFFF) else uint32(last + uint32(1))


@cuda.jit(device=True)
def next_epoch_of_all_blocks(counters):
    """next_epoch for a kernel that may have more blocks than there are counters: between two all-reduces all counters are equal."""
    return uint32(2) if counters[0] == uint32(0xFFFFFFFF) else uint32(counters[0] + uint32(1))


@cuda.jit(device=True)
def finish_epoch(counters, epoch):
    """Store this all-reduce's number at the end of a kernel, also for the blocks that a small grid does not have."""
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        block = cuda.blockIdx.x
        while block < BLOCKS:
            counters[block] = epoch
            block += cuda.gridDim.x


@cuda.jit(device=True)
def flag_index(phase, rank, ranks):
    """Index in a peer's signals of the flag that `rank` raises for this block; a phase is one synchronisation point of a kernel."""
    return (phase * BLOCKS + cuda.blockIdx.x) * ranks + rank


@cuda.jit(device=True)
def gives_up(polls, limit, fault, peer):
    """Whether a wait must end, after `limit` polls or because `fault` is set; records the peer in `fault` unless it is set."""
    if polls >= limit or (polls % IMPATIENT == 0 and cuda.atomic.cas(fault, 0, uint32(0), uint32(0)) != 0):
        cuda.atomic.cas(fault, 0, uint32(0), uint32(peer + 1))
        return True
    return False


@cuda.jit(device=True)
def wait_for(signals, index, epoch, peer, fault, limit):
    """Wait until the flag at `index` has reached `epoch`, for at most `limit` polls; peer: the rank that raises it.

    All other values are old, however large the difference: other all-reduces, or fewer blocks, may not have raised this flag for a day.
    """
    polls = 0
    while uint32(ld_acquire_sys_u32(signals, index) - epoch) > MOST_AHEAD:
        polls += 1
        if gives_up(polls, limit, fault, peer):
            break


@cuda.jit(device=True)
def meet(signals, phase, rank, epoch, fault, limit):
    """A barrier of this block on all ranks: data that their threads wrote before it can be read by these threads after it."""
    ranks = len(signals)
    cuda.syncthreads()  # all threads of the block have written before one of them raises the flag
    peer = cuda.threadIdx.x
    if peer < ranks:
        st_release_sys_u32(signals[peer], flag_index(phase, rank, ranks), epoch)
        wait_for(signals[rank], flag_index(phase, peer, ranks), epoch, peer, fault, limit)
    cuda.syncthreads()
