"""The cost of one request: sectors of global memory, turns of shared memory.

A turn is what Nsight Compute calls a wavefront. A request is one memory instruction of one warp: up to 32 lanes, each with a start and a
width in bytes.

    global memory   moves in sectors of 32 bytes. A request costs the sectors that its lanes touch, each once: 32 neighbouring float32
                    touch 4 sectors, the same float32 for all lanes touches 1, float32 in 32 different rows touch 32.
    shared memory   has 32 banks; word w (4 bytes) is in bank w mod 32, and a bank serves one word per turn, to all lanes that read it.
                    A request takes as many turns as its busiest bank has different words. Lanes with 8 or 16 bytes each are served
                    half a warp or a quarter of a warp at a time, since 32 banks hold 128 bytes: the minimum is then 2 or 4 turns.

A bulk or tensor copy by TMA (the tensor memory accelerator) costs sectors of global memory for each line of a tile, but no turns of shared
memory. Atomic operations on one word of shared memory are served one lane after the other.

Source: CUDA C++ Programming Guide, "Device Memory Accesses" and "Shared Memory" (compute capability 5.x and later); Nsight Compute
Documentation, "Memory Tables" (sectors per request; bank conflicts: turns beyond the minimum).
"""

from collections import Counter
from typing import NamedTuple

import numpy as np

SECTOR_BYTES = 32
BANKS, BANK_BYTES = 32, 4
WIDEST = 16  # bytes; a wider access is a bulk copy, which one thread starts


class LaneAccess(NamedTuple):
    """One lane's access to global or shared memory: `width` bytes from `start` on."""

    lane: int
    start: int
    width: int


class Accesses(NamedTuple):
    """Accesses of many requests, as vectors: the number of the request, and the fields of a LaneAccess."""

    request: np.ndarray
    lane: np.ndarray
    start: np.ndarray
    width: np.ndarray


def sectors(request):
    """The sectors of the array, by number, that a request (a list of LaneAccesses) touches."""
    touched = set()
    for _, start, width in request:
        touched.update(range(start // SECTOR_BYTES, (start + width - 1) // SECTOR_BYTES + 1))
    return touched


def lanes_served_together(width):
    """The number of lanes with accesses of `width` bytes that shared memory serves at once: at most 128 bytes."""
    return max(1, min(32, BANKS * BANK_BYTES // width))


def turns(request, atomic=False):
    """For each group of lanes that is served at once, its turns: the number of different words in its busiest bank."""
    width = max(count for _, _, count in request)
    groups, lanes_at_once = {}, lanes_served_together(width)
    for lane, start, count in request:
        words = groups.setdefault(lane // lanes_at_once, [])
        words.extend(range(start // BANK_BYTES, (start + count - 1) // BANK_BYTES + 1))
    return [max(Counter(word % BANKS for word in (words if atomic else set(words))).values()) for words in groups.values()]


def different_pairs(first, second):
    """The different pairs of numbers, none of them negative, as two vectors."""
    most = int(second.max()) + 1
    return np.divmod(np.unique(first * most + second), most)


def units_of(accesses, size):
    """(index of the access, unit) of all units of `size` bytes that accesses touch."""
    first, last = accesses.start // size, (accesses.start + accesses.width - 1) // size
    count = last - first + 1
    index = np.repeat(np.arange(first.size), count)
    return index, first[index] + np.arange(index.size) - np.repeat(np.cumsum(count) - count, count)


def sectors_of(accesses):
    """The sectors that Accesses touch, each once per request: `sectors` of many requests."""
    index, sector = units_of(accesses, SECTOR_BYTES)
    return different_pairs(accesses.request[index], sector)[0].size


def turns_of(accesses, atomic=False):
    """The turns of each group of lanes that is served at once, a vector: `turns` of many requests."""
    widest = np.zeros(int(accesses.request.max()) + 1, np.int64)
    np.maximum.at(widest, accesses.request, accesses.width)
    at_once = np.clip(BANKS * BANK_BYTES // widest, 1, 32)[accesses.request]
    group = np.unique(accesses.request * 32 + accesses.lane // at_once, return_inverse=True)[1].reshape(-1)
    index, word = units_of(accesses, BANK_BYTES)
    group = group[index]
    if not atomic:
        group, word = different_pairs(group, word)
    busy = np.bincount(group * BANKS + word % BANKS, minlength=BANKS * (int(group.max()) + 1))
    return busy.reshape(-1, BANKS).max(1)
