"""The longest right path of a tree of deterministic drafts: each draft is the sampler's choice after its parent.

Row j of a run computed node j of the tree (token_tree.py), f_j is its token, and t_j is the sampler's choice after it:

    right(0),   right(j) = right(parent(j)) and f_j = t_parent(j)           path: from the root to a right node of the largest depth
    new tokens: t of each node of the path

For greedy decoding the path is the text of decoding without drafts. For sampling, t is drawn from the model's own distribution, so the new
tokens have that distribution whatever was drafted, and are those of decoding without drafts with the same seed: each node is a step of
accept.py with several guesses. Algorithm 4 of Fu et al., "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding", 2024,
accepts deterministic guesses with the same probability. Siblings may have the same token: the deepest path counts.

Bytes: 8 per row. Threads to data: one thread per run, which visits its nodes in order: parents come before children.
"""

import numpy as np
from numba import cuda, int32

from minllm.kernels.arguments import INDEX_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.speculation.runs import begins_run, run_length, runs_of
from minllm.kernels.speculation.token_tree import TreeArrays
from minllm.runtime.array_protocol import Array
from minllm.runtime.kernel import kernel, launch

THREADS = 128


def accept_tree_reference(
    chosen: np.ndarray, computed: np.ndarray, slots: np.ndarray, parents: Array
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(new tokens of each run in its first rows, the row that yielded each, their number in the run's first row), all int32 [R].

    chosen, slots int32 [R]: as in accept.py; computed int32 [T]; parents int32 [nodes]. Other rows get their chosen token, their own index
    and 0.
    """
    tokens, path, counts = chosen.copy(), np.arange(len(slots), dtype=np.int32), np.zeros(len(slots), np.int32)
    for first, length in runs_of(slots):
        paths = {0: [0]}  # right node -> the nodes from the root to it
        for node in range(1, length):
            parent = parents[node]
            if parent in paths and computed[first + node] == chosen[first + parent]:
                paths[node] = [*paths[parent], node]
        longest = max(paths.values(), key=len)  # the first, if several have this length
        path[first : first + len(longest)] = first + np.array(longest)
        tokens[first : first + len(longest)] = chosen[first + np.array(longest)]
        counts[first] = len(longest)
    return tokens, path, counts


@kernel(dependent_launch=True)
def accept_tree_kernel(chosen, computed, slots, parents, depths, tokens, path, counts):
    """chosen, slots, tokens, path, counts int32 [R]; computed int32 [T]; parents, depths int32 [nodes]."""
    wait_for_predecessors()
    row = int32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
    if row >= slots.shape[0]:
        return
    counts[row] = 0
    if slots[row] < 0:
        tokens[row], path[row] = chosen[row], row
    if begins_run(slots, row):
        length, best = run_length(slots, row), int32(0)
        path[row] = row
        for node in range(int32(1), length):  # path temporarily marks nodes: the row itself if right, -1 if wrong
            parent = parents[node]
            is_right = path[row + parent] >= 0 and computed[row + node] == chosen[row + parent]
            path[row + node] = row + node if is_right else -1
            if is_right and depths[node] > depths[best]:
                best = int32(node)
        for node in range(length):
            tokens[row + node], path[row + node] = chosen[row + node], row + node
        counts[row] = depths[best] + 1
        while best > 0:
            place = row + depths[best]
            tokens[place], path[place] = chosen[row + best], row + best
            best = parents[best]


def accept_tree(chosen, computed, slots, tree: TreeArrays, tokens, path, counts, stream=None) -> None:
    """Write the results of `accept_tree_reference` to tokens, path and counts; all arrays NumPy or all on one device."""
    rows = slots.shape[0]
    check_array("computed", computed, INDEX_DTYPES, tokens=None)
    for name, array in (("chosen", chosen), ("slots", slots), ("tokens", tokens), ("path", path), ("counts", counts)):
        check_array(name, array, INDEX_DTYPES, rows=rows)
    arguments = (chosen, computed, slots, tree.parents, tree.depths, tokens, path, counts)
    launch(accept_tree_kernel, ceil_div(rows, THREADS), THREADS, arguments, stream)
