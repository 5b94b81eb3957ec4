"""The producer of a Hopper attention block: one warpgroup that says what is to be done next, and fetches the tiles for it.

The grid has a block for each multiprocessor, and each goes through many pieces of work: a tile of queries of one head. While consumers
are at one piece, the producer already fetches the queries of the next, and goes on with its keys where those of the first end, so that
consumers find what they need for the next step (consumer.py). Pieces are numbered from the longest to the shortest (the last tile
of every sequence first), and dealt out forwards in even rounds and backwards in odd ones, so that all blocks get about as much.

Keys and values travel in rings of their own, each with an issuing thread (two, where a tile is gathered from many pages): it waits
until consumers have emptied a stage, and starts the copies that fill it.
"""

import functools

from numba import cuda, int32, uint32

from minllm.kernels.attention.common.paged_cache import kv_head_of
from minllm.kernels.attention.flash_attention_3.tiles import BARRIER_BYTES, make_fetches
from minllm.ptx import fence_proxy_tensormap_acquire, mbarrier_arrive, mbarrier_wait_parity

WORK_WORDS = 8  # that describe a piece of work in shared memory
WORK_SLOTS = 4  # pieces that may be described at a time: one that is being stored, the one in hand, the next, and the one behind it
COUNT, STOP_TILE, FIRST_POSITION, VISIBLE_START, CONTEXT_LEN, TOKEN, HEAD, ROWS = range(WORK_WORDS)
# COUNT: tiles of keys, -1 behind the last piece. STOP_TILE: the tile behind the last one. FIRST_POSITION: of the first row of queries.
# VISIBLE_START: the first key that any row sees. TOKEN: the first row of queries. ROWS: of the sequence from that row on.


