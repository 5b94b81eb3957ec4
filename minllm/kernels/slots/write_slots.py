"""Writes any words of the slots' state in one launch.

    state[pairs[i, 0]] = pairs[i, 1]           for all i with pairs[i, 0] >= 0

A sequence that enters a slot needs about twenty words and its block table; a sequence that grows into a new cache block needs one.
No index may occur twice. Bytes: 12 per pair. Threads to data: one thread per pair.
"""

import numpy as np
from numba import cuda, int32

from minllm.kernels.arguments import INDEX_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.runtime.array_protocol import Array
from minllm.runtime.kernel import kernel, launch

THREADS = 128


def write_slots_reference(state: Array, pairs: np.ndarray) -> None:
    """Write the words to state, int32 [words], in place; pairs int32 [n, 2]: index, word. A negative index is skipped."""
    pairs = pairs[pairs[:, 0] >= 0]
    state[pairs[:, 0]] = pairs[:, 1]


@kernel(dependent_launch=True)
def write_slots_kernel(state, pairs):
    """state int32 [words]; pairs int32 [n, 2]."""
    wait_for_predecessors()
    i = int32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
    if i < pairs.shape[0]:
        index = pairs[i, 0]
        if index >= 0:
            state[index] = pairs[i, 1]


def write_slots(state, pairs, stream=None) -> None:
    """Write the words to state, in place; arguments as in `write_slots_reference`, both NumPy or both on one device."""
    check_array("state", state, INDEX_DTYPES, words=None)
    check_array("pairs", pairs, INDEX_DTYPES, n=None, two=2)
    if pairs.shape[0]:
        launch(write_slots_kernel, ceil_div(pairs.shape[0], THREADS), THREADS, (state, pairs), stream)
