"""Putting attention states together in one launch: those of a block's warps, and those of the blocks that share a head.

A block that has taken all keys of a head writes the output. One that has taken a part leaves its state in memory and counts itself in;
the last of the head's blocks to arrive merges all parts, in the order of the keys, so that the result is the same bit by bit whichever
block that is. It sets the count back to zero for the next launch.

    M = max_s m_s          out = sum_s exp(m_s - M) o_s / sum_s exp(m_s - M) l_s          (online_softmax.py, for any number of states)

FLOPs: 2 * head_dim a state and head. Bytes: 4 * (head_dim + 2) a state and head, written and read once.
"""

import functools
import math

from numba import cuda, float32, int32, uint32

from minllm.kernels.attention.common.online_softmax import finite_or_zero, log_sum_exp, reciprocal_or_zero
from minllm.kernels.attention.split_tensor_core.plan import quotient, visible_keys
from minllm.kernels.reduction import warp_sum
from minllm.kernels.vector import load_4_float32, store_4_float32
from minllm.kernels.warp import ALL_LANES
from minllm.ptx import ex2

MINUS_INFINITY = -math.inf
DIMS_AT_ONCE = 4  # of a thread: 16 bytes of float32
PART_NAMES = ("part_max", "part_sum", "part_out", "arrivals")  # in the order of the kernels' arguments


def part_shapes(blocks, heads, head_dim):
    """The workspace of `blocks` blocks that merge parts: name -> (shape, dtype), two places a block, and a count of arrivals."""
    shapes = ((2 * blocks, heads), (2 * blocks, heads), (2 * blocks, heads, head_dim), (blocks,))
    return dict(zip(PART_NAMES, zip(shapes, ("float32", "float32", "float32", "int32"), strict=True), strict=True))


@cuda.jit(device=True)
def sum_over_rows(value):
    """The sum of a column's values over the eight rows of lanes."""
    value += cuda.shfl_xor_sync(ALL_LANES, value, 4)
    value += cuda.shfl_xor_sync(ALL_LANES, value, 8)
    return value + cuda.shfl_xor_sync(ALL_LANES, value, 16)


@cuda.jit(device=True)
def warp_max(value):
    """The largest `value` of the warp's lanes, in every lane."""
    for distance in (16, 8, 4, 2, 1):
        value = max(value, cuda.shfl_xor_sync(ALL_LANES, value, distance))
    return value


