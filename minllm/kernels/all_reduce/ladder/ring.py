"""All-reduce around a ring: the first algorithm, which moves the fewest bytes.

    out = x_0 + x_1 + .. + x_(N-1)                          on every rank

The message of b bytes is divided into N chunks. In each step a rank sends one chunk to its right and receives one from its left:

    steps 0 to N - 2       add x to the received chunk, and pass it on; then each rank has the whole sum of one chunk   (reduce-scatter)
    steps N - 1 to 2N - 3  pass the sums on                                                                             (all-gather)

So each rank sends 2 (N - 1) / N b bytes, and no algorithm sends fewer; but it takes 2 (N - 1) steps, each of which waits for the one
before. FLOPs: N - 1 additions per element, divided among the ranks. Chunk c is summed once, in the order of ranks c, c + 1, ..: all ranks
get the same bits, but not those of a sum in rank order.

Threads to data: one thread per element of a chunk. Sums are sent as float32, so each is rounded once; the slots of all steps are adjacent
in the receiver's staging memory. Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations".
"""

import functools

from numba import cuda, float32

from minllm.kernels.all_reduce.peers import BLOCKS, RankLaunch, check_capacity, check_message
from minllm.kernels.all_reduce.signals import finish_epoch, flag_index, next_epoch, wait_for
from minllm.kernels.arguments import ceil_div
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.ptx import float_as_uint, st_release_sys_u32, uint_as_float
from minllm.runtime.kernel import kernel

THREADS = 256


@functools.cache
def ring_kernel(ranks):
    """The kernel for this number of ranks."""
    last = 2 * ranks - 2  # the last step, which only receives

    @kernel(launch_bounds=(THREADS, 1), dependent_launch=True)
    def ring_kernel(x, out, rank, staging, signals, counters, fault, limit):
        # x, out: [elements]; staging, signals: those of all ranks; counters, fault: this rank's
        wait_for_predecessors()
        epoch = next_epoch(counters)
        own, there = staging[rank], staging[(rank + 1) % ranks]
        left = (rank + ranks - 1) % ranks
        length = (x.size + ranks - 1) // ranks  # elements per chunk
        half = (epoch & 1) * (own.size // 2)
        for step in range(last + 1):
            if step > 0:
                if cuda.threadIdx.x == 0:
                    wait_for(signals[rank], flag_index(step - 1, left, ranks), epoch, left, fault, limit)
                cuda.syncthreads()
            chunk = (rank + 2 * ranks - step) % ranks
            i = cuda.grid(1)
            while i < length and chunk * length + i < x.size:
                at = chunk * length + i
                value = float32(x[at]) if step < ranks else float32(0)
                if step > 0:
                    value += uint_as_float(own[half + (step - 1) * length + i])
                if step < last:
                    there[half + step * length + i] = float_as_uint(value)
                if step >= ranks - 1:
                    out[at] = value
                i += cuda.gridsize(1)
            cuda.syncthreads()
            if step < last and cuda.threadIdx.x == 0:
                st_release_sys_u32(signals[(rank + 1) % ranks], flag_index(step, rank, ranks), epoch)
        finish_epoch(counters, epoch)

    return ring_kernel


def ring(x, out, peers):
    """The RankLaunch that writes the sum of all ranks' `x` into `out`, which may be `x`.

    x, out: [elements] or [tokens, hidden], float32, float16 or bfloat16, whole vectors of 16 bytes. Raises KernelArgumentError for
    other arrays, and for messages that do not fit the ranks' memory: a ring needs twice the message in float32.
    """
    check_message(x, out, peers)
    ranks, own = len(peers.memories), peers.own
    check_capacity("ring", (2 * ranks - 2) * ceil_div(x.size, ranks), own.staging)
    grid = min(BLOCKS, ceil_div(ceil_div(x.size, ranks), THREADS))
    flat = x.reshape(-1), out.reshape(-1)
    arguments = (*flat, peers.rank, peers.all("staging"), peers.all("signals"), own.counters, own.fault, peers.polls)
    return RankLaunch(ring_kernel(ranks), grid, THREADS, arguments)
