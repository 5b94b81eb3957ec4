"""Merges the attention states of warps, and of blocks that share a head.

A block that has processed all keys of a head writes the output. A block that has processed a part writes its state to memory and increments
the head's count of arrivals; the last block to arrive merges all parts, in the order of the keys, so that the result is bitwise the same
whichever block that is. It resets the count to zero for the next launch.

    M = max_s m_s          out = sum_s exp(m_s - M) o_s / sum_s exp(m_s - M) l_s          (online_softmax.py, for any number of states)

FLOPs: 2 * head_dim per state and head. Bytes: 4 * (head_dim + 2) per state and head, written and read once.
"""

import functools
from typing import NamedTuple

from numba import cuda, float32, int32, uint32

from minllm.kernels.attention.common.online_softmax import MINUS_INFINITY, finite_or_zero, log_sum_exp, reciprocal_or_zero
from minllm.kernels.attention.split_tensor_core.plan import quotient
from minllm.kernels.attention.split_tensor_core.warp_states import VECTOR, make_warp_merge
from minllm.ptx import bar_sync, ex2, float_as_uint, load_128, store_128, uint_as_float
from minllm.runtime.array_protocol import Array
from minllm.tiles.warp import ALL_LANES, warp_max, warp_sum

PART_NAMES = ("part_max", "part_sum", "part_out", "arrivals")  # in the order of the kernels' arguments


class Parts(NamedTuple):
    """States in memory of heads that several blocks share. Each block has two slots: the even one for the head that its run begins with,
    the odd one for the head that its run ends with, if that is another."""

    maxima: Array  # [2 * blocks, heads]
    sums: Array  # [2 * blocks, heads]
    outs: Array  # [2 * blocks, heads, head_dim]
    arrivals: Array  # [blocks], zeros before and after


def part_shapes(blocks, heads, head_dim):
    """The workspace of Parts: name -> (shape, dtype)."""
    shapes = ((2 * blocks, heads), (2 * blocks, heads), (2 * blocks, heads, head_dim), (blocks,))
    return dict(zip(PART_NAMES, zip(shapes, ("float32", "float32", "float32", "int32"), strict=True), strict=True))


