"""The router's choice and the counting sort of a few tokens in one kernel, where each would take as long as its launch.

    w = softmax of the k largest logits of a token        as route writes them
    pairs, offsets                                         as sort_by_expert writes them, from the same choice

A block takes an expert. Its warps choose the experts of all tokens, each warp of some (choice.py), into shared memory; then one warp
counts the pairs of lower experts and lists those of its own. All blocks make the same choices: no block waits for another, and no atomics
decide an order. The weights of token t are written by block t modulo E.

T tokens, E experts: E T choices; reads 4 T E bytes per block, from L2, and writes 8 T k + 4 E.

Sources: kernels/experts/routing.py, kernels/experts/counting_sort.py.
"""

import functools

import numpy as np
from numba import cuda, int32, uint32

from minllm.kernels.arguments import INDEX_DTYPES, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.experts.arguments import FLOAT32, check_choice
from minllm.kernels.experts.choice import make_choice, make_weights
from minllm.kernels.experts.counting_sort import sort_by_expert_reference
from minllm.kernels.experts.reference import route_reference
from minllm.runtime.kernel import check, kernel, launch
from minllm.tiles.warp import ALL_LANES, WARP, warp_sum

MOST_TOKENS, MOST_WARPS = 64, 32


def sort_by_choice_reference(logits: np.ndarray, per_token: int, normalized: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(weights float32 [T, k], pairs int32 [T * k], offsets int32 [E + 1]) of logits [T, E]."""
    expert_ids, weights = route_reference(logits, per_token, normalized)
    return weights, *sort_by_expert_reference(expert_ids, logits.shape[1])


@functools.cache
def sort_by_choice_kernel(experts: int, chosen: int):
    """The kernel for `chosen` of `experts` experts per token."""
    choose, weigh, most_pairs = make_choice(experts, chosen), make_weights(experts, chosen), MOST_TOKENS * chosen

    @kernel(launch_bounds=MOST_WARPS * WARP, dependent_launch=True)
    def sort_by_choice_kernel(logits, normalized, weights, pairs, offsets):
        """logits [T, E], weights, pairs [T * k], offsets [E + 1]; a block per expert, with warps for the tokens."""
        wait_for_predecessors()
        expert, lane, warp = int32(cuda.blockIdx.x), int32(cuda.threadIdx.x) % WARP, int32(cuda.threadIdx.x) // WARP
        expert_ids, count = cuda.shared.array(most_pairs, int32), int32(pairs.shape[0])
        for token in range(warp, int32(logits.shape[0]), int32(cuda.blockDim.x) // WARP):
            choose(logits, token, expert_ids, token * chosen, lane)
            if token % experts == expert:
                weigh(logits, token, normalized, expert_ids, weights, token * chosen, lane)
        cuda.syncthreads()
        if warp > 0:
            return
        lower = int32(0)
        for pair in range(lane, count, WARP):
            lower += expert_ids[pair] < expert
        first = warp_sum(lower)
        if lane == 0:
            offsets[expert] = first
            if expert == 0:
                offsets[experts] = count
        for start in range(0, count, WARP):
            pair = start + lane
            is_own = pair < count and expert_ids[pair] == expert
            own = uint32(cuda.ballot_sync(ALL_LANES, is_own))
            if is_own:
                pairs[first + cuda.popc(own & ((uint32(1) << uint32(lane)) - uint32(1)))] = pair
            first += cuda.popc(own)

    return sort_by_choice_kernel


def sort_by_choice(logits, weights, pairs, offsets, normalized: bool, stream=None) -> None:
    """Write the weights of each token's k experts with the largest logits, and their pairs in the order of experts.

    logits float32 [T, E] of up to MOST_TOKENS tokens; weights float32 [T, k], pairs int32 [T * k], offsets int32 [E + 1]. Raises
    KernelArgumentError for anything else.
    """
    check_array("weights", weights, FLOAT32, tokens=None, chosen=None)
    tokens, experts, chosen = check_choice(logits, weights.shape[0], weights.shape[0] * weights.shape[1])
    check(tokens <= MOST_TOKENS, f"logits are of {tokens} tokens; a block chooses for up to {MOST_TOKENS}: take route and sort_by_expert")
    check_array("pairs", pairs, INDEX_DTYPES, pairs=tokens * chosen)
    check_array("offsets", offsets, INDEX_DTYPES, experts_and_end=experts + 1)
    block = min(tokens, MOST_WARPS) * WARP
    launch(sort_by_choice_kernel(experts, chosen), experts, block, (logits, int(normalized), weights.reshape(-1), pairs, offsets), stream)
