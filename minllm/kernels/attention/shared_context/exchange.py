"""What ranks that share contexts exchange over NVLink: queries before attention, and its outputs and log-sum-exps after it.

    gather_queries    out[t, r, :] = rank r's queries of token t                                 on every rank
    merge_of_peers    out = the merge (merge_ranks.py) of all ranks' outputs for this rank's heads

Both are one-shot as all_reduce/one_shot.py is: a rank copies to memory that its peers read, raises a flag, waits for the flags of all
peers, and reads. An all-gather and a kernel that puts its result in order become one kernel; and of outputs only those of its own heads
cross to a rank, an N-th of what an all-gather sends.

Of n vectors of 16 bytes that a rank sends to each of N ranks, (N - 1) 16 n bytes are read over NVLink, for merge_of_peers 20 n, because
every vector has its log-sum-exp beside it: threads then need nothing that another thread has copied, and only blocks wait for each other.
Threads to data: one thread per vector. Sums are in the order of ranks.
"""

import functools

from numba import cuda, float32, int64, uint32

from minllm.kernels.all_reduce.one_shot import copy_vector
from minllm.kernels.all_reduce.peers import BLOCKS, RankLaunch, check_capacity
from minllm.kernels.all_reduce.signals import finish_epoch, meet, next_epoch
from minllm.kernels.arguments import FLOAT_DTYPES, ceil_div, check_array
from minllm.kernels.attention.common.online_softmax import MINUS_INFINITY, finite_or_zero, reciprocal_or_zero
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.vector import VECTOR_BYTES, load_words, vector_access, vector_unpack, vectors_per_row
from minllm.ptx import ex2, float_as_uint, store_128, uint_as_float
from minllm.runtime.kernel import check, kernel

FEW_THREADS, THREADS = 128, 512
VECTOR_WORDS = 4


