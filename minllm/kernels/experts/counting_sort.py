"""Counting sort: the pairs of a token and an expert that it chose, in the order of experts.

Pair p = t k + i is the i-th choice of token t. `pairs` lists the pairs of expert 0, then those of expert 1, and so on, each expert's in
ascending order; `offsets` says where each expert begins. A GEMM then takes neighbouring pairs of one expert as rows of x.

Counting with atomics would be shorter, but the order of an expert's pairs would change from run to run. Here a block takes an expert, and
needs no other block: the pairs of lower experts, which it counts too, are the ones in front of its own.

    count    each warp counts, in its part of the pairs, those of lower experts and those of the block's own
    place    a warp's first place: all lower ones, and its expert's in the parts of the warps before; a ballot counts within the warp

P pairs, E experts: every block reads all of them twice, 8 E P bytes from L2, and writes 4 P + 4 E in all.

Source: Blelloch 1990, "Prefix Sums and Their Applications", section 1.3 (split and radix sort).
"""

import numpy as np
from numba import cuda, int32, uint32

from minllm.kernels.arguments import INDEX_DTYPES, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.runtime.kernel import kernel, launch
from minllm.tiles.warp import ALL_LANES, WARP, warp_sum

WARPS, MOST_WARPS, PAIRS_OF_FEW_WARPS = 8, 32, 2048  # more warps take longer to meet, and pay for prompts


def sort_by_expert_reference(expert_ids: np.ndarray, experts: int) -> tuple[np.ndarray, np.ndarray]:
    """(pairs int32 [T * k], offsets int32 [experts + 1]) of expert_ids [T, k]: a stable sort."""
    of_pair = expert_ids.reshape(-1)
    offsets = np.searchsorted(np.sort(of_pair), np.arange(experts + 1))
    return np.argsort(of_pair, kind="stable").astype(np.int32), offsets.astype(np.int32)


@kernel(dependent_launch=True)
def sort_by_expert_kernel(expert_ids, pairs, offsets):
    """expert_ids, pairs [P], offsets [E + 1]; a block per expert, of up to MOST_WARPS warps."""
    wait_for_predecessors()
    expert, lane, warp = int32(cuda.blockIdx.x), int32(cuda.threadIdx.x % WARP), int32(cuda.threadIdx.x // WARP)
    warps = int32(cuda.blockDim.x) // WARP
    each = int32((pairs.shape[0] + WARP * warps - 1) // (WARP * warps) * WARP)  # pairs per warp, a multiple of WARP
    begin = int32(warp * each)
    end = int32(min(begin + each, pairs.shape[0]))
    lower, same = int32(0), int32(0)
    for pair in range(begin + lane, end, WARP):
        other = expert_ids[pair]
        lower += other < expert
        same += other == expert
    counts = cuda.shared.array((2, MOST_WARPS), int32)
    lower, same = warp_sum(lower), warp_sum(same)
    if lane == 0:
        counts[0, warp], counts[1, warp] = lower, same
    cuda.syncthreads()
    first = int32(0)
    for other in range(warps):
        first += counts[0, other]
    if warp == 0 and lane == 0:
        offsets[expert] = first
        if expert == 0:
            offsets[offsets.shape[0] - 1] = pairs.shape[0]
    for other in range(warp):
        first += counts[1, other]
    # exercise: experts.sort
    for start in range(begin, end, WARP):
        pair = start + lane
        is_own = pair < end and expert_ids[pair] == expert
        own = uint32(cuda.ballot_sync(ALL_LANES, is_own))
        if is_own:
            pairs[first + cuda.popc(own & ((uint32(1) << uint32(lane)) - uint32(1)))] = pair
        first += cuda.popc(own)
    # end exercise


def sort_by_expert(expert_ids, pairs, offsets, stream=None) -> None:
    """Write the pairs of expert_ids [T, k] in the order of experts, and where each expert begins; see sort_by_expert_reference.

    pairs [T * k], offsets [experts + 1]. All are int32. Raises KernelArgumentError for anything else.
    """
    check_array("expert_ids", expert_ids, INDEX_DTYPES, tokens=None, chosen=None)
    check_array("pairs", pairs, INDEX_DTYPES, pairs=expert_ids.shape[0] * expert_ids.shape[1])
    check_array("offsets", offsets, INDEX_DTYPES, experts_and_end=None)
    warps = WARPS if pairs.shape[0] <= PAIRS_OF_FEW_WARPS else MOST_WARPS
    launch(sort_by_expert_kernel, offsets.shape[0] - 1, warps * WARP, (expert_ids.reshape(-1), pairs, offsets), stream)
