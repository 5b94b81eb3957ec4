"""All-reduce of small messages: each word holds data and a flag.

    out = x_0 + x_1 + .. + x_(N-1)                          on every rank, in this order

A separate flag makes a message cross NVLink twice, one after another: first the data, and only after they have arrived, the flag. Here each
word of 8 bytes holds 4 bytes of data and the number of the all-reduce, and a GPU writes and reads such a word atomically: if the number has
arrived, so have the data. A rank writes its message into the inbox of every peer and then polls its own memory. This takes one crossing, no
fence and no barrier, but twice the bytes: 2 (N - 1) b sent per rank. FLOPs: (N - 1) additions per element, on each rank, in rank order, so
the result has the bits of `one_shot`.

Threads to data: one thread per vector of 16 bytes, sent as 32 bytes; sums in float32, rounded once. The inbox is never cleared: a word is
old if its number is. (A word last written with the same number, 2**32 all-reduces ago, would be taken for new.) Source: NCCL's protocol LL,
src/device/prims_ll.h.
"""

import functools

from numba import cuda, float32, uint32, uint64

from minllm.kernels.all_reduce.peers import BLOCKS, VECTOR_BYTES, WORD_BYTES, RankLaunch, check_capacity, check_message
from minllm.kernels.all_reduce.signals import finish_epoch, gives_up, next_epoch
from minllm.kernels.arguments import ceil_div
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.vector import load_words, vector_access, vector_unpack
from minllm.ptx import ld_relaxed_sys_v2_u64, st_relaxed_sys_v2_u64
from minllm.runtime.kernel import kernel

THREADS = 256


@cuda.jit(device=True)
def slot(inbox, epoch, sender, ranks):
    """Index of the first word of `sender` in an inbox; each half of an inbox has a part per rank."""
    return ((epoch & 1) * ranks + sender) * (inbox.size // (2 * ranks))


@cuda.jit(device=True)
def with_flag(data, epoch):
    """A word of 8 bytes: data in the lower half, flag in the upper half."""
    return uint64(data) | uint64(epoch) << uint64(32)


@cuda.jit(device=True)
def send(words, inboxes, rank, epoch, at):
    """Write the four `words` at offset `at` of this rank's part of the inboxes of all other ranks."""
    ranks = len(inboxes)
    there = slot(inboxes[0], epoch, rank, ranks) + at
    for peer in range(ranks):
        if peer != rank:
            st_relaxed_sys_v2_u64(inboxes[peer], there, with_flag(words[0], epoch), with_flag(words[1], epoch))
            st_relaxed_sys_v2_u64(inboxes[peer], there + 2, with_flag(words[2], epoch), with_flag(words[3], epoch))


@cuda.jit(device=True)
def is_new(word, epoch):
    """Whether a word was written in this all-reduce."""
    return uint32(word >> uint64(32)) == epoch


@cuda.jit(device=True)
def receive(words, inbox, peer, ranks, epoch, at, fault, limit):
    """words[:] = the four words that `peer` has sent at offset `at`; waits until all of them have arrived."""
    here, polls = slot(inbox, epoch, peer, ranks) + at, 0
    while True:
        word0, word1 = ld_relaxed_sys_v2_u64(inbox, here)
        word2, word3 = ld_relaxed_sys_v2_u64(inbox, here + 2)
        if is_new(word0, epoch) and is_new(word1, epoch) and is_new(word2, epoch) and is_new(word3, epoch):
            break
        polls += 1
        if gives_up(polls, limit, fault, peer):
            break
    words[0], words[1], words[2], words[3] = uint32(word0), uint32(word1), uint32(word2), uint32(word3)


@functools.cache
def exchange(dtype, ranks):
    """The device function that sets total[:] to the sum over ranks, in rank order, of the vector at offset `at`; own: this rank's words."""
    width, _, _ = vector_access(dtype)
    unpack = vector_unpack(dtype)

    @cuda.jit(device=True)
    def exchange(own, inbox, rank, epoch, at, total, fault, limit):
        words, values = cuda.local.array(4, uint32), cuda.local.array(width, float32)
        for k in range(width):
            total[k] = float32(0)
        for peer in range(ranks):
            if peer == rank:
                unpack(own, 0, values, 0)
            else:
                receive(words, inbox, peer, ranks, epoch, at, fault, limit)
                unpack(words, 0, values, 0)
            for k in range(width):
                total[k] += values[k]

    return exchange


@functools.cache
def low_latency_kernel(dtype, ranks):
    """The kernel for this dtype and number of ranks."""
    width, _, store = vector_access(dtype)
    add_up = exchange(dtype, ranks)

    @kernel(launch_bounds=(THREADS, 1), dependent_launch=True)
    def low_latency_kernel(x, out, rank, inboxes, counters, fault, limit):
        # x, out: [elements]; inboxes: those of all ranks; counters, fault: this rank's
        wait_for_predecessors()
        epoch = next_epoch(counters)
        own, total = cuda.local.array(4, uint32), cuda.local.array(width, float32)
        i = cuda.grid(1)
        while i < x.size // width:
            load_words(x, i * width, own, 0)
            send(own, inboxes, rank, epoch, 4 * i)
            i += cuda.gridsize(1)
        i = cuda.grid(1)
        while i < x.size // width:
            load_words(x, i * width, own, 0)
            add_up(own, inboxes[rank], rank, epoch, 4 * i, total, fault, limit)
            store(out, i * width, total, 0)
            i += cuda.gridsize(1)
        finish_epoch(counters, epoch)

    return low_latency_kernel


def low_latency(x, out, peers):
    """The RankLaunch that writes the sum of all ranks' `x` into `out`, which may be `x`.

    x, out: [elements] or [tokens, hidden], float32, float16 or bfloat16, whole vectors of 16 bytes. Raises KernelArgumentError for
    other arrays, and for messages that do not fit the ranks' inboxes.
    """
    vectors = check_message(x, out, peers)
    ranks, own = len(peers.memories), peers.own
    check_capacity("low_latency", vectors * VECTOR_BYTES // WORD_BYTES, own.inbox, 2 * ranks)
    flat = x.reshape(-1), out.reshape(-1)
    arguments = (*flat, peers.rank, peers.all("inbox"), own.counters, own.fault, peers.polls)
    return RankLaunch(low_latency_kernel(x.dtype, ranks), min(BLOCKS, ceil_div(vectors, THREADS)), THREADS, arguments)
