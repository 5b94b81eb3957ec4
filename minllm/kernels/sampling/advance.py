"""Advance a decode batch by one token, without leaving the GPU: each row's new token becomes its next input.

For a row at position p, whose newest token is v:

    token_ids ← v,   positions ← p + 1,   slot_mapping ← the slot of p + 1,   context_lens ← p + 2
    step ← step + 1,   counts[v] ← counts[v] + 1

A row whose next position reaches its limit (the end of its cache blocks, or 0 after it was retired) is switched off: slot -1 writes no
key and value, context length 0 makes its attention output zeros; it stays in the batch and its tokens are dropped.
48 bytes per row, 40 without counts; one thread per row.
"""

import numpy as np
from numba import cuda, int32

from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.sampling.tensors import SamplingTensors
from minllm.runtime.kernel import check, kernel, launch

THREADS = 128


def advance_reference(new_tokens, token_ids, positions, slot_mapping, context_lens, block_tables, limits, sampling, block_size) -> None:
    """Advance a decode batch of B rows by one token, in place.

    All arrays int32 [B], except block_tables [B, max_blocks]; `sampling` advances too.
    """
    sampling.advance(np.arange(len(new_tokens)), new_tokens)
    following = positions + 1
    active = following < limits
    rows = np.flatnonzero(active)
    token_ids[rows] = new_tokens[rows]
    positions[rows] = following[rows]
    slot_mapping[:] = -1
    slot_mapping[rows] = block_tables[rows, following[rows] // block_size] * block_size + following[rows] % block_size
    context_lens[:] = np.where(active, following + 1, 0)


@kernel(dependent_launch=True)
def advance_kernel(
    new_tokens, token_ids, positions, slot_mapping, context_lens, block_tables, limits, step, output_counts, counts_tokens, block_size
):  # fmt: skip
    """All arrays int32 [B], except block_tables [B, max_blocks] and output_counts [B, vocab] (read only if counts_tokens)."""
    wait_for_predecessors()
    row = int32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
    if row < new_tokens.shape[0]:
        token = new_tokens[row]
        step[row] += 1
        if counts_tokens != 0:
            output_counts[row, token] += 1
        position = int32(positions[row] + 1)
        if position < limits[row]:
            token_ids[row] = token
            positions[row] = position
            slot_mapping[row] = block_tables[row, position // block_size] * block_size + position % block_size
            context_lens[row] = position + 1
        else:
            slot_mapping[row] = -1
            context_lens[row] = 0


def advance(
    new_tokens, token_ids, positions, slot_mapping, context_lens, block_tables, limits,
    sampling: SamplingTensors, block_size: int, stream=None,
) -> None:  # fmt: skip
    """Advance a decode batch of B rows by one token, in place; arguments as in `advance_reference`, all NumPy or all on one device."""
    rows = new_tokens.shape[0]
    named = dict(token_ids=token_ids, positions=positions, slot_mapping=slot_mapping, context_lens=context_lens, limits=limits)
    for name, array in named.items():
        fits = tuple(array.shape) == (rows,) and array.dtype == np.int32
        check(fits, f"{name} is {array.dtype} {array.shape}; it must be int32 [{rows}]")
    counts = sampling.output_counts
    stand_in = block_tables if counts is None else counts  # a kernel's arguments are always arrays; this one is not accessed
    arrays = (new_tokens, token_ids, positions, slot_mapping, context_lens, block_tables, limits, sampling.step, stand_in)
    launch(advance_kernel, -(-rows // THREADS), THREADS, (*arrays, int(counts is not None), int(block_size)), stream)
