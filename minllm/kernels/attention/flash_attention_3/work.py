"""Work items of FlashAttention-3, their assignment to blocks, and their description in shared memory.

A work item is a query tile of one head. The grid has one block per SM (a persistent kernel). Items are numbered from the longest to the
shortest (the last tile of every sequence first), and assigned to blocks forwards in even rounds and backwards in odd ones, so that all
blocks get about the same amount of work. Their number is counted on the device: in a CUDA graph the host has only the graph's number of
tokens, and looping over a prompt's empty items would take as long as computing a short prompt.
"""

import functools

from numba import cuda, int32, uint32

from minllm.tiles.warp import warp_max

WORK_WORDS = 8  # words per description
WORK_SLOTS = 4  # descriptions at a time: of the item being stored, the current one, the next, and the one after it
COUNT, STOP_TILE, FIRST_POSITION, VISIBLE_START, CONTEXT_LEN, TOKEN, HEAD, ROWS = range(WORK_WORDS)
# COUNT: tiles of keys, -1 after the last item. STOP_TILE: one past the last tile. FIRST_POSITION: position of the first query row.
# VISIBLE_START: the first key that any row sees. TOKEN: the first query row. ROWS: rows of the sequence from that row on.


@functools.cache
def make_work(shape):
    """(count_items, item_of, place_of, key_range, hand_out, hand_out_end): device functions that define the work items."""
    query_tile, key_tile = shape.query_tile, shape.key_tile

    @cuda.jit(device=True)
    def count_items(query_start, sequences, heads):
        """Number of items: the query tiles of the longest query, for every sequence and head; all lanes of a warp call it."""
        longest, sequence = int32(0), int32(cuda.threadIdx.x % 32)
        while sequence < sequences:
            longest = max(longest, int32(query_start[sequence + 1] - query_start[sequence]))
            sequence += 32
        return int32((warp_max(longest) + query_tile - 1) // query_tile * sequences * heads)

    @cuda.jit(device=True)
    def item_of(round_number):
        """The number of this block's item in a round."""
        place = cuda.gridDim.x - 1 - cuda.blockIdx.x if round_number % 2 else cuda.blockIdx.x
        return int32(round_number * cuda.gridDim.x + place)

    @cuda.jit(device=True)
    def place_of(item, query_start, sequences, heads):
        """(sequence, head, first row of the tile in its sequence) of an item; the row is below 0 if there is no such tile."""
        rest, head = uint32(item) // uint32(heads), int32(uint32(item) % uint32(heads))
        level, sequence = int32(rest // uint32(sequences)), int32(rest % uint32(sequences))
        query_len = query_start[sequence + 1] - query_start[sequence]
        return sequence, head, int32(((query_len + query_tile - 1) // query_tile - 1 - level) * query_tile)

    @cuda.jit(device=True)
    def key_range(first_position, context_len, window):
        """(first key that a row of the tile sees, end of these keys, first tile of keys, number of tiles, at least one)."""
        visible_start = int32(max(0, first_position - window + 1) if window > 0 else 0)
        visible_stop = int32(max(0, min(context_len, first_position + query_tile)))
        first_tile = int32(uint32(visible_start) // uint32(key_tile))
        stop_tile = int32(uint32(visible_stop + key_tile - 1) // uint32(key_tile))
        return visible_start, visible_stop, first_tile, int32(max(1, stop_tile - first_tile))

    @cuda.jit(device=True)
    def hand_out(work, handed, count, first_tile, first_position, visible_start, context_len, token, head, rows):
        """Describe a work item in shared memory, where consumers read it after its queries have arrived."""
        at = WORK_WORDS * (handed & (WORK_SLOTS - 1))
        work[at + COUNT], work[at + STOP_TILE] = count, first_tile + count
        work[at + FIRST_POSITION], work[at + VISIBLE_START], work[at + CONTEXT_LEN] = first_position, visible_start, context_len
        work[at + TOKEN], work[at + HEAD], work[at + ROWS] = token, head, rows

    @cuda.jit(device=True)
    def hand_out_end(work, handed):
        """Mark the end of the items."""
        work[WORK_WORDS * (handed & (WORK_SLOTS - 1)) + COUNT] = -1

    return count_items, item_of, place_of, key_range, hand_out, hand_out_end
