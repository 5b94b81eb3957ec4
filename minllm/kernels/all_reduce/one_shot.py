"""All-reduce in one shot: every rank reads the messages of all ranks and adds them up itself.

    out = x_0 + x_1 + .. + x_(N-1)                          on every rank, in this order

A rank copies its message of b bytes into memory that its peers can read, raises a flag, waits for the flags of all peers, and reads. It
reads (N - 1) b bytes over NVLink, N / 2 times as many as a ring, but waits once, whereas a ring waits 2 (N - 1) times: best if latency
counts. FLOPs: (N - 1) additions per element, on each rank. All ranks add in the same order, so their results are bitwise the same.

Threads to data: one thread per vector of 16 bytes; sums in float32, rounded once. `x` may be written again as soon as the kernel ends:
peers read the copy, in the half of the staging memory that the next all-reduce does not use. Source: vLLM, csrc/custom_all_reduce.cuh; that
kernel reads the messages in place and needs a second barrier instead.
"""

import functools

from numba import cuda, float32, uint32

from minllm.kernels.all_reduce.peers import BLOCKS, VECTOR_BYTES, WORD_BYTES, RankLaunch, check_capacity, check_message
from minllm.kernels.all_reduce.signals import finish_epoch, meet, next_epoch
from minllm.kernels.arguments import ceil_div
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.vector import load_words, vector_access, vector_unpack
from minllm.ptx import store_128
from minllm.runtime.kernel import kernel

THREADS = 512


@functools.cache
def sum_of_ranks(dtype, ranks):
    """The device function that sets total[:] to the sum over ranks, in rank order, of the vector at word `at` of their staging memory."""
    width, _, _ = vector_access(dtype)
    unpack, held = vector_unpack(dtype), 4 * ranks

    @cuda.jit(device=True)
    def sum_of_ranks(staging, at, total):
        words, values = cuda.local.array(held, uint32), cuda.local.array(width, float32)
        for peer in range(ranks):  # all loads are issued first, because each crosses NVLink
            load_words(staging[peer], at, words, 4 * peer)
        for k in range(width):
            total[k] = float32(0)
        for peer in range(ranks):
            unpack(words, 4 * peer, values, 0)
            for k in range(width):
                total[k] += values[k]

    return sum_of_ranks


@cuda.jit(device=True)
def copy_vector(source, index, target, at):
    """Copy 16 bytes, from element `index` of source on, to index `at` of target."""
    words = cuda.local.array(4, uint32)
    load_words(source, index, words, 0)
    store_128(target, at, words[0], words[1], words[2], words[3])


@functools.cache
def one_shot_kernel(dtype, ranks):
    """The kernel for this dtype and number of ranks."""
    width, _, store = vector_access(dtype)
    add_up = sum_of_ranks(dtype, ranks)

    @kernel(launch_bounds=(THREADS, 1), dependent_launch=True)
    def one_shot_kernel(x, out, rank, staging, signals, counters, fault, limit):
        # x, out: [elements]; staging, signals: those of all ranks; counters, fault: this rank's
        wait_for_predecessors()
        epoch, vectors = next_epoch(counters), x.size // width
        half = (epoch & 1) * (staging[0].size // 2)
        total = cuda.local.array(width, float32)
        # exercise: all_reduce.one_shot
        i = cuda.grid(1)
        while i < vectors:
            copy_vector(x, i * width, staging[rank], half + 4 * i)
            i += cuda.gridsize(1)
        meet(signals, 0, rank, epoch, fault, limit)
        i = cuda.grid(1)
        while i < vectors:
            add_up(staging, half + 4 * i, total)
            store(out, i * width, total, 0)
            i += cuda.gridsize(1)
        # end exercise
        finish_epoch(counters, epoch)

    return one_shot_kernel


def one_shot(x, out, peers):
    """The RankLaunch that writes the sum of all ranks' `x` into `out`, which may be `x`.

    x, out: [elements] or [tokens, hidden], float32, float16 or bfloat16, whole vectors of 16 bytes. Raises KernelArgumentError for
    other arrays, and for messages that do not fit the ranks' memory.
    """
    vectors = check_message(x, out, peers)
    ranks, own = len(peers.memories), peers.own
    check_capacity("one_shot", vectors * VECTOR_BYTES // WORD_BYTES, own.staging)
    flat = x.reshape(-1), out.reshape(-1)
    arguments = (*flat, peers.rank, peers.all("staging"), peers.all("signals"), own.counters, own.fault, peers.polls)
    return RankLaunch(one_shot_kernel(x.dtype, ranks), min(BLOCKS, ceil_div(vectors, THREADS)), THREADS, arguments)
