"""What the memory system makes of one request: the sectors it fetches, the turns that shared memory takes.

A request is one memory instruction of one warp: up to 32 lanes, each with a start and a width in bytes.

    global memory   moves in sectors of 32 bytes. A request costs the sectors that any of its lanes touches, each once: 32 neighbouring
                    float32 touch 4, the same float32 for all lanes touches 1, float32 a long row apart touch 32.
    shared memory   has 32 banks; word w (4 bytes) lies in bank w mod 32, and a bank serves one word a turn, to every lane that wants it.
                    A request takes as many turns as its busiest bank has different words. Lanes with 8 or 16 bytes each are served
                    half a warp or a quarter of a warp at a time, since 32 banks hold 128 bytes: the least is then 2 or 4 turns.

What the copy engine moves, in lines of a tile, takes sectors of global memory and no turns of shared memory.

Atomic operations on one word of shared memory are served one lane after the other.

Source: CUDA C++ Programming Guide, "Device Memory Accesses" and "Shared Memory" (compute capability 5.x and later); Nsight Compute
Documentation, "Memory Tables" (sectors a request, bank conflicts as turns beyond the least).
"""

from collections import Counter
from typing import NamedTuple

SECTOR_BYTES = 32
BANKS, BANK_BYTES = 32, 4
WIDEST = 16  # bytes that a lane's instruction moves at most; a wider access is a bulk copy, which one thread starts


class LaneAccess(NamedTuple):
    """What one lane touches: `width` bytes from byte `start` on, of a global array or of the block's shared memory."""

    lane: int
    start: int
    width: int


def sectors(request):
    """The sectors, numbered from the start of the array, that a request of LaneAccesses touches."""
    touched = set()
    for _, start, width in request:
        touched.update(range(start // SECTOR_BYTES, (start + width - 1) // SECTOR_BYTES + 1))
    return touched


def lanes_served_together(width):
    """How many lanes shared memory takes at once: the whole warp up to 4 bytes a lane, then as many as 128 bytes are enough for."""
    return max(1, min(32, BANKS * BANK_BYTES // width))


def turns(request, atomic=False):
    """How many words the busiest bank has to serve in each group of lanes that shared memory takes at once: a list, its sum the turns.

    A group without a lane takes no turn and is not in the list.
    """
    width = max(access.width for access in request)
    groups, lanes_at_once = {}, lanes_served_together(width)
    for lane, start, count in request:
        words = groups.setdefault(lane // lanes_at_once, [])
        words.extend(range(start // BANK_BYTES, (start + count - 1) // BANK_BYTES + 1))
    return [max(Counter(word % BANKS for word in (words if atomic else set(words))).values()) for words in groups.values()]