@cuda.jit(device=True)
def slot_of_part(first_slot, part):
    """The slot of a part of a head: first_slot for the first part, the even slots of the blocks after it for the others."""
    return uint32(first_slot if part == 0 else (uint32(first_slot) // 2 + part) * 2)


@functools.cache
def make_merges(head_dim, warps, plan, has_producer=False):
    """(write_whole, finish_part, write_zeros, synchronize): device functions for the first `warps` warps of a block.

    plan: divides heads into parts. has_producer: the block has another warp, which does not join their barrier.
    """
    threads = 32 * warps
    vectors_each = -(-head_dim // (32 * VECTOR))  # per lane
    dims_each = VECTOR * vectors_each
    parts_at_once = 16 // vectors_each  # parts of a head whose loads are in flight together
    word_count = parts_at_once * dims_each
    merge_warps, visible_keys = make_warp_merge(warps), plan.visible_keys

    @cuda.jit(device=True)
    def synchronize():
        if has_producer:
            bar_sync(1, threads)
        else:
            cuda.syncthreads()

    @cuda.jit(device=True)
    def write_whole(states, out, lse, heads, scale):
        """Write the output of a head that this block has processed alone, and its log-sum-exp if lse is not None."""
        results = cuda.local.array(VECTOR, float32)
        i = int32(cuda.threadIdx.x * VECTOR)
        while i < heads.left * head_dim:
            head = uint32(quotient(i, head_dim))
            dim = uint32(i - head * head_dim)
            maximum, total = merge_warps(states, head, dim, scale, results)
            if lse is not None:
                if dim == 0:
                    lse[uint32(heads.row), uint32(heads.first + head)] = log_sum_exp(maximum, total, scale)
            inverse = reciprocal_or_zero(total)
            for j in range(VECTOR):
                out[uint32(heads.row), uint32(heads.first + head), uint32(dim + j)] = results[j] * inverse
            i = int32(i + threads * VECTOR)

    @cuda.jit(device=True)
    def write_part(states, parts, slot, heads, scale):
        """Write the block's state of a head that it shares with other blocks."""
        results = cuda.local.array(VECTOR, float32)
        i = int32(cuda.threadIdx.x * VECTOR)
        while i < heads.left * head_dim:
            head = uint32(quotient(i, head_dim))
            dim = uint32(i - head * head_dim)
            maximum, total = merge_warps(states, head, dim, scale, results)
            a, b, c, d = float_as_uint(results[0]), float_as_uint(results[1]), float_as_uint(results[2]), float_as_uint(results[3])
            store_128(parts.outs, uint32((slot * parts.outs.shape[1] + head) * head_dim + dim), a, b, c, d)
            if dim == 0:
                parts.maxima[slot, head] = maximum
                parts.sums[slot, head] = total
            i = int32(i + threads * VECTOR)

    @cuda.jit(device=True)
    def arrive(parts, first_slot, arrived):
        """Increment the arrivals of the head with its first part in first_slot; returns the earlier arrivals, to all threads."""
        synchronize()
        if cuda.threadIdx.x == 0:
            cuda.threadfence()  # this block's writes become visible before its arrival
            arrived[0] = cuda.atomic.add(parts.arrivals, uint32(first_slot) // 2, 1)
            cuda.threadfence()  # the writes of blocks that arrived earlier are visible after this
        synchronize()
        return arrived[0]

    @cuda.jit(device=True)
    def load_parts(words, parts, first_slot, chunk, count, head, lane):
        """Load this lane's elements of the parts from `chunk` on into words[parts_at_once, dims_each]; all loads are issued at once."""
        for j in range(parts_at_once):
            slot = slot_of_part(first_slot, min(int32(chunk + j), int32(count - 1)))
            for i in range(vectors_each):
                dim = uint32(min(int32(VECTOR * (lane + 32 * i)), head_dim - VECTOR))
                at = j * dims_each + i * VECTOR
                found = load_128(parts.outs, uint32((slot * parts.outs.shape[1] + head) * head_dim + dim))
                words[at], words[at + 1], words[at + 2], words[at + 3] = found

    @cuda.jit(device=True)
    def merge_head(acc, words, parts, first_slot, count, head, scale, lane):
        """Merge the parts, parts_at_once at a time, one lane per part. Returns (maximum, sum); the output is in acc."""
        maximum, total = float32(MINUS_INFINITY), float32(0.0)
        for i in range(dims_each):
            acc[i] = float32(0.0)
        chunk = int32(0)
        while chunk < count:
            part_maximum, part_total = float32(MINUS_INFINITY), float32(0.0)
            if lane < parts_at_once and chunk + lane < count:
                slot = slot_of_part(first_slot, int32(chunk + lane))
                part_maximum = parts.maxima[slot, uint32(head)]
                part_total = parts.sums[slot, uint32(head)]
            load_parts(words, parts, first_slot, chunk, count, head, lane)
            largest = max(maximum, warp_max(part_maximum))
            shift = finite_or_zero(largest)
            correction = ex2((maximum - shift) * scale)
            weight = ex2((part_maximum - shift) * scale)  # 0 beyond the last part
            maximum = largest
            total = total * correction + weight * part_total
            for i in range(dims_each):
                acc[i] *= correction
            for j in range(parts_at_once):
                part_weight = cuda.shfl_sync(ALL_LANES, weight, j)
                for i in range(dims_each):
                    acc[i] += part_weight * uint_as_float(words[j * dims_each + i])
            chunk += parts_at_once
        return maximum, warp_sum(total)

    @cuda.jit(device=True)
    def merge_parts(parts, first_slot, count, out, lse, heads, scale):
        """Merge `count` parts of a head of the line, in order, one warp per query head, and write as write_whole does."""
        warp, lane = int32(cuda.threadIdx.x // 32), int32(cuda.threadIdx.x % 32)
        if cuda.threadIdx.x == 0:
            parts.arrivals[uint32(first_slot) // 2] = 0
        acc, words = cuda.local.array(dims_each, float32), cuda.local.array(word_count, uint32)
        head = int32(warp)
        while head < heads.left:
            maximum, total = merge_head(acc, words, parts, first_slot, count, head, scale, lane)
            if lse is not None:
                if lane == 0:
                    lse[uint32(heads.row), uint32(heads.first + head)] = log_sum_exp(maximum, total, scale)
            inverse = reciprocal_or_zero(total)
            for i in range(dims_each):
                dim = int32(VECTOR * (lane + 32 * (i // VECTOR)) + i % VECTOR)
                if dim < head_dim:
                    out[uint32(heads.row), uint32(heads.first + head), uint32(dim)] = acc[i] * inverse
            head += warps

    @cuda.jit(device=True)
    def finish_part(states, cursor, cut, line, parts, arrived, out, lse, heads, scale):
        """Write this block's part of a head to memory; the last block to do so merges all parts."""
        slot = uint32(2 * cuda.blockIdx.x + (0 if line == cut.line else 1))
        write_part(states, parts, slot, heads, scale)
        first_slot, count = plan.parts_of_head(cursor, cut, line)
        if arrive(parts, first_slot, arrived) == count - 1:
            merge_parts(parts, first_slot, count, out, lse, heads, scale)

    @cuda.jit(device=True)
    def write_zeros(out, lse, batch):
        """Write rows that see no keys: zeros, and log-sum-exp -inf. The sequences are distributed over the blocks."""
        sequence = uint32(cuda.blockIdx.x)
        while sequence < batch.context_lens.shape[0]:
            row = uint32(batch.query_start[sequence])
            _, stop = visible_keys(sequence, batch)
            if stop == 0 and batch.query_start[uint32(sequence + 1)] > row:
                for head in range(out.shape[1]):
                    if lse is not None:
                        if cuda.threadIdx.x == 0:
                            lse[row, uint32(head)] = float32(MINUS_INFINITY)
                    dim = uint32(cuda.threadIdx.x)
                    while dim < head_dim:
                        out[row, uint32(head), dim] = float32(0.0)
                        dim = uint32(dim + threads)
            sequence = uint32(sequence + cuda.gridDim.x)

    return write_whole, finish_part, write_zeros, synchronize
