"""Flags between ranks: how a block says that it is there, and waits for the same block of its peers.

Block b of a rank works on the same elements as block b of every other rank, so only these have to meet, and no barrier of a grid is needed.
"""

from numba import cuda, int32, uint32

from minllm.kernels.all_reduce.peers import BLOCKS
from minllm.ptx import ld_acquire_sys_u32, st_release_sys_u32

IMPATIENT = 1024  # so many polls apart a rank looks whether it has already waited in vain, or the host has told it to give up


@cuda.jit(device=True)
def next_epoch(counters):
    """The number of this all-reduce: one more than that of the last one.

    It wraps to 2, which is even as 0 is: 0 is the flag of words that nobody has written.
    """
    last = counters[cuda.blockIdx.x]
    return uint32(2) if last == uint32(0xFFFFFFFF) else uint32(last + uint32(1))


@cuda.jit(device=True)
def finish_epoch(counters, epoch):
    """Count this all-reduce: at the end, once. A small grid counts for the blocks that it does not have."""
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        block = cuda.blockIdx.x
        while block < BLOCKS:
            counters[block] = epoch
            block += cuda.gridDim.x


@cuda.jit(device=True)
def flag_index(phase, rank, ranks):
    """Where `rank` raises the flag of this block in somebody's signals; a phase is a point at which blocks meet."""
    return (phase * BLOCKS + cuda.blockIdx.x) * ranks + rank


@cuda.jit(device=True)
def gives_up(polls, limit, fault, peer):
    """Whether a wait is too long; notes the peer in `fault` if it is the first."""
    if polls >= limit or (polls % IMPATIENT == 0 and cuda.atomic.cas(fault, 0, uint32(0), uint32(0)) != 0):
        cuda.atomic.cas(fault, 0, uint32(0), uint32(peer + 1))
        return True
    return False


@cuda.jit(device=True)
def wait_for(signals, index, epoch, peer, fault, limit):
    """Wait until the flag at `index` has reached `epoch`, or for `limit` polls; peer: who raises it."""
    polls = 0
    while int32(ld_acquire_sys_u32(signals, index) - epoch) < 0:  # the difference is right when the counters wrap, too
        polls += 1
        if gives_up(polls, limit, fault, peer):
            break


@cuda.jit(device=True)
def meet(signals, phase, rank, epoch, fault, limit):
    """A barrier of this block on all ranks: what their threads wrote before it, these threads may read after it."""
    ranks = len(signals)
    cuda.syncthreads()  # all threads of the block have written, before one of them says so
    peer = cuda.threadIdx.x
    if peer < ranks:
        st_release_sys_u32(signals[peer], flag_index(phase, rank, ranks), epoch)
        wait_for(signals[rank], flag_index(phase, peer, ranks), epoch, peer, fault, limit)
    cuda.syncthreads()
