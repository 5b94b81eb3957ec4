"""All-reduce, residual addition and RMSNorm in one kernel, for the rows of a decode step.

    s = x_0 + x_1 + .. + x_(N-1)                            in rank order, rounded to the dtype
    r = s + residual                                        rounded to the dtype, and stored: the next layer adds to it
    y = r / sqrt(mean(r**2) + epsilon) * weight             statistics in float32

After a row-parallel GEMM each rank holds a partial sum, and an addition and a norm follow (normalization/rms_norm.py). If fused, the sum
stays in registers: T tokens of H elements of b bytes move as many bytes over NVLink as the all-reduce alone, and (4 T H + H) b bytes of the
rank's own memory instead of (6 T H + H) b, in one launch instead of two.

Rows are exchanged as in low_latency.py or as in one_shot.py, which differ in what a rank publishes and waits for (`Exchange`). Threads to
data: one block per token, or for a few tokens one after another; each thread holds its part of the row in registers. Rounding is that of
the two separate kernels: the results are bitwise the same, and the same on every rank.
"""

import functools
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numba import cuda, float32, uint32
from numba.cuda import libdevice

from minllm.kernels.all_reduce import low_latency, one_shot
from minllm.kernels.all_reduce.low_latency import send
from minllm.kernels.all_reduce.one_shot import copy_vector
from minllm.kernels.all_reduce.peers import BLOCKS, VECTOR_BYTES, WORD_BYTES, RankLaunch, check_capacity, check_message
from minllm.kernels.all_reduce.signals import finish_epoch, meet, next_epoch
from minllm.kernels.arguments import check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.normalization.row import row_in_registers
from minllm.kernels.reduction import block_sum
from minllm.kernels.vector import load_words, vector_access, vector_unpack
from minllm.ptx import pack_bf16x2, pack_f16x2, unpack_bf16x2, unpack_f16x2
from minllm.runtime.kernel import check, kernel
from minllm.tiles.warp import WARP


@cuda.jit(device=True)
def round_to_bfloat16(total):
    """Round 8 float32 numbers to bfloat16, in place."""
    for k in range(4):
        total[2 * k], total[2 * k + 1] = unpack_bf16x2(pack_bf16x2(total[2 * k], total[2 * k + 1]))


@cuda.jit(device=True)
def round_to_float16(total):
    """Round 8 float32 numbers to float16, in place."""
    for k in range(4):
        total[2 * k], total[2 * k + 1] = unpack_f16x2(pack_f16x2(total[2 * k], total[2 * k + 1]))


@cuda.jit(device=True)
def keep_float32(total):
    """Do nothing: float32 needs no rounding."""


ROUND = {np.dtype(np.float32): keep_float32, np.dtype(np.float16): round_to_float16, np.dtype(ml_dtypes.bfloat16): round_to_bfloat16}


class Exchange(NamedTuple):
    """How ranks exchange rows: device functions. shared: all ranks' inboxes, or staging memory. at: words before the vector."""

    publish: Any  # (x, index, shared, rank, epoch, at): let the peers have the vector at element `index` of x
    arrive: Any  # (signals, rank, epoch, fault, limit): called once between all publish and all add_up of a block
    add_up: Any  # (x, index, shared, rank, epoch, at, total, fault, limit): total[:] = the sum of the ranks' vectors


@functools.cache
def with_flags(dtype, ranks):
    """The Exchange of low_latency: words are written into the peers' inboxes, and their flags are waited for one by one."""
    receive_and_add = low_latency.exchange(dtype, ranks)

    @cuda.jit(device=True)
    def publish(x, index, shared, rank, epoch, at):
        own = cuda.local.array(4, uint32)
        load_words(x, index, own, 0)
        send(own, shared, rank, epoch, at)

    @cuda.jit(device=True)
    def arrive(signals, rank, epoch, fault, limit):
        pass

    @cuda.jit(device=True)
    def add_up(x, index, shared, rank, epoch, at, total, fault, limit):
        own = cuda.local.array(4, uint32)
        load_words(x, index, own, 0)
        receive_and_add(own, shared[rank], rank, epoch, at, total, fault, limit)

    return Exchange(publish, arrive, add_up)


