"""All-reduce in two shots: each rank sums one N-th of the message, then all ranks gather the sums.

    out[chunk r] = x_0[chunk r] + .. + x_(N-1)[chunk r]     on rank r                (reduce-scatter)
    out = the chunks of all ranks                           on every rank            (all-gather)

Each rank reads (N - 1) / N b bytes twice over NVLink, as few as a ring, and waits twice, whereas a ring waits 2 (N - 1) times: best for
large messages. FLOPs: (N - 1) additions per element, divided among the ranks. An element is summed once, in rank order: all ranks get the
same bits, which are those of `one_shot`.

Threads to data: one thread per vector of 16 bytes; sums in float32, rounded once, and written over the rank's own chunk of the copy, which
no peer reads before. Block b takes the same part of every chunk, so that it waits only for blocks b. Source: vLLM,
csrc/custom_all_reduce.cuh.
"""

import functools

from numba import cuda, float32

from minllm.kernels.all_reduce.one_shot import copy_vector, sum_of_ranks
from minllm.kernels.all_reduce.peers import BLOCKS, VECTOR_BYTES, WORD_BYTES, RankLaunch, check_capacity, check_message
from minllm.kernels.all_reduce.signals import finish_epoch, meet, next_epoch
from minllm.kernels.arguments import ceil_div
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.vector import vector_access
from minllm.runtime.kernel import kernel

THREADS = 512


@functools.cache
def two_shot_kernel(dtype, ranks):
    """The kernel for this dtype and number of ranks."""
    width, _, store = vector_access(dtype)
    add_up = sum_of_ranks(dtype, ranks)

    @kernel(launch_bounds=(THREADS, 1), dependent_launch=True)
    def two_shot_kernel(x, out, rank, staging, signals, counters, fault, limit):
        # x, out: [elements]; staging, signals: those of all ranks; counters, fault: this rank's
        wait_for_predecessors()
        epoch, vectors, own = next_epoch(counters), x.size // width, staging[rank]
        length = (vectors + ranks - 1) // ranks  # vectors per chunk
        half = (epoch & 1) * (own.size // 2)
        total = cuda.local.array(width, float32)
        for chunk in range(ranks):
            i = cuda.grid(1)
            while i < length and chunk * length + i < vectors:
                at = chunk * length + i
                copy_vector(x, at * width, own, half + 4 * at)
                i += cuda.gridsize(1)
        meet(signals, 0, rank, epoch, fault, limit)
        i = cuda.grid(1)
        while i < length and rank * length + i < vectors:
            at = half + 4 * (rank * length + i)
            add_up(staging, at, total)
            store(own, at, total, 0)
            i += cuda.gridsize(1)
        meet(signals, 1, rank, epoch, fault, limit)
        for chunk in range(ranks):
            i = cuda.grid(1)
            while i < length and chunk * length + i < vectors:
                at = chunk * length + i
                copy_vector(staging[chunk], half + 4 * at, out, at * width)
                i += cuda.gridsize(1)
        finish_epoch(counters, epoch)

    return two_shot_kernel


def two_shot(x, out, peers):
    """The RankLaunch that writes the sum of all ranks' `x` into `out`, which may be `x`.

    x, out: [elements] or [tokens, hidden], float32, float16 or bfloat16, whole vectors of 16 bytes. Raises KernelArgumentError for
    other arrays, and for messages that do not fit the ranks' memory.
    """
    vectors = check_message(x, out, peers)
    ranks, own = len(peers.memories), peers.own
    check_capacity("two_shot", vectors * VECTOR_BYTES // WORD_BYTES, own.staging)
    grid = min(BLOCKS, ceil_div(ceil_div(vectors, ranks), THREADS))
    flat = x.reshape(-1), out.reshape(-1)
    arguments = (*flat, peers.rank, peers.all("staging"), peers.all("signals"), own.counters, own.fault, peers.polls)
    return RankLaunch(two_shot_kernel(x.dtype, ranks), grid, THREADS, arguments)
