"""Routing: the k experts with the largest logits of each token, and their weights.

    w = exp(logit - largest) / sum of the same over the chosen experts, if normalized, or over all

A warp takes a token, and chooses as the kernels do that need a choice of their own (choice.py): k rounds, each of which finds the largest
key of the warp by one instruction. NaN counts as the smallest logit, so that every place has an expert.

T tokens of E experts: E / 32 + k rounds of E / 32 comparisons per lane; reads 4 T E bytes and writes 8 T k.

Source: see kernels/experts/reference.py.
"""

import functools

from numba import cuda, int32

from minllm.kernels.arguments import INDEX_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.experts.arguments import FLOAT32
from minllm.kernels.experts.choice import make_choice, make_weights
from minllm.runtime.kernel import check, kernel, launch
from minllm.tiles.warp import WARP

WARPS = 4  # of a block
MOST_EXPERTS = 1024  # a lane holds 32 keys


@functools.cache
def route_kernel(experts: int, chosen: int):
    """The kernel for `chosen` of `experts` experts per token."""
    choose, weigh = make_choice(experts, chosen), make_weights(experts, chosen)

    @kernel(launch_bounds=WARPS * WARP, dependent_launch=True)
    def route_kernel(logits, normalized, expert_ids, weights):
        """logits [T, E]; expert_ids, weights [T * k]; a warp per token."""
        wait_for_predecessors()
        lane, token = int32(cuda.threadIdx.x) % WARP, int32(cuda.blockIdx.x) * WARPS + int32(cuda.threadIdx.x) // WARP
        if token < logits.shape[0]:
            choose(logits, token, expert_ids, token * chosen, lane)
            weigh(logits, token, normalized, expert_ids, weights, token * chosen, lane)

    return route_kernel


def route(logits, expert_ids, weights, normalized: bool, stream=None) -> None:
    """Write the k experts with the largest logits of each token, and their weights; see route_reference.

    logits: float32 [T, E], up to 1,024 experts. expert_ids int32, weights float32 [T, k], with k at most E and 32. Raises
    KernelArgumentError for anything else.
    """
    check_array("logits", logits, FLOAT32, tokens=None, experts=None)
    tokens, experts = logits.shape
    check_array("expert_ids", expert_ids, INDEX_DTYPES, tokens=tokens, chosen=None)
    chosen, most = expert_ids.shape[1], min(experts, WARP)
    check_array("weights", weights, FLOAT32, tokens=tokens, chosen=chosen)
    check(experts <= MOST_EXPERTS, f"logits are of {experts} experts; a warp chooses among up to {MOST_EXPERTS}")
    check(1 <= chosen <= most, f"expert_ids has {chosen} columns: a token takes 1 to {most} experts")
    arguments = (logits, int(normalized), expert_ids.reshape(-1), weights.reshape(-1))
    launch(route_kernel(experts, chosen), ceil_div(tokens, WARPS), WARPS * WARP, arguments, stream)
