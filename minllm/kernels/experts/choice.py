"""The router's choice by one warp, within a kernel that needs it: the k experts with the largest logits of a token, and their weights.

A lane holds E / 32 neighbouring logits as keys in the order of their values. Each of k rounds takes the largest key of the warp by one
instruction (redux.sync) and gives it up; among equal ones the lowest expert is first. NaN counts as the smallest logit.

Source: PTX ISA, "redux.sync"; routing.py chooses for many tokens.
"""

import functools
import math

from numba import cuda, float32, int32, uint32

from minllm.kernels.arguments import ceil_div
from minllm.ptx import float_as_uint, redux_sync_max_u32
from minllm.tiles.warp import ALL_LANES, WARP, warp_sum

SIGN = 1 << 31


@cuda.jit(device=True)
def ordered(value):
    """The bits of a float32 as a uint32 above 0 that compares as the value does; NaN as -inf."""
    if value != value:
        value = float32(-math.inf)
    bits = float_as_uint(value + float32(0))  # -0 is 0
    return uint32(~bits) if bits & uint32(SIGN) else uint32(bits | uint32(SIGN))


@functools.cache
def make_choice(experts: int, chosen: int):
    """The device function for `chosen` of `experts` experts."""
    own = ceil_div(experts, WARP)

    @cuda.jit(device=True)
    def choose(logits, token, expert_ids, first, lane):
        """expert_ids[first : + k] = the experts of a row of logits [T, E], from the largest logit down; called by one whole warp."""
        keys = cuda.local.array(own, uint32)
        for i in range(own):
            expert = lane * own + i
            keys[i] = ordered(logits[token, expert]) if expert < experts else uint32(0)
        for rank in range(chosen):
            best, at = keys[0], int32(0)
            for i in range(1, own):
                if keys[i] > best:
                    best, at = keys[i], int32(i)
            largest = redux_sync_max_u32(best, uint32(ALL_LANES))
            winner = cuda.ffs(cuda.ballot_sync(ALL_LANES, best == largest)) - 1
            if lane == winner:
                expert_ids[first + rank] = lane * own + at
                for i in range(own):
                    if i == at:
                        keys[i] = uint32(0)
        cuda.syncwarp()

    return choose


@functools.cache
def make_weights(experts: int, chosen: int):
    """The device function for the weights of `chosen` of `experts` experts."""

    @cuda.jit(device=True)
    def weigh(logits, token, normalized, expert_ids, weights, first, lane):
        """weights[first : + k] = the softmax of the logits of expert_ids[first : + k], over them if normalized, or over all; by a warp."""
        largest, total = logits[token, expert_ids[first]], float32(0)
        if normalized:
            for rank in range(chosen):
                total += math.exp(logits[token, expert_ids[first + rank]] - largest)
        else:
            for expert in range(lane, experts, WARP):
                total += math.exp(logits[token, expert] - largest)
            total = warp_sum(total)
        if lane < chosen:
            weights[first + lane] = math.exp(logits[token, expert_ids[first + lane]] - largest) / total
        cuda.syncwarp()

    return weigh
