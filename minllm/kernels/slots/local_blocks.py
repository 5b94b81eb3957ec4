"""Block tables and slots of layers with local blocks (cache/window_blocks.py), from those of the other layers.

    tables[b, c]  = local_of[block_tables[b, c]]                                  for the blocks of sequence b, else 0
    slots[t]      = local_of[slot // block_size] * block_size + slot % block_size     for slot = slot_mapping[t]
                    -1 if the slot is -1, or if its block has no local block, which is local block 0

T tokens of B sequences with C columns: 12 bytes per token and per block of a context: its entry, the local block, and the result; no FLOPs;
the time is that of a launch. Once per forward, for all layers. Threads to data: one thread per entry, the tables first.
"""

import numpy as np
from numba import cuda, int32

from minllm.kernels.arguments import INDEX_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.runtime.kernel import check, kernel, launch

THREADS = 128


def local_blocks_reference(slot_mapping, context_lens, block_tables, local_of, block_size):
    """(slots, tables), int32 [T] and [B, C], in the local blocks local_of[block]; context_lens int32 [B]: entries beyond are not read."""
    used = np.arange(block_tables.shape[1]) * block_size < context_lens[:, None]
    tables = np.zeros_like(block_tables)
    tables[used] = local_of[block_tables[used]]
    slots, written = np.full_like(slot_mapping, -1), slot_mapping >= 0
    locals_, offsets = local_of[slot_mapping[written] // block_size], slot_mapping[written] % block_size
    slots[written] = np.where(locals_ > 0, locals_ * block_size + offsets, -1)
    return slots, tables


@kernel(dependent_launch=True)
def local_blocks_kernel(slot_mapping, context_lens, block_tables, local_of, block_size, slots, tables):
    """slot_mapping, slots int32 [T]; context_lens int32 [B]; block_tables, tables int32 [B, C]; local_of int32 [blocks]."""
    wait_for_predecessors()
    columns = int32(block_tables.shape[1])
    entries = int32(block_tables.shape[0]) * columns
    i = int32(cuda.blockIdx.x) * int32(THREADS) + int32(cuda.threadIdx.x)
    if i < entries:
        row, column = i // columns, i % columns
        tables[row, column] = local_of[block_tables[row, column]] if column * block_size < context_lens[row] else int32(0)
    elif i - entries < slot_mapping.shape[0]:
        token = i - entries
        slot, place = slot_mapping[token], int32(-1)
        if slot >= 0:
            block = local_of[slot // block_size]
            if block > 0:
                place = block * block_size + slot % block_size
        slots[token] = place


def local_blocks(slot_mapping, context_lens, block_tables, local_of, block_size, slots, tables, stream=None):
    """Write `slots` and `tables`; arguments as in `local_blocks_reference`, all NumPy or all on one device.

    Raises KernelArgumentError for unsuitable arrays.
    """
    check_array("slot_mapping", slot_mapping, INDEX_DTYPES, tokens=None)
    check_array("block_tables", block_tables, INDEX_DTYPES, sequences=None, columns=None)
    check_array("local_of", local_of, INDEX_DTYPES, blocks=None)
    (sequences, columns), (tokens,) = block_tables.shape, slot_mapping.shape
    check_array("context_lens", context_lens, INDEX_DTYPES, sequences=sequences)
    check_array("slots", slots, INDEX_DTYPES, tokens=tokens)
    check_array("tables", tables, INDEX_DTYPES, sequences=sequences, columns=columns)
    check(block_size >= 1, f"block_size is {block_size}; it must be at least 1")
    arguments = slot_mapping, context_lens, block_tables, local_of, int(block_size), slots, tables
    launch(local_blocks_kernel, ceil_div(sequences * columns + tokens, THREADS), THREADS, arguments, stream)
