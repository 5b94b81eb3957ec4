"""Reduce-scatter, residual addition, RMSNorm and all-gather in one kernel, for the rows of a prompt: sequence parallelism.

    s = x_0 + x_1 + .. + x_(N-1)                            in rank order, rounded to the dtype, on the rank that owns the row
    r = s + residual                                        rounded to the dtype, and stored there: the next layer adds to it
    y = r / sqrt(mean(r**2) + epsilon) * weight             statistics in float32; sent to all ranks

An all-reduce of many rows is a reduce-scatter and an all-gather (two_shot.py), and all ranks then compute the same norm of all rows. Here
each rank normalises its own rows between the two, so norms and residual additions are divided by N as well. The reduce-scatter costs no
time of its own: the GEMM stores each partial sum where it is added up. Its output is a range of addresses whose pages lie on the ranks in
turn (parallel/sequence_memory.py), so the tiles cross NVLink while the GEMM multiplies the next ones. T tokens of H elements of b bytes
then move (N - 1) / N T H b bytes per rank in this kernel, half of an all-reduce's.

A rank's residual is right only in its own rows. The last layer's kernel has no norm, and sends r to all ranks.

Threads to data: a block takes a few rows at a time, whose loads are all in flight before the first is used; each thread holds a vector of
each. Sums and residuals are rounded as by separate kernels, and results are bitwise the same on every rank.

Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4.2.2.
"""

import functools
import math
from typing import NamedTuple

import numpy as np
from numba import cuda, float32, int32, uint32
from numba.cuda import libdevice

from minllm.kernels.all_reduce.fused_norm import ROUND
from minllm.kernels.all_reduce.peers import BLOCKS, Peers, RankLaunch
from minllm.kernels.all_reduce.signals import finish_epoch, meet, next_epoch
from minllm.kernels.arguments import FLOAT_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.normalization.row import THREADS
from minllm.kernels.vector import VECTOR_BYTES, load_words, vector_access, vector_unpack, vectors_per_row
from minllm.runtime.array_protocol import Array
from minllm.runtime.kernel import check, kernel
from minllm.tiles.warp import WARP, warp_sum

PAGE_BYTES = 2 << 20  # the smallest piece of a GPU's memory that can be mapped
MOST_BYTES = 64 << 20  # what the rows of a step may take at most if the ranks of an engine divide them; else they are all-reduced
MOST_IN_FLIGHT = 12  # vectors that a thread of a block of up to THREADS / 2 has in flight; longer blocks have half the registers


class SequenceMemory(NamedTuple):
    """A rank's memory for sequences that the ranks divide: bytes, of which each kernel takes views.

    group_bytes: bytes of the rows that a rank owns side by side; of N ranks, rank r has groups r, r + N, r + 2 N, ... of a sequence.
    partials: where this rank's GEMMs store, groups of all ranks. received[s]: this rank's groups of what rank s stored, side by side.
    rows[r]: rank r's normalised rows, which all ranks write.
    """

    group_bytes: int
    partials: Array
    received: tuple[Array, ...]
    rows: tuple[Array, ...]

    @property
    def ranks(self) -> int:
        """The number of ranks, N."""
        return len(self.rows)

    def why_not(self, tokens: int, row_bytes: int) -> str | None:
        """The reason why the ranks cannot divide this number of rows; None if they can."""
        if reason := why_no_rows(row_bytes):
            return reason
        if self.group_bytes % row_bytes:
            return f"rows of {row_bytes} bytes do not fill groups of {self.group_bytes}"
        if tokens * row_bytes > self.partials.nbytes:
            return f"{tokens} rows of {row_bytes} bytes are more than the memory's {self.partials.nbytes}"
        if tokens * row_bytes < self.ranks * self.group_bytes:
            return f"{tokens} rows of {row_bytes} bytes are less than a group of {self.group_bytes} bytes for each of {self.ranks} ranks"
        return None


def why_no_rows(row_bytes: int) -> str | None:
    """The reason why the kernel does not take rows of this size; None if it does."""
    if row_bytes % VECTOR_BYTES or row_bytes > THREADS * VECTOR_BYTES:
        return f"rows of {row_bytes} bytes are not whole vectors of {VECTOR_BYTES} bytes, or more than {THREADS}"
    return None


