"""Radix selection: the k-th largest logit of a row, or the logit at which probability reaches p, without sorting.

A float's bits, with the sign folded in, order like the float. A histogram of their first 11 bits gives the bin of the k-th largest; a
histogram of the next 11 bits of that bin's members narrows it down; the last 10 bits identify it. Counting exp((x_v - max x) / T)
instead of 1 makes the same search find where the probability reaches a share p. These weights are integers, in units of 2^-31 of the
largest, so sums do not depend on the order of additions: every run and every processor finds the same set.

Threads to data: one block of 1,024 threads per row, histograms in shared memory. A bin is two 32-bit words, because shared memory has
native 32-bit atomic adds: if an addition overflows the low word, its thread adds one to the high word.
"""

import math

import numpy as np
from numba import cuda, float32, float64, int32, int64, uint32

from minllm.kernels.sampling.argmax import load_quad
from minllm.ptx import float_as_uint, uint_as_float
from minllm.tiles.warp import ALL_LANES, WARP

THREADS = 1024
WARPS = THREADS // WARP
BINS = 2048
GROUP = WARP  # bins that a warp sums at a time
GROUPS = BINS // GROUP
UNIT = 2.0**31  # the weight of the most probable token
LOADS = 4  # 128-bit loads in flight per thread
VALUES = 4 * LOADS
BATCH = THREADS * VALUES  # tokens that the block reads at a time


@cuda.jit(device=True)
def ordered(x):
    """A uint32 that orders like the float32 x."""
    bits = float_as_uint(x)
    if bits >> uint32(31):
        return bits ^ uint32(0xFFFFFFFF)
    return bits ^ uint32(0x80000000)


@cuda.jit(device=True)
def ordered_inverse(key):
    """The inverse of `ordered`: the float32 for a key."""
    if key >> uint32(31):
        return uint_as_float(key ^ uint32(0x80000000))
    return uint_as_float(key ^ uint32(0xFFFFFFFF))


@cuda.jit(device=True)
def load_batch(logits, row, batch, x):
    """Fill x[0:16] with this thread's logits of the batch: four 128-bit loads, all in flight at once; NaN beyond the end of the row."""
    for load in range(LOADS):
        token = int32(batch * BATCH + load * (THREADS * 4) + cuda.threadIdx.x * 4)
        x[4 * load], x[4 * load + 1], x[4 * load + 2], x[4 * load + 3] = load_quad(logits, row, token)


@cuda.jit(device=True)
def block_maximum(logits, row, warp_values):
    """max over logits[row, :], float32, in every thread; NaN is ignored."""
    x = cuda.local.array(VALUES, float32)
    peak = float32(-np.inf)
    batch = int32(0)
    while batch * BATCH < logits.shape[1]:
        load_batch(logits, row, batch, x)
        for i in range(VALUES):
            if x[i] > peak:
                peak = x[i]
        batch += 1
    for offset in (16, 8, 4, 2, 1):
        peak = max(peak, cuda.shfl_xor_sync(ALL_LANES, peak, offset))
    if cuda.threadIdx.x & 31 == 0:
        warp_values[cuda.threadIdx.x >> 5] = peak
    cuda.syncthreads()
    for warp in range(WARPS):
        peak = max(peak, warp_values[warp])
    return peak


@cuda.jit(device=True)
def token_weight(x, peak, temperature, weighted):
    """A token's weight in the histograms, uint32: 1, or its probability relative to the largest in units of 2^-31."""
    weight = uint32(1)
    if weighted:
        scaled = float32(0.0)
        if x != peak:
            scaled = (x - peak) / temperature
        weight = uint32(int64(math.exp(scaled) * float32(UNIT)))
    return weight


@cuda.jit(device=True)
def fill_histogram(logits, row, floor, prefix, shift, bits, peak, temperature, weighted, low, high):
    """Add the weights of the row's tokens with key >= floor and key >> (shift + bits) == prefix to the bins of their next `bits` bits."""
    thread = int32(cuda.threadIdx.x)
    while thread < BINS:
        low[thread] = uint32(0)
        high[thread] = uint32(0)
        thread += THREADS
    cuda.syncthreads()
    x = cuda.local.array(VALUES, float32)
    batch = int32(0)
    while batch * BATCH < logits.shape[1]:
        load_batch(logits, row, batch, x)
        for i in range(VALUES):
            digits = ordered(x[i]) >> shift
            if x[i] == x[i] and ordered(x[i]) >= floor and digits >> bits == prefix:
                weight = token_weight(x[i], peak, temperature, weighted)
                if weight > uint32(0):
                    digit = int32(digits & uint32((uint32(1) << bits) - uint32(1)))
                    before = cuda.atomic.add(low, digit, weight)
                    if int64(before) + int64(weight) > int64(0xFFFFFFFF):
                        cuda.atomic.add(high, digit, uint32(1))
        batch += 1
    cuda.syncthreads()


@cuda.jit(device=True)
def bin_sum(low, high, digit):
    """One bin's sum, int64."""
    return (int64(high[digit]) << int64(32)) + int64(low[digit])


@cuda.jit(device=True)
def sum_groups(low, high, group_sums):
    """Sum each group of 32 neighbouring bins, int64 [GROUPS]; returns the total to every thread."""
    thread = int32(cuda.threadIdx.x)
    group = thread >> 5
    while group < GROUPS:
        total = bin_sum(low, high, group * GROUP + (thread & 31))
        for offset in (16, 8, 4, 2, 1):
            total += cuda.shfl_xor_sync(ALL_LANES, total, offset)
        if thread & 31 == 0:
            group_sums[group] = total
        group += WARPS
    cuda.syncthreads()
    total = int64(0)
    for i in range(GROUPS):
        total += group_sums[i]
    return total


@cuda.jit(device=True)
def find_bin(low, high, group_sums, target, found):
    """found[0]: the bin, counted down from the highest, at which the running sum reaches target; found[1]: the sum above that bin."""
    if cuda.threadIdx.x == 0:
        above = int64(0)
        group = int32(GROUPS - 1)
        while group > 0 and above + group_sums[group] < target:
            above += group_sums[group]
            group -= 1
        digit = group * GROUP + GROUP - 1
        while digit > group * GROUP and above + bin_sum(low, high, digit) < target:
            above += bin_sum(low, high, digit)
            digit -= 1
        found[0] = digit
        found[1] = above
    cuda.syncthreads()


@cuda.jit(device=True)
def select_key(logits, row, floor, peak, temperature, weighted, target, share, low, high, group_sums, found):
    """The largest key such that the tokens with at least that key (and at least floor) weigh target in total.

    target 0 means `share` of the total weight.
    """
    prefix = uint32(0)
    for level in range(3):
        shift = uint32(max(0, 21 - 11 * level))
        bits = uint32(11 - level // 2)
        fill_histogram(logits, row, floor, prefix, shift, bits, peak, temperature, weighted, low, high)
        total = sum_groups(low, high, group_sums)
        if target == 0:
            target = max(int64(1), int64(math.ceil(float64(share) * float64(total))))
        find_bin(low, high, group_sums, min(target, total), found)
        prefix = uint32((prefix << bits) | uint32(found[0]))
        target -= found[1]
        cuda.syncthreads()
    return prefix
