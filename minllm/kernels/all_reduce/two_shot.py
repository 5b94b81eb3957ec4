"""All-reduce in two shots: each rank sums one N-th of the message, then all ranks gather the sums.

    out[chunk r] = x_0[chunk r] + .. + x_(N-1)[chunk r]     on rank r                (reduce-scatter)
    out = the chunks of all ranks                           on every rank            (all-gather)

Each rank reads (N - 1) / N b bytes twice over NVLink, as few as a ring, and waits twice, whereas a ring waits 2 (N - 1) times: best for
large messages. FLOPs: (N - 1) additions per element, divided among the ranks. An element is summed once, in rank order: all ranks get the
same bits, which are those of `one_shot`. A rank's own chunk of its message is not copied, because no peer reads it.

Threads to data: one thread per vector of 16 bytes; sums in float32, rounded once. A load that crosses NVLink takes microseconds, so a
thread starts several of them before it uses the first: 64 blocks then have 4 MB in flight, more than link or HBM move in that time. Block
b takes the same part of every chunk, so that it waits only for blocks b. Source: vLLM, csrc/custom_all_reduce.cuh, which has one load per
peer in flight.
"""

import functools

from numba import cuda, float32, uint32

from minllm.kernels.all_reduce.peers import BLOCKS, VECTOR_BYTES, WORD_BYTES, RankLaunch, check_capacity, check_message
from minllm.kernels.all_reduce.signals import finish_epoch, meet, next_epoch
from minllm.kernels.arguments import ceil_div
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.vector import load_words, vector_access, vector_unpack
from minllm.ptx import load_128, store_128
from minllm.runtime.kernel import kernel

THREADS = 512
IN_FLIGHT = 8  # loads of 16 bytes that a thread starts before it uses the first
OF_COPY = 4 * IN_FLIGHT  # words


@cuda.jit(device=True)
def copy_vectors(source, first, step, target, at, target_step, count):
    """Copy `count` vectors from element `first` of source, `step` elements each, to element `at` of target, `target_step` each."""
    words = cuda.local.array(OF_COPY, uint32)
    i, stride = cuda.grid(1), cuda.gridsize(1)
    while i < count:
        for k in range(IN_FLIGHT):
            if i + k * stride < count:
                load_words(source, first + (i + k * stride) * step, words, 4 * k)
        for k in range(IN_FLIGHT):
            if i + k * stride < count:
                to = at + (i + k * stride) * target_step
                store_128(target, to, words[4 * k], words[4 * k + 1], words[4 * k + 2], words[4 * k + 3])
        i += IN_FLIGHT * stride


@cuda.jit(device=True)
def own_or_peers(x, index, staging, at, is_own, words, word):
    """words[word : word + 4] = the vector at element `index` of x if is_own, else that at word `at` of a peer's staging memory."""
    if is_own:
        word0, word1, word2, word3 = load_128(x, index)
    else:
        word0, word1, word2, word3 = load_128(staging, at)
    words[word], words[word + 1], words[word + 2], words[word + 3] = word0, word1, word2, word3


@functools.cache
def sum_of_chunk(dtype, ranks):
    """The device function that sums a rank's chunk over all ranks: of `count` vectors, from vector `first` of x and of the staging memory.

    Sums are stored in `out`, and over the rank's own part of the staging memory, for its peers. half: its first word.
    """
    width, _, store = vector_access(dtype)
    unpack, together = vector_unpack(dtype), max(1, IN_FLIGHT // ranks)
    of_one, of_all = 4 * ranks, 4 * ranks * together

    @cuda.jit(device=True)
    def sum_of_chunk(x, out, staging, half, rank, first, count):
        words, values, total = cuda.local.array(of_all, uint32), cuda.local.array(width, float32), cuda.local.array(width, float32)
        i, stride = cuda.grid(1), cuda.gridsize(1)
        while i < count:
            for k in range(together):
                at = first + i + k * stride
                if i + k * stride < count:
                    for peer in range(ranks):
                        own_or_peers(x, at * width, staging[peer], half + 4 * at, peer == rank, words, of_one * k + 4 * peer)
            for k in range(together):
                at = first + i + k * stride
                if i + k * stride < count:
                    for j in range(width):
                        total[j] = float32(0)
                    for peer in range(ranks):
                        unpack(words, of_one * k + 4 * peer, values, 0)
                        for j in range(width):
                            total[j] += values[j]
                    store(out, at * width, total, 0)
                    store(staging[rank], half + 4 * at, total, 0)
            i += together * stride

    return sum_of_chunk


@functools.cache
def two_shot_kernel(dtype, ranks):
    """The kernel for this dtype and number of ranks."""
    width, _, _ = vector_access(dtype)
    add_up = sum_of_chunk(dtype, ranks)

    @kernel(launch_bounds=(THREADS, 1), dependent_launch=True)
    def two_shot_kernel(x, out, rank, staging, signals, counters, fault, limit):
        # x, out: [elements]; staging, signals: those of all ranks; counters, fault: this rank's
        wait_for_predecessors()
        epoch, vectors, own = next_epoch(counters), x.size // width, staging[rank]
        length = (vectors + ranks - 1) // ranks  # vectors per chunk, but for the last one
        half = (epoch & 1) * (own.size // 2)
        for chunk in range(ranks):
            if chunk != rank:
                first = chunk * length
                copy_vectors(x, first * width, width, own, half + 4 * first, 4, min(length, vectors - first))
        meet(signals, 0, rank, epoch, fault, limit)
        add_up(x, out, staging, half, rank, rank * length, min(length, vectors - rank * length))
        meet(signals, 1, rank, epoch, fault, limit)
        for chunk in range(ranks):
            if chunk != rank:
                first = chunk * length
                copy_vectors(staging[chunk], half + 4 * first, 4, out, first * width, width, min(length, vectors - first))
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
