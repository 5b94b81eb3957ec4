"""The tokens of a context that one of several ranks caches: its share.

    token p of a context                    on rank (p // S) % N, in entry p // (N S) of the block table, at offset p % S
    length(n) = n // (N S) S + clip(n % (N S) - rank S, 0, S)          how many of the first n tokens are on a rank

S is the cache's block_size, N the number of ranks. A share is a context of its own, of length(n) tokens in the blocks of the same table;
so kernels for decode steps need only the shares' lengths. A row of a prompt at position p sees length(p + 1) keys of a share:
`shared_keys` are the row keys of FlashAttention-2 (common/window_keys.py) for this.

T tokens of B sequences: 8 bytes per token and per sequence; the time is that of a launch. Once per forward, for all layers. Threads to
data: one thread per token, then one per sequence.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import cuda, int32

from minllm.kernels.arguments import INDEX_DTYPES, ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.runtime.kernel import check, kernel, launch

THREADS = 128


class ContextShare(NamedTuple):
    """The share of rank `rank` of `ranks`: `block_size` tokens of each entry of a block table."""

    rank: int
    ranks: int
    block_size: int

    def slots(self, slots: np.ndarray) -> np.ndarray:
        """The rank's slots, from slots of whole entries (block * ranks * block_size + offset); -1 for other ranks' tokens."""
        block, offset = np.divmod(slots, self.ranks * self.block_size)
        own = (slots >= 0) & (offset // self.block_size == self.rank)
        return np.where(own, block * self.block_size + offset % self.block_size, -1).astype(slots.dtype)

    def lengths(self, lengths: np.ndarray) -> np.ndarray:
        """How many of the first `lengths` tokens of a context are on this rank."""
        entries, rest = np.divmod(lengths, self.ranks * self.block_size)
        return entries * self.block_size + np.clip(rest - self.rank * self.block_size, 0, self.block_size)


@cuda.jit(device=True)
def length_of_share(length, rank, ranks, block_size):
    """How many of the first `length` tokens of a context are on `rank`."""
    entry = int32(ranks * block_size)
    entries = int32(length // entry)
    rest = int32(length - entries * entry - rank * block_size)
    return int32(entries * block_size + min(max(rest, int32(0)), int32(block_size)))


@functools.cache
def shared_keys(share):
    """(first_key, last_key) of a ContextShare, as those of window_keys.make_row_keys: keys are counted within the share."""
    rank, ranks, block_size = share

    @cuda.jit(device=True)
    def first_key(position, sliding_window):
        """The first key that the row at `position` sees."""
        return int32(0)

    @cuda.jit(device=True)
    def last_key(position):
        """The last key that the row at `position` sees; -1 for none."""
        return int32(length_of_share(int32(position + 1), rank, ranks, block_size) - 1)

    return first_key, last_key


@kernel(dependent_launch=True)
def share_of_rank_kernel(slot_mapping, context_lens, rank, ranks, block_size, slots, lengths):
    """slot_mapping, slots int32 [T]; context_lens, lengths int32 [B]."""
    wait_for_predecessors()
    tokens = int32(slot_mapping.shape[0])
    i = int32(cuda.blockIdx.x) * int32(THREADS) + int32(cuda.threadIdx.x)
    if i < tokens:
        slot, own = slot_mapping[i], int32(-1)
        if slot >= 0:
            entry = int32(ranks * block_size)
            block = int32(slot // entry)
            offset = int32(slot - block * entry - rank * block_size)
            if offset >= 0 and offset < block_size:
                own = int32(block * block_size + offset)
        slots[i] = own
    elif i - tokens < context_lens.shape[0]:
        lengths[i - tokens] = length_of_share(context_lens[i - tokens], rank, ranks, block_size)


def share_of_rank(slot_mapping, context_lens, share, slots, lengths, stream=None):
    """Write share.slots(slot_mapping) and share.lengths(context_lens) of a ContextShare, all NumPy or all on one device.

    Raises KernelArgumentError for unsuitable arrays.
    """
    check_array("slot_mapping", slot_mapping, INDEX_DTYPES, tokens=None)
    check_array("context_lens", context_lens, INDEX_DTYPES, sequences=None)
    (tokens,), (sequences,) = slot_mapping.shape, context_lens.shape
    check_array("slots", slots, INDEX_DTYPES, tokens=tokens)
    check_array("lengths", lengths, INDEX_DTYPES, sequences=sequences)
    check(0 <= share.rank < share.ranks and share.block_size >= 1, f"there is no {share}: rank is 0 to ranks - 1, block_size at least 1")
    arguments = slot_mapping, context_lens, *map(int, share), slots, lengths
    launch(share_of_rank_kernel, ceil_div(tokens + sequences, THREADS), THREADS, arguments, stream)
