"""Compute on the GPU where the newest tokens of each row lie, for a decode step with a residual window.

For a row with its new token at position p, with a window of R tokens, rings of n = R / G + 1 blocks of G = TOKEN_GROUP tokens, and
ring number r:

    slot          ← the slot of p:  block r n + (p / G) mod n, offset p mod G
    recent_lens   ← p + 1 - L(p)                            L(p): residual_window/reference.py
    recent_tables ← r n + (L(p) / G + i) mod n              for i from 0 to n - 1

A padding row (ring -1, context length 0) writes nowhere and has no recent tokens. One thread per row; 4 (n + 5) bytes
per row.
"""

import numpy as np
from numba import cuda, int32

from minllm.kernels.arguments import INDEX_DTYPES, ceil_div, check_array
from minllm.kernels.attention.residual_window.reference import ring_blocks, window_start
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.quantization.groups import TOKEN_GROUP
from minllm.runtime.kernel import check, kernel, launch

THREADS = 128


def window_of_rows(positions, context_lens, rings, residual_window):
    """(slots [B], recent_lens [B], recent_tables [B, n]), int32, for new tokens at `positions` [B].

    context_lens, rings: int32 [B]; a context length of 0 marks a padding row.
    """
    size, rings = ring_blocks(residual_window), np.maximum(rings, 0)
    starts, is_on = window_start(positions, residual_window), np.asarray(context_lens) > 0
    slots = (rings * size + positions // TOKEN_GROUP % size) * TOKEN_GROUP + positions % TOKEN_GROUP
    tables = rings[:, None] * size + (starts[:, None] // TOKEN_GROUP + np.arange(size)) % size
    return np.where(is_on, slots, -1).astype(np.int32), np.where(is_on, positions + 1 - starts, 0).astype(np.int32), tables.astype(np.int32)


@kernel(dependent_launch=True)
def move_window_kernel(positions, context_lens, rings, slots, recent_lens, recent_tables, residual_window):
    """All arrays int32 [B], except recent_tables [B, n]."""
    wait_for_predecessors()
    row = int32(cuda.blockIdx.x * THREADS + cuda.threadIdx.x)
    if row < positions.shape[0]:
        position, size = positions[row], int32(recent_tables.shape[1])
        first = int32(max(rings[row], 0) * size)
        block = int32(max(0, position + 1 - residual_window) // TOKEN_GROUP)
        is_on = context_lens[row] > 0
        slots[row] = (first + position // TOKEN_GROUP % size) * TOKEN_GROUP + position % TOKEN_GROUP if is_on else -1
        recent_lens[row] = position + 1 - block * TOKEN_GROUP if is_on else 0
        for i in range(size):
            recent_tables[row, i] = first + (block + i) % size


def move_window(positions, context_lens, rings, slots, recent_lens, recent_tables, residual_window, stream=None):
    """Write slots [B], recent_lens [B] and recent_tables [B, n], as `window_of_rows` computes them, from arrays [B]; all int32.

    Raises KernelArgumentError for shapes and dtypes, and for a window that is not a multiple of TOKEN_GROUP.
    """
    is_whole = residual_window > 0 and residual_window % TOKEN_GROUP == 0
    check(is_whole, f"residual_window is {residual_window}; it must be a multiple of {TOKEN_GROUP} tokens")
    rows = positions.shape[0]
    named = dict(positions=positions, context_lens=context_lens, rings=rings, slots=slots, recent_lens=recent_lens)
    for name, array in named.items():
        check_array(name, array, INDEX_DTYPES, rows=rows)
    check_array("recent_tables", recent_tables, INDEX_DTYPES, rows=rows, blocks=ring_blocks(residual_window))
    launch(move_window_kernel, ceil_div(rows, THREADS), THREADS, (*named.values(), recent_tables, int(residual_window)), stream)
