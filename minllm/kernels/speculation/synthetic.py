"""Acceptance at random, for benchmarks: each draft is accepted with a given probability if those before it are.

The speed of speculation depends on the model's shape and on the number of accepted drafts, and random weights seldom accept any. So
benchmarks accept at random, and measure the speed at a given acceptance rate. The text of such a run is meaningless.

    a = the number of drafts before the first with u_i ≥ rate,            new tokens: a + 1

u_i is the uniform number by which drawn drafts are accepted (rejection.py), so runs with the same seeds accept the same drafts. Bytes: 12
per row. Threads to data: one thread per row.
"""

import numpy as np
from numba import cuda, int32

from minllm.kernels.arguments import INDEX_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.sampling.tensors import SamplingTensors
from minllm.kernels.speculation.rejection import ACCEPTANCE, acceptance_uniform, random_words, uniform_of
from minllm.kernels.speculation.runs import begins_run, run_length, runs_of
from minllm.runtime.kernel import kernel, launch

THREADS = 128


def accept_synthetic_reference(slots: np.ndarray, sampling: SamplingTensors, rate: float) -> np.ndarray:
    """The number of new tokens of each run, in its first row, and 0 in other rows: int32 [R]; slots int32 [R]."""
    counts = np.zeros(len(slots), np.int32)
    for first, length in runs_of(slots):
        slot, drafts = slots[first], np.arange(length - 1)
        words = random_words(sampling.seed[slot], np.zeros_like(drafts), int(sampling.step[slot]) + drafts, ACCEPTANCE)
        counts[first] = 1 + np.cumprod(uniform_of(words)[:, 0] < np.float32(rate)).sum()
    return counts


@kernel(dependent_launch=True)
def accept_synthetic_kernel(slots, step, seed, rate, counts):
    """slots, counts int32 [R]; step int32 [S], seed uint32 [S, 2]."""
    wait_for_predecessors()
    row = int32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
    if row < slots.shape[0]:
        count = int32(0)
        if begins_run(slots, row):
            slot, length = slots[row], run_length(slots, row)
            count = int32(1)
            while count < length and acceptance_uniform(seed, slot, step[slot] + count - 1) < rate:
                count += int32(1)
        counts[row] = count


def accept_synthetic(slots, sampling: SamplingTensors, rate: float, counts, stream=None) -> None:
    """Write the result of `accept_synthetic_reference` to `counts`; all arrays NumPy or all on one device."""
    rows = slots.shape[0]
    for name, array in (("slots", slots), ("counts", counts)):
        check_array(name, array, INDEX_DTYPES, rows=rows)
    arguments = (slots, sampling.step, sampling.seed, np.float32(rate), counts)
    launch(accept_synthetic_kernel, ceil_div(rows, THREADS), THREADS, arguments, stream)