@functools.cache
def gather_queries_kernel(dtype, ranks):
    """The kernel for this dtype and number of ranks."""
    width, held = vector_access(dtype)[0], VECTOR_WORDS * ranks

    @kernel(launch_bounds=(THREADS, 1), dependent_launch=True)
    def gather_queries_kernel(query, out, rank, staging, signals, counters, fault, limit):
        # query: [tokens, n], out: [tokens, ranks, n]; staging, signals: those of all ranks; counters, fault: this rank's
        wait_for_predecessors()
        epoch, of_token = next_epoch(counters), query.shape[1] // width
        vectors, half = query.shape[0] * of_token, (epoch & 1) * (staging[0].size // 2)
        words = cuda.local.array(held, uint32)
        i = cuda.grid(1)
        while i < vectors:
            copy_vector(query, int64(i) * width, staging[rank], half + VECTOR_WORDS * i)
            i += cuda.gridsize(1)
        meet(signals, 0, rank, epoch, fault, limit)
        i = cuda.grid(1)
        while i < vectors:
            for peer in range(ranks):  # all loads are issued first, because each crosses NVLink
                load_words(staging[peer], half + VECTOR_WORDS * i, words, VECTOR_WORDS * peer)
            token = i // of_token
            column = i - token * of_token
            for peer in range(ranks):
                at = VECTOR_WORDS * peer
                place = ((int64(token) * ranks + peer) * of_token + column) * width
                store_128(out, place, words[at], words[at + 1], words[at + 2], words[at + 3])
            i += cuda.gridsize(1)
        finish_epoch(counters, epoch)

    return gather_queries_kernel


@functools.cache
def merge_of_peers_kernel(dtype, head_dim, ranks):
    """The kernel for this dtype, head_dim, and number of ranks."""
    width, _, store = vector_access(dtype)
    unpack, of_head, held = vector_unpack(dtype), head_dim // width, VECTOR_WORDS * ranks

    @kernel(launch_bounds=(THREADS, 1), dependent_launch=True)
    def merge_of_peers_kernel(outs, lses, out, rank, staging, signals, counters, fault, limit):
        # outs: [tokens, ranks * heads, head_dim], lses: float32 [tokens, ranks * heads], of this rank's share; out: [tokens, heads,
        # head_dim]; staging: of every rank [ranks, vectors, 4] words of outs, then [ranks, vectors] of lses
        wait_for_predecessors()
        epoch, heads = next_epoch(counters), out.shape[1]
        vectors, half = out.shape[0] * heads * of_head, (epoch & 1) * (staging[0].size // 2)
        words, weights = cuda.local.array(held, uint32), cuda.local.array(ranks, float32)
        numbers, acc = cuda.local.array(width, float32), cuda.local.array(width, float32)
        lse_at = half + ranks * vectors * VECTOR_WORDS
        i = cuda.grid(1)
        while i < vectors:
            row = i // of_head  # one per token and head
            token = row // heads
            for peer in range(ranks):
                head, at = peer * heads + row - token * heads, peer * vectors + i
                place = (int64(token) * ranks * heads + head) * of_head + i - row * of_head
                copy_vector(outs, place * width, staging[rank], half + VECTOR_WORDS * at)
                staging[rank][lse_at + at] = float_as_uint(lses[token, head])
            i += cuda.gridsize(1)
        meet(signals, 0, rank, epoch, fault, limit)
        i = cuda.grid(1)
        while i < vectors:
            maximum, total = float32(MINUS_INFINITY), float32(0.0)
            for peer in range(ranks):
                load_words(staging[peer], half + VECTOR_WORDS * (rank * vectors + i), words, VECTOR_WORDS * peer)
                weights[peer] = uint_as_float(staging[peer][lse_at + rank * vectors + i])
            for peer in range(ranks):
                maximum = max(maximum, weights[peer])
            shift = finite_or_zero(maximum)
            for k in range(width):
                acc[k] = float32(0.0)
            for peer in range(ranks):
                weight = ex2(weights[peer] - shift)
                total += weight
                unpack(words, VECTOR_WORDS * peer, numbers, 0)
                for k in range(width):
                    acc[k] += weight * numbers[k]
            inverse = reciprocal_or_zero(total)
            for k in range(width):
                acc[k] *= inverse
            store(out, int64(i) * width, acc, 0)
            i += cuda.gridsize(1)
        finish_epoch(counters, epoch)

    return merge_of_peers_kernel


def gather_queries(query, out, peers):
    """The RankLaunch that writes all ranks' queries into `out` [tokens, ranks * heads, head_dim].

    query: this rank's [tokens, heads, head_dim]. Raises KernelArgumentError for other arrays, for heads that are no whole vectors, and for
    more bytes than the ranks' memory holds.
    """
    check_array("query", query, FLOAT_DTYPES, tokens=None, heads=None, head_dim=None)
    (tokens, heads, head_dim), ranks, own = query.shape, len(peers.memories), peers.own
    check_array("out", out, (query.dtype,), tokens=tokens, heads=ranks * heads, head_dim=head_dim)
    vectors = check_heads(head_dim, query, out) * heads * tokens
    check_capacity("gather_queries", vectors * VECTOR_WORDS, own.staging)
    arrays = query.reshape(tokens, heads * head_dim), out.reshape(tokens, ranks, heads * head_dim)
    arguments = (*arrays, peers.rank, peers.all("staging"), peers.all("signals"), own.counters, own.fault, peers.polls)
    return RankLaunch(gather_queries_kernel(query.dtype, ranks), *grid_of(vectors), arguments)


def merge_of_peers(outs, lses, out, peers):
    """The RankLaunch that writes the merged output of this rank's heads into `out` [tokens, heads, head_dim].

    outs: this rank's outputs for all heads [tokens, ranks * heads, head_dim]; lses: their log-sum-exps, float32 [tokens, ranks * heads], to
    base 2. Raises KernelArgumentError as gather_queries does.
    """
    check_array("out", out, FLOAT_DTYPES, tokens=None, heads=None, head_dim=None)
    (tokens, heads, head_dim), ranks, own = out.shape, len(peers.memories), peers.own
    check_array("outs", outs, (out.dtype,), tokens=tokens, heads=ranks * heads, head_dim=head_dim)
    check_array("lses", lses, FLOAT_DTYPES[:1], tokens=tokens, heads=ranks * heads)
    vectors = check_heads(head_dim, outs, out) * heads * tokens
    check_capacity("merge_of_peers", ranks * vectors * (VECTOR_WORDS + 1), own.staging)
    arguments = (outs, lses, out, peers.rank, peers.all("staging"), peers.all("signals"), own.counters, own.fault, peers.polls)
    return RankLaunch(merge_of_peers_kernel(out.dtype, head_dim, ranks), *grid_of(vectors), arguments)


def grid_of(vectors):
    """(blocks, threads per block): few vectors take small blocks, on more SMs."""
    threads = FEW_THREADS if vectors <= BLOCKS * FEW_THREADS else THREADS
    return min(BLOCKS, ceil_div(vectors, threads)), threads


def check_heads(head_dim, *arrays):
    """The vectors of a head. Raises KernelArgumentError unless they are whole and aligned."""
    found = vectors_per_row(head_dim, *arrays)
    check(found > 0, f"head_dim is {head_dim}; ranks exchange heads of whole vectors of {VECTOR_BYTES} bytes, aligned to that")
    return found