@functools.cache
def make_ring(stages):
    """slot_of: (stage, parity) of the n-th tile that goes through a ring of so many stages."""

    @cuda.jit(device=True)
    def slot_of(tile):
        """The stage, and the parity of the mbarriers' phase, of the n-th tile."""
        return int32(uint32(tile) % uint32(stages)), int32(uint32(tile) // uint32(stages) & uint32(1))

    return slot_of


@functools.cache
def make_work(shape):
    """(item_of, place_of, key_range): device functions that say what a piece of work is."""
    query_tile, key_tile = shape.query_tile, shape.key_tile

    @cuda.jit(device=True)
    def item_of(round_number):
        """The number of the piece that this block does in a round."""
        place = cuda.gridDim.x - 1 - cuda.blockIdx.x if round_number % 2 else cuda.blockIdx.x
        return int32(round_number * cuda.gridDim.x + place)

    @cuda.jit(device=True)
    def place_of(item, query_start, sequences, heads):
        """(sequence, head, first row of the tile in its sequence, below 0 if there is no such tile) of a piece."""
        rest, head = uint32(item) // uint32(heads), int32(uint32(item) % uint32(heads))
        level, sequence = int32(rest // uint32(sequences)), int32(rest % uint32(sequences))
        query_len = query_start[sequence + 1] - query_start[sequence]
        return sequence, head, int32(((query_len + query_tile - 1) // query_tile - 1 - level) * query_tile)

    @cuda.jit(device=True)
    def key_range(first_position, context_len, window):
        """(first key that a row of the tile sees, the end of those keys, first tile of keys, number of tiles, one at least)."""
        visible_start = int32(max(0, first_position - window + 1) if window > 0 else 0)
        visible_stop = int32(max(0, min(context_len, first_position + query_tile)))
        first_tile = int32(uint32(visible_start) // uint32(key_tile))
        stop_tile = int32(uint32(visible_stop + key_tile - 1) // uint32(key_tile))
        return visible_start, visible_stop, first_tile, int32(max(1, stop_tile - first_tile))

    return item_of, place_of, key_range


@functools.cache
def make_produce(shape, block_size, page_rows, parts):
    """produce: what each issuing thread does. `parts` threads share the pages of each tile of a ring."""
    query_bytes, key_bytes, key_tile = shape.query_bytes, shape.key_bytes, shape.key_tile
    ring_bytes, barriers_at, ring_barrier_bytes, stages = shape.ring_bytes, shape.barriers_at, shape.ring_barrier_bytes, shape.stages
    fetch_query_tile, fetch_cache_part = make_fetches(shape, block_size, page_rows, parts)
    item_of, place_of, key_range = make_work(shape)
    query_slots = shape.query_slots
    slot_of, queries_slot_of = make_ring(stages), make_ring(query_slots)

    @cuda.jit(device=True)
    def hand_out(work, handed, count, first_tile, first_position, visible_start, context_len, token, head, rows):
        """Describe a piece of work in shared memory, where consumers find it once the queries are there."""
        at = WORK_WORDS * (handed & (WORK_SLOTS - 1))
        work[at + COUNT], work[at + STOP_TILE] = count, first_tile + count
        work[at + FIRST_POSITION], work[at + VISIBLE_START], work[at + CONTEXT_LEN] = first_position, visible_start, context_len
        work[at + TOKEN], work[at + HEAD], work[at + ROWS] = token, head, rows

    @cuda.jit(device=True)
    def produce(
        ring, part, query_map, cache_map, query_start, context_lens, block_tables, num_blocks, heads, kv_heads, total, window, base, work
    ):
        """Fill one ring (0 keys, 1 values), this thread's part of its pages; the first thread also hands out work and fetches queries."""
        fence_proxy_tensormap_acquire(query_map)
        fence_proxy_tensormap_acquire(cache_map)
        leads = ring == 0 and part == 0
        queries_full = uint32(base + barriers_at)
        queries_empty = uint32(queries_full + query_slots * BARRIER_BYTES)
        tiles = uint32(base + query_slots * query_bytes + ring * ring_bytes)
        full = uint32(queries_full + 2 * query_slots * BARRIER_BYTES + ring * ring_barrier_bytes)
        empty = uint32(full + stages * BARRIER_BYTES)
        tile, handed, round_number = int32(0), int32(0), int32(0)
        item = item_of(round_number)
        while item < total:
            sequence, head, first_row = place_of(item, query_start, context_lens.shape[0], heads)
            if first_row >= 0:
                token, context_len = int32(query_start[sequence] + first_row), context_lens[sequence]
                rows = int32(query_start[sequence + 1] - token)
                first_position = int32(context_len - rows)
                visible_start, visible_stop, first_tile, count = key_range(first_position, context_len, window)
                if leads:
                    slot, parity = queries_slot_of(handed)
                    mbarrier_wait_parity(queries_empty + BARRIER_BYTES * slot, parity ^ 1)
                    hand_out(work, handed, count, first_tile, first_position, visible_start, context_len, token, head, rows)
                    fetch_query_tile(uint32(base + slot * query_bytes), query_map, token, head, uint32(queries_full + BARRIER_BYTES * slot))
                    handed += 1
                block_table = block_tables[sequence]
                kv_head = int32(kv_head_of(head, heads, kv_heads))
                for i in range(count):  # the last tile of keys first
                    first_key = int32((first_tile + count - 1 - i) * key_tile)
                    stage, parity = slot_of(tile)
                    mbarrier_wait_parity(empty + BARRIER_BYTES * stage, parity ^ 1)
                    fetch_cache_part(
                        uint32(tiles + stage * key_bytes), part, cache_map, block_table, num_blocks, kv_head, first_key, visible_start,
                        visible_stop, uint32(full + BARRIER_BYTES * stage),
                    )  # fmt: skip
                    tile += 1
            round_number += 1
            item = item_of(round_number)
        if leads:
            slot, parity = queries_slot_of(handed)
            mbarrier_wait_parity(queries_empty + BARRIER_BYTES * slot, parity ^ 1)
            work[WORK_WORDS * (handed & (WORK_SLOTS - 1)) + COUNT] = -1
            mbarrier_arrive(queries_full + BARRIER_BYTES * slot)

    return produce