@functools.cache
def staged(dtype, ranks):
    """The Exchange of one_shot: rows are copied to memory that the peers read after a barrier."""
    sum_of_ranks = one_shot.sum_of_ranks(dtype, ranks)

    @cuda.jit(device=True)
    def publish(x, index, shared, rank, epoch, at):
        copy_vector(x, index, shared[rank], (epoch & 1) * (shared[rank].size // 2) + at)

    @cuda.jit(device=True)
    def arrive(signals, rank, epoch, fault, limit):
        meet(signals, 0, rank, epoch, fault, limit)

    @cuda.jit(device=True)
    def add_up(x, index, shared, rank, epoch, at, total, fault, limit):
        sum_of_ranks(shared, (epoch & 1) * (shared[0].size // 2) + at, total)

    return Exchange(publish, arrive, add_up)


class Fusable(NamedTuple):
    """An all-reduce that the norm can be fused with."""

    exchange: Any  # (dtype, ranks) -> Exchange
    memory: str  # the shared memory of RankMemory that it uses


FUSABLE = {"low_latency": Fusable(with_flags, "inbox"), "one_shot": Fusable(staged, "staging")}


@functools.cache
def fused_norm_kernel(algorithm, dtype, ranks, pieces):
    """The kernel in which each thread holds `pieces` vectors of the row."""
    width, _, store = vector_access(dtype)
    unpack, round_to_dtype = vector_unpack(dtype), ROUND[dtype]
    publish, arrive, add_up = FUSABLE[algorithm].exchange(dtype, ranks)
    held, of_weights = pieces * width, 4 * pieces
    loads_early = pieces == 1  # with more vectors the row needs the registers

    @kernel(launch_bounds=(1024, 1), dependent_launch=True)
    def fused_norm_kernel(x, residual, weight, out, epsilon, rank, shared, signals, counters, fault, limit):
        # x, residual, out: [T, H]; weight: [H]; shared, signals: those of all ranks; counters, fault: this rank's
        hidden, partials = x.shape[1], cuda.shared.array(WARP, float32)
        before, weights = cuda.local.array(4, uint32), cuda.local.array(of_weights, uint32)
        values, total = cuda.local.array(held, float32), cuda.local.array(width, float32)
        for piece in range(pieces):
            i = (piece * cuda.blockDim.x + cuda.threadIdx.x) * width
            if i < hidden and loads_early:
                load_words(weight, i, weights, 4 * piece)  # no kernel writes it, so this load may overlap the preceding kernel
        wait_for_predecessors()
        epoch, token = next_epoch(counters), cuda.blockIdx.x
        while token < x.shape[0]:
            row = token * hidden
            for piece in range(pieces):
                i = (piece * cuda.blockDim.x + cuda.threadIdx.x) * width
                if i < hidden:
                    publish(x, row + i, shared, rank, epoch, 4 * ((row + i) // width))
            token += cuda.gridDim.x
        arrive(signals, rank, epoch, fault, limit)
        token = cuda.blockIdx.x
        while token < x.shape[0]:
            row, sum_of_squares = token * hidden, float32(0)
            for piece in range(pieces):
                i, at = (piece * cuda.blockDim.x + cuda.threadIdx.x) * width, piece * width
                if i < hidden:
                    if loads_early:
                        load_words(residual, row + i, before, 0)  # in flight while this thread waits for its peers
                    add_up(x, row + i, shared, rank, epoch, 4 * ((row + i) // width), total, fault, limit)
                    round_to_dtype(total)
                    if not loads_early:
                        load_words(residual, row + i, before, 0)
                    unpack(before, 0, values, at)
                    for k in range(width):
                        values[at + k] += total[k]
                    store(residual, row + i, values, at)
                    for k in range(width):
                        sum_of_squares += values[at + k] * values[at + k]
            inverse_rms = libdevice.rsqrtf(block_sum(sum_of_squares, partials) / float32(hidden) + epsilon)
            for piece in range(pieces):
                i, at = (piece * cuda.blockDim.x + cuda.threadIdx.x) * width, piece * width
                if i < hidden:
                    if not loads_early:
                        load_words(weight, i, weights, 4 * piece)
                    unpack(weights, 4 * piece, total, 0)
                    for k in range(width):
                        values[at + k] *= inverse_rms * total[k]
                    store(out, row + i, values, at)
            cuda.syncthreads()  # all threads have read `partials`
            token += cuda.gridDim.x
        finish_epoch(counters, epoch)

    return fused_norm_kernel


def fused_norm(x, weight, out, epsilon, residual, peers, algorithm="low_latency"):
    """The RankLaunch that adds the sum of all ranks' `x` to `residual`, in place, and writes the RMSNorm of that into `out`.

    x, out, residual: [tokens, hidden]; weight: [hidden]; out may be x. algorithm: of FUSABLE. Raises KernelArgumentError for another one,
    for other shapes and dtypes, for rows that are unaligned or too long for a block's registers, and for messages that do not fit the
    ranks' memory.
    """
    check(algorithm in FUSABLE, f"there is no {algorithm!r} with a norm; there are {', '.join(FUSABLE)}")
    vectors = check_message(x, out, peers)
    ranks, own, fusable = len(peers.memories), peers.own, FUSABLE[algorithm]
    check(x.ndim == 2, "x has one axis; the norm needs [tokens, hidden]")
    tokens, hidden = x.shape
    check_array("residual", residual, (x.dtype,), tokens=tokens, hidden=hidden)
    check_array("weight", weight, (x.dtype,), hidden=hidden)
    shape = row_in_registers(hidden, x, residual, weight, out)
    check(shape is not None, f"rows of {hidden} {x.dtype}: use an all-reduce and rms_norm, which take any")
    parts = 2 * ranks if fusable.memory == "inbox" else 2
    check_capacity("fused_norm", vectors * VECTOR_BYTES // WORD_BYTES, getattr(own, fusable.memory), parts)
    block, pieces = shape
    shared = peers.rank, peers.all(fusable.memory), peers.all("signals"), own.counters, own.fault, peers.polls
    launched = fused_norm_kernel(algorithm, x.dtype, ranks, pieces)
    return RankLaunch(launched, min(BLOCKS, tokens), block, (x, residual, weight, out, float(epsilon), *shared))
