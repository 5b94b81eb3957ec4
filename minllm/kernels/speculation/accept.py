"""The number of new tokens of each run: the drafts before the first mismatch, and one more.

The rows of a run computed the tokens f_0, f_1 .. f_k, the newest token and k drafts; t_i is the sampler's choice after row i. Draft i is
right if it equals the sampler's choice after the row before it:

    a = the largest a with f_i = t_(i-1) for all i ≤ a,            new tokens: t_0 .. t_a

For greedy decoding this is acceptance by first mismatch. For sampling it is the rule of Leviathan, Kalman, Matias, "Fast Inference from
Transformers via Speculative Decoding", ICML 2023, for a deterministic source of drafts, q(f) = 1: f is accepted with probability
min(1, p(f) / q(f)) = p(f), else the token comes from p without f, renormalised, which is the distribution of t given t ≠ f. Since t_i is a
function of the logits, the seed and the step, the text is that of decoding without drafts, token for token. Drafts that were drawn from a
distribution are accepted by rejection.py.

Bytes: 12 per row. Threads to data: one thread per row.
"""

import numpy as np
from numba import cuda, int32

from minllm.kernels.arguments import INDEX_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.speculation.runs import begins_run, run_length, runs_of
from minllm.runtime.kernel import kernel, launch

THREADS = 128


def accept_reference(chosen: np.ndarray, computed: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """The number of new tokens of each run, in its first row, and 0 in other rows: int32 [R].

    chosen: the sampler's token after each row; slots: the slot of each row; both int32 [R]. computed: the token that each row computed,
    int32 [T]; the rows of runs of several rows come first.
    """
    counts = np.zeros(len(slots), np.int32)
    for first, length in runs_of(slots):
        is_right = computed[first + 1 : first + length] == chosen[first : first + length - 1]
        counts[first] = 1 + np.cumprod(is_right).sum()
    return counts


@kernel(dependent_launch=True)
def accept_kernel(chosen, computed, slots, counts):
    """chosen, slots, counts int32 [R]; computed int32 [T]."""
    wait_for_predecessors()
    row = int32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
    # exercise: speculation.accept
    if row < slots.shape[0]:
        count = int32(0)
        if begins_run(slots, row):
            length = run_length(slots, row)
            count = int32(1)
            while count < length and computed[row + count] == chosen[row + count - 1]:
                count += int32(1)
        counts[row] = count
    # end exercise


def accept(chosen, computed, slots, counts, stream=None) -> None:
    """Write the result of `accept_reference` to `counts`; all arrays NumPy or all on one device."""
    rows = slots.shape[0]
    check_array("computed", computed, INDEX_DTYPES, tokens=None)
    for name, array in (("chosen", chosen), ("slots", slots), ("counts", counts)):
        check_array(name, array, INDEX_DTYPES, rows=rows)
    launch(accept_kernel, ceil_div(rows, THREADS), THREADS, (chosen, computed, slots, counts), stream)