@cuda.jit(device=True)
def place_of_part(first_place, part):
    """Where a part of a head lies: each block has two places, its run's first head in the even one, its last, if another, in the odd."""
    return uint32(first_place if part == 0 else (uint32(first_place) // 2 + part) * 2)


def pitch_of(head_dim):
    """float32 from one head's output to the next in shared memory: lanes of four heads and eight dims fall into different banks."""
    return -(-head_dim // 32) * 32 + 4


@functools.cache
def make_warp_merge(warps):
    """The device function merge_warps for a block of `warps` warps."""

    @cuda.jit(device=True)
    def merge_warps(shared_states, head, dim, scale, results):
        """(maximum, sum) of the block's state of one head; results: DIMS_AT_ONCE numbers of its output from `dim` on."""
        warp_max, warp_sum, warp_out = shared_states
        maximum = float32(MINUS_INFINITY)
        for w in range(warps):
            maximum = max(maximum, warp_max[w, head])
        shift = finite_or_zero(maximum)
        total = float32(0.0)
        for j in range(DIMS_AT_ONCE):
            results[j] = float32(0.0)
        for w in range(warps):
            weight = ex2((warp_max[w, head] - shift) * scale)
            total += weight * warp_sum[w, head]
            for j in range(DIMS_AT_ONCE):
                results[j] += weight * warp_out[w, head, uint32(dim + j)]
        return maximum, total

    return merge_warps


@functools.cache
def make_write_zeros(head_dim, threads):
    """The device function write_zeros(out, lse, batch) for blocks of `threads` threads."""

    @cuda.jit(device=True)
    def write_zeros(out, lse, batch):
        """Rows that see no keys: zeros, and log-sum-exp -inf; the blocks take a sequence each in turn."""
        query_start, context_lens = batch[0], batch[1]
        sequence = uint32(cuda.blockIdx.x)
        while sequence < context_lens.shape[0]:
            row = uint32(query_start[sequence])
            _, stop = visible_keys(sequence, batch)
            if stop == 0 and query_start[uint32(sequence + 1)] > row:
                for head in range(out.shape[1]):
                    if lse is not None:
                        if cuda.threadIdx.x == 0:
                            lse[row, uint32(head)] = float32(MINUS_INFINITY)
                    dim = uint32(cuda.threadIdx.x)
                    while dim < head_dim:
                        out[row, uint32(head), dim] = float32(0.0)
                        dim = uint32(dim + threads)
            sequence = uint32(sequence + cuda.gridDim.x)

    return write_zeros


@functools.cache
def make_merges(head_dim, heads, warps, synchronize=cuda.syncthreads):
    """(share_states, write_whole, write_part, arrive, merge_parts) for up to `heads` query heads a block, a multiple of 8.

    warps: those that merge; synchronize: their barrier, where a block has others too.
    """
    threads = 32 * warps
    steps, columns = -(-head_dim // 16), heads // 8
    vectors_each = -(-head_dim // (32 * DIMS_AT_ONCE))  # of a lane
    dims_each = DIMS_AT_ONCE * vectors_each
    parts_at_once = 16 // vectors_each  # parts of a head whose loads are in flight together
    buffer_count = parts_at_once * dims_each
    merge_warps = make_warp_merge(warps)

    @cuda.jit(device=True)
    def share_states(maxima, sums, acc, shared_states, heads_left):
        """Write this warp's state to shared memory: [warps, heads] twice, and [warps, heads, head_dim]."""
        warp_max, warp_sum, warp_out = shared_states
        warp, lane = int32(cuda.threadIdx.x // 32), int32(cuda.threadIdx.x % 32)
        for column in range(columns):
            for i in range(2):
                head = int32(8 * column + lane % 4 * 2 + i)
                total = sum_over_rows(sums[2 * column + i])
                if head < heads_left:
                    if lane < 4:
                        warp_max[uint32(warp), uint32(head)] = maxima[2 * column + i]
                        warp_sum[uint32(warp), uint32(head)] = total
                    for step in range(steps):
                        for half in range(2):
                            dim = int32(16 * step + 8 * half + lane // 4)
                            if dim < head_dim:
                                warp_out[uint32(warp), uint32(head), uint32(dim)] = acc[4 * (step * columns + column) + 2 * half + i]

    @cuda.jit(device=True)
    def write_whole(shared_states, out, lse, row, first_head, heads_left, scale):
        """The output of a head whose keys this block has taken alone, and its log-sum-exp where lse is not None."""
        results = cuda.local.array(DIMS_AT_ONCE, float32)
        i = int32(cuda.threadIdx.x * DIMS_AT_ONCE)
        while i < heads_left * head_dim:
            head = uint32(quotient(i, head_dim))
            dim = uint32(i - head * head_dim)
            maximum, total = merge_warps(shared_states, head, dim, scale, results)
            if lse is not None:
                if dim == 0:
                    lse[uint32(row), uint32(first_head + head)] = log_sum_exp(maximum, total, scale)
            inverse = reciprocal_or_zero(total)
            for j in range(DIMS_AT_ONCE):
                out[uint32(row), uint32(first_head + head), uint32(dim + j)] = results[j] * inverse
            i = int32(i + threads * DIMS_AT_ONCE)

    @cuda.jit(device=True)
    def write_part(shared_states, parts_in_memory, place, heads_left, scale):
        """The block's state of a head that it shares with other blocks."""
        part_max, part_sum, part_out, _ = parts_in_memory
        results = cuda.local.array(DIMS_AT_ONCE, float32)
        i = int32(cuda.threadIdx.x * DIMS_AT_ONCE)
        while i < heads_left * head_dim:
            head = uint32(quotient(i, head_dim))
            dim = uint32(i - head * head_dim)
            maximum, total = merge_warps(shared_states, head, dim, scale, results)
            store_4_float32(part_out, uint32((place * part_out.shape[1] + head) * head_dim + dim), results, 0)
            if dim == 0:
                part_max[place, head] = maximum
                part_sum[place, head] = total
            i = int32(i + threads * DIMS_AT_ONCE)

    @cuda.jit(device=True)
    def arrive(parts_in_memory, first_place, arrived):
        """Count this block in at the head whose first part lies at first_place; tells all threads how many blocks came before."""
        arrivals = parts_in_memory[3]
        synchronize()
        if cuda.threadIdx.x == 0:
            cuda.threadfence()  # what this block has written is seen before its arrival
            arrived[0] = cuda.atomic.add(arrivals, uint32(first_place) // 2, 1)
            cuda.threadfence()  # and what the others have written, after theirs
        synchronize()
        return arrived[0]

    @cuda.jit(device=True)
    def merge_parts(parts_in_memory, first_place, parts, out, lse, row, first_head, heads_left, scale):
        """Merge `parts` states, in this order, of every head and write the output, and lse as write_whole does: a warp a head. The first
        lies at first_place. The count of arrivals is zero again afterwards."""
        part_max, part_sum, part_out, arrivals = parts_in_memory
        warp, lane = int32(cuda.threadIdx.x // 32), int32(cuda.threadIdx.x % 32)
        if cuda.threadIdx.x == 0:
            arrivals[uint32(first_place) // 2] = 0
        acc = cuda.local.array(dims_each, float32)
        numbers = cuda.local.array(buffer_count, float32)
        head = int32(warp)
        while head < heads_left:
            maximum, total = float32(MINUS_INFINITY), float32(0.0)
            for i in range(dims_each):
                acc[i] = float32(0.0)
            chunk = int32(0)
            while chunk < parts:  # online softmax over parts_at_once parts at a time, whose loads are all issued at once
                part_maximum, part_total = float32(MINUS_INFINITY), float32(0.0)
                if lane < parts_at_once and chunk + lane < parts:  # a lane a part
                    place = place_of_part(first_place, int32(chunk + lane))
                    part_maximum = part_max[place, uint32(head)]
                    part_total = part_sum[place, uint32(head)]
                for j in range(parts_at_once):
                    place = place_of_part(first_place, min(int32(chunk + j), int32(parts - 1)))
                    for i in range(vectors_each):
                        dim = uint32(min(int32(DIMS_AT_ONCE * (lane + 32 * i)), head_dim - DIMS_AT_ONCE))
                        index = uint32((place * part_out.shape[1] + head) * head_dim + dim)
                        load_4_float32(part_out, index, numbers, j * dims_each + i * DIMS_AT_ONCE)
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
                        acc[i] += part_weight * numbers[j * dims_each + i]
                chunk += parts_at_once
            total = warp_sum(total)
            if lse is not None:
                if lane == 0:
                    lse[uint32(row), uint32(first_head + head)] = log_sum_exp(maximum, total, scale)
            inverse = reciprocal_or_zero(total)
            for i in range(dims_each):
                dim = int32(DIMS_AT_ONCE * (lane + 32 * (i // DIMS_AT_ONCE)) + i % DIMS_AT_ONCE)
                if dim < head_dim:
                    out[uint32(row), uint32(first_head + head), uint32(dim)] = acc[i] * inverse
            head += warps

    return share_states, write_whole, write_part, arrive, merge_parts
