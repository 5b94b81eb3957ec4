"""All-reduce, residual addition and RMSNorm in one kernel, for the few rows of a decode step.

    s = x_0 + x_1 + .. + x_(N-1)                            in rank order, rounded to the dtype
    r = s + residual                                        rounded to the dtype, and stored: the next layer adds to it
    y = r / sqrt(mean(r**2) + epsilon) * weight             statistics in float32

After a row-parallel GEMM each rank holds a partial sum, and an addition and a norm follow (normalization/rms_norm.py). If fused, the sum
stays in registers: T tokens of H elements of b bytes move 2 (N - 1) T H b bytes over NVLink per rank, as in `low_latency`, and
(4 T H + H) b bytes of the rank's own memory instead of (6 T H + H) b, in one launch instead of two.

Threads to data: one block per token, or for a few tokens one after another; each thread holds its part of the row in registers. Words are
exchanged as in low_latency.py, and rounding is that of the two separate kernels: the results are bitwise the same.
"""

import functools

import ml_dtypes
import numpy as np
from numba import cuda, float32, uint32
from numba.cuda import libdevice

from minllm.kernels.all_reduce.low_latency import exchange, send
from minllm.kernels.all_reduce.peers import BLOCKS, VECTOR_BYTES, WORD_BYTES, RankLaunch, check_capacity, check_message
from minllm.kernels.all_reduce.signals import finish_epoch, next_epoch
from minllm.kernels.arguments import check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.normalization.row import row_in_registers
from minllm.kernels.reduction import block_sum
from minllm.kernels.vector import load_words, vector_access
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


@functools.cache
def fused_norm_kernel(dtype, ranks, pieces):
    """The kernel in which each thread holds `pieces` vectors of the row."""
    width, load, store = vector_access(dtype)
    add_up = exchange(dtype, ranks)
    round_to_dtype = ROUND[dtype]
    held = pieces * width

    @kernel(launch_bounds=(1024, 1), dependent_launch=True)
    def fused_norm_kernel(x, residual, weight, out, epsilon, rank, inboxes, counters, fault, limit):
        # x, residual, out: [T, H]; weight: [H]; inboxes: those of all ranks; counters, fault: this rank's
        wait_for_predecessors()
        epoch, hidden = next_epoch(counters), x.shape[1]
        partials = cuda.shared.array(WARP, float32)
        own, total = cuda.local.array(4, uint32), cuda.local.array(width, float32)
        values, weights = cuda.local.array(held, float32), cuda.local.array(width, float32)
        token = cuda.blockIdx.x
        while token < x.shape[0]:
            row = token * hidden
            for piece in range(pieces):
                i = (piece * cuda.blockDim.x + cuda.threadIdx.x) * width
                if i < hidden:
                    load_words(x, row + i, own, 0)
                    send(own, inboxes, rank, epoch, 4 * ((row + i) // width))
            sum_of_squares = float32(0)
            for piece in range(pieces):
                i, at = (piece * cuda.blockDim.x + cuda.threadIdx.x) * width, piece * width
                if i < hidden:
                    load_words(x, row + i, own, 0)
                    add_up(own, inboxes[rank], rank, epoch, 4 * ((row + i) // width), total, fault, limit)
                    round_to_dtype(total)
                    load(residual, row + i, values, at)
                    for k in range(width):
                        values[at + k] += total[k]
                    store(residual, row + i, values, at)
                    for k in range(width):
                        sum_of_squares += values[at + k] * values[at + k]
            inverse_rms = libdevice.rsqrtf(block_sum(sum_of_squares, partials) / float32(hidden) + epsilon)
            for piece in range(pieces):
                i, at = (piece * cuda.blockDim.x + cuda.threadIdx.x) * width, piece * width
                if i < hidden:
                    load(weight, i, weights, 0)
                    for k in range(width):
                        values[at + k] *= inverse_rms * weights[k]
                    store(out, row + i, values, at)
            cuda.syncthreads()  # all threads have read `partials`
            token += cuda.gridDim.x
        finish_epoch(counters, epoch)

    return fused_norm_kernel


def fused_norm(x, weight, out, epsilon, residual, peers):
    """The RankLaunch that adds the sum of all ranks' `x` to `residual`, in place, and writes the RMSNorm of that into `out`.

    x, out, residual: [tokens, hidden]; weight: [hidden]; out may be x. Raises KernelArgumentError for other shapes and dtypes, for rows
    that are unaligned or too long for a block's registers, and for messages that do not fit the ranks' inboxes.
    """
    vectors = check_message(x, out, peers)
    ranks, own = len(peers.memories), peers.own
    check(x.ndim == 2, "x has one axis; the norm needs [tokens, hidden]")
    tokens, hidden = x.shape
    check_array("residual", residual, (x.dtype,), tokens=tokens, hidden=hidden)
    check_array("weight", weight, (x.dtype,), hidden=hidden)
    shape = row_in_registers(hidden, x, residual, weight, out)
    check(shape is not None, f"rows of {hidden} {x.dtype}: use an all-reduce and rms_norm, which take any")
    check_capacity("fused_norm", vectors * VECTOR_BYTES // WORD_BYTES, own.inbox, 2 * ranks)
    block, pieces = shape
    shared = peers.rank, peers.all("inbox"), own.counters, own.fault, peers.polls
    kernel = fused_norm_kernel(x.dtype, ranks, pieces)
    return RankLaunch(kernel, min(BLOCKS, tokens), block, (x, residual, weight, out, float(epsilon), *shared))
