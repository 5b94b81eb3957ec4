"""Routing: the k experts with the largest logits of each token, and their weights.

    w = exp(logit - largest) / sum of the same over the chosen experts, if normalized, or over all

A block takes a token, a thread an expert. The rank of an expert is the number of experts with a larger logit, or with the same logit and a
lower id: ranks are all different, and the k experts of lowest rank are the chosen ones, in order. That takes E comparisons per thread, and
neither sorting nor a reduction. NaN counts as the smallest logit, so that every rank below k has an expert.

T tokens: E^2 T comparisons; reads 4 T E bytes and writes 8 T k. Threads read logits of other experts from shared memory, all the same one
at a time.

Source: see kernels/experts/reference.py.
"""

import math

import numpy as np
from numba import cuda, float32, int32

from minllm.kernels.arguments import INDEX_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.runtime.kernel import check, kernel, launch
from minllm.tiles.warp import WARP

MOST_EXPERTS = 1024  # threads of a block
FLOAT32 = (np.dtype(np.float32),)


@kernel(dependent_launch=True)
def route_kernel(logits, normalized, expert_ids, weights):
    """logits [T, E]; expert_ids, weights [T, k]. A block per token, E threads rounded up to whole warps."""
    wait_for_predecessors()
    token, expert = cuda.blockIdx.x, int32(cuda.threadIdx.x)
    experts, chosen = int32(logits.shape[1]), int32(expert_ids.shape[1])
    of_token = cuda.shared.array(MOST_EXPERTS, float32)
    in_order = cuda.shared.array(MOST_EXPERTS, float32)  # exponentials, by rank
    own = float32(0)
    if expert < experts:
        own = logits[token, expert]
        of_token[expert] = own if own == own else float32(-math.inf)
    cuda.syncthreads()
    rank = int32(0)
    if expert < experts:
        key, largest = of_token[expert], float32(-math.inf)
        for other in range(experts):
            rank += (of_token[other] > key) | ((of_token[other] == key) & (other < expert))
            largest = max(largest, of_token[other])
        own = math.exp(own - largest)
        in_order[rank] = own
    cuda.syncthreads()
    if expert < experts and rank < chosen:
        total = float32(0)
        for other in range(chosen if normalized else experts):
            total += in_order[other]
        expert_ids[token, rank] = expert
        weights[token, rank] = own / total


def route(logits, expert_ids, weights, normalized: bool, stream=None) -> None:
    """Write the k experts with the largest logits of each token, and their weights; see route_reference.

    logits: float32 [T, E], up to 1,024 experts. expert_ids int32, weights float32 [T, k], with k at most E. Raises KernelArgumentError
    for anything else.
    """
    check_array("logits", logits, FLOAT32, tokens=None, experts=None)
    tokens, experts = logits.shape
    check_array("expert_ids", expert_ids, INDEX_DTYPES, tokens=tokens, chosen=None)
    check_array("weights", weights, FLOAT32, tokens=tokens, chosen=expert_ids.shape[1])
    check(experts <= MOST_EXPERTS, f"logits are of {experts} experts; a block routes among up to {MOST_EXPERTS}")
    check(1 <= expert_ids.shape[1] <= experts, f"expert_ids has {expert_ids.shape[1]} columns: a token takes 1 to {experts} experts")
    threads = ceil_div(experts, WARP) * WARP
    launch(route_kernel, tokens, threads, (logits, int(normalized), expert_ids, weights), stream)