def group_and_sequence_bytes(ranks: int, row_bytes: int) -> tuple[int, int] | None:
    """(bytes of a group, bytes of all ranks' groups) of a SequenceMemory; None if the kernel does not take such rows, or if they fill
    whole pages in groups that are too large.

    A group has the fewest rows of `row_bytes` that fill whole pages.
    """
    if why_no_rows(row_bytes):
        return None
    group = math.lcm(PAGE_BYTES, row_bytes)
    return (group, MOST_BYTES // (ranks * group) * ranks * group) if ranks * group <= MOST_BYTES else None


def rows_of(memory: Array, shape: tuple[int, int], dtype: np.dtype) -> Array:
    """The first bytes of a memory as an array [T, hidden]."""
    return memory[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(*shape)


@functools.cache
def sequence_parallel_kernel(dtype, ranks, threads, together):
    """The kernel in which each thread holds a vector of each of `together` rows."""
    width, _, store = vector_access(dtype)
    unpack, round_to_dtype = vector_unpack(dtype), ROUND[dtype]
    loads_early = threads <= THREADS // 2  # longer blocks have no registers to keep weights in
    of_row, in_flight, held = 4 * (ranks + 1), 4 * (ranks + 1) * together, width * together

    @kernel(launch_bounds=(threads, 1), dependent_launch=True)
    def sequence_parallel_kernel(received, residual, weight, rows, group, epsilon, rank, signals, counters, fault, limit):
        # received: of each rank [own rows, H]; residual: [T, H]; weight: [H] or None; rows: all ranks' [T, H]; signals: of all ranks
        tokens, hidden, i = int32(residual.shape[0]), residual.shape[1], cuda.threadIdx.x * width
        lane, warp, warps = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5, cuda.blockDim.x >> 5
        words, weights = cuda.local.array(in_flight, uint32), cuda.local.array(4, uint32)
        values, total = cuda.local.array(held, float32), cuda.local.array(width, float32)
        partials = cuda.shared.array((together, WARP), float32)
        if weight is not None and i < hidden and loads_early:
            load_words(weight, i, weights, 0)  # no kernel writes it, so this load may overlap the preceding kernel
        wait_for_predecessors()
        epoch, group_start, own_start = next_epoch(counters), int32(rank * group), int32(0)
        meet(signals, 0, rank, epoch, fault, limit)  # all ranks' GEMMs have ended
        while group_start < tokens:
            row, end = int32(cuda.blockIdx.x * together), min(int32(group), int32(tokens - group_start))
            while row < end:
                for k in range(together):
                    if i < hidden and row + k < end:
                        for peer in range(ranks):
                            load_words(received[peer], (own_start + row + k) * hidden + i, words, k * of_row + 4 * peer)
                        load_words(residual, (group_start + row + k) * hidden + i, words, k * of_row + 4 * ranks)
                for k in range(together):
                    sum_of_squares, at = float32(0), k * width
                    if i < hidden and row + k < end:
                        for j in range(width):
                            total[j] = float32(0)
                        for peer in range(ranks):
                            unpack(words, k * of_row + 4 * peer, values, at)
                            for j in range(width):
                                total[j] += values[at + j]
                        round_to_dtype(total)
                        unpack(words, k * of_row + 4 * ranks, values, at)
                        for j in range(width):
                            values[at + j] += total[j]
                        store(residual, (group_start + row + k) * hidden + i, values, at)  # rounded to the dtype by the store
                        for j in range(width):
                            sum_of_squares += values[at + j] * values[at + j]
                    sum_of_squares = warp_sum(sum_of_squares)
                    if lane == 0:
                        partials[k, warp] = sum_of_squares
                cuda.syncthreads()
                for k in range(together):
                    sum_of_squares = warp_sum(partials[k, lane] if lane < warps else float32(0))
                    inverse_rms = libdevice.rsqrtf(sum_of_squares / float32(hidden) + epsilon)
                    if i < hidden and row + k < end:
                        if weight is not None:
                            if loads_early:
                                unpack(weights, 0, total, 0)
                            else:
                                load_words(weight, i, words, 0)
                                unpack(words, 0, total, 0)
                            for j in range(width):
                                values[k * width + j] *= inverse_rms * total[j]
                        for peer in range(ranks):
                            store(rows[peer], (group_start + row + k) * hidden + i, values, k * width)
                cuda.syncthreads()  # all threads have read `partials`
                row = int32(row + cuda.gridDim.x * together)
            group_start, own_start = int32(group_start + ranks * group), int32(own_start + group)
        meet(signals, 1, rank, epoch, fault, limit)  # all ranks' rows have arrived
        finish_epoch(counters, epoch)

    return sequence_parallel_kernel


def sequence_parallel_norm(residual: Array, weight: Array | None, epsilon: float, memory: SequenceMemory, peers: Peers) -> RankLaunch:
    """The RankLaunch that adds the sum of all ranks' partial sums to the rank's own rows of `residual`, in place, and sends their RMSNorm,
    or with weight None the rows themselves, to `memory.rows` of all ranks.

    residual: [tokens, hidden]; weight: [hidden]. The partial sums are in `memory.partials` of every rank. Raises KernelArgumentError for
    other shapes and dtypes, for unaligned arrays, and for rows that the ranks cannot divide (SequenceMemory.why_not).
    """
    check_array("residual", residual, FLOAT_DTYPES, tokens=None, hidden=None)
    (tokens, hidden), dtype, ranks = residual.shape, residual.dtype, memory.ranks
    if weight is not None:
        check_array("weight", weight, (dtype,), hidden=hidden)
    row_bytes = hidden * dtype.itemsize
    reason = memory.why_not(tokens, row_bytes)
    check(reason is None, f"{reason}: use an all-reduce and rms_norm, which take any")
    aligned = vectors_per_row(hidden, residual, *(() if weight is None else (weight,))) > 0
    check(aligned, f"residual and weight must begin on multiples of {VECTOR_BYTES} bytes")
    threads, group = ceil_div(row_bytes // VECTOR_BYTES, WARP) * WARP, memory.group_bytes // row_bytes
    together = 1 if threads > THREADS // 2 else max(1, MOST_IN_FLIGHT // (ranks + 1))
    received = tuple(one.view(dtype) for one in memory.received)
    rows = tuple(rows_of(one, residual.shape, dtype) for one in memory.rows)
    own = ceil_div(ceil_div(tokens, group), ranks) * group  # the most rows of a rank
    shared = peers.rank, peers.all("signals"), peers.own.counters, peers.own.fault, peers.polls
    launched = sequence_parallel_kernel(dtype, ranks, threads, together)
    arguments = (received, residual, weight, rows, group, float(epsilon), *shared)
    return RankLaunch(launched, min(BLOCKS, ceil_div(own, together)), threads, arguments)
