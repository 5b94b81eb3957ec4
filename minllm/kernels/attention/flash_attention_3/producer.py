"""The producer of FlashAttention-3: one warpgroup that hands out work items and loads their tiles by TMA.

While consumers process one work item, the producer already loads the queries of the next, and its keys directly after those of the first.
Keys and values have separate rings, each with one issuing thread (two if a tile is gathered from many pages).

A tile of a paged cache is loaded page by page, in boxes of block_size rows. Pages that no query row may see are loaded from coordinates
beyond the end of the cache, which TMA fills with zeros. A partly visible page may hold NaN in its other slots: consumers clear those.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, int32, uint32

from minllm import ptx
from minllm.kernels.attention.common.paged_cache import kv_head_of, make_lookup
from minllm.kernels.attention.flash_attention_3.tiles import make_pipelines
from minllm.kernels.attention.flash_attention_3.work import make_order, make_work
from minllm.tiles import tma


class Batch(NamedTuple):
    """The sequences of a launch: arguments of the kernel."""

    query_start: Any
    context_lens: Any
    block_tables: Any
    num_blocks: int
    heads: int
    kv_heads: int
    window: int


@functools.cache
def make_loads(shape, block_size, page_rows, parts):
    """(load_queries, load_pages): device functions for one thread; `parts` threads share the pages of a tile."""
    block_of, _ = make_lookup(block_size)
    queries, keys, pages = shape.queries, shape.keys, shape.key_tile // page_rows
    panels, columns, swizzle, codes = keys.panels, shape.box_columns, keys.swizzle, shape.codes
    query_panel, key_panel, query_bytes = queries.panel_bytes, keys.panel_bytes, queries.bytes
    query_panels, query_columns = queries.panels, queries.panel_columns
    part_pages, part_bytes = pages // parts, keys.bytes // parts
    expect_queries, expect = (pipeline.producer_expect for pipeline in make_pipelines(shape, parts)[:2])

    @cuda.jit(device=True)
    def load_queries(stage, query_map, token, head):
        """Load rows token to token + query_tile of one head; rows of other sequences are loaded too, but their results are not stored."""
        expect_queries(stage, query_bytes)
        for i in range(query_panels):
            tma.load_3d(stage, i * query_panel, query_map, i * query_columns, head, token)

    @cuda.jit(device=True)
    def load_pages(stage, part, cache_map, block_table, num_blocks, kv_head, first_key, visible_start, visible_stop):
        """Load every `parts`-th page, from page `part` on, of the tile of keys (or values) from first_key on, of one KV head."""
        expect(stage, part_bytes)
        for i in range(part_pages):
            row = int32((parts * i + part) * page_rows)  # first row of the page in the tile
            position = int32(first_key + row)
            visible = position < visible_stop and position + page_rows > visible_start
            block = block_of(block_table, position) if visible else num_blocks  # beyond the end: zeros
            slot = int32(uint32(position) % uint32(block_size))
            for j in range(panels):
                if codes:
                    tma.load_4d(stage, j * key_panel + row * swizzle, cache_map, j * columns, slot, kv_head, block)
                else:
                    tma.load_4d(stage, j * key_panel + row * swizzle, cache_map, j * columns, kv_head, slot, block)

    return load_queries, load_pages


@functools.cache
def make_produce(shape, block_size, page_rows, parts):
    """produce: the device function of a warp with issuing lanes. `parts` threads share the pages of each tile of a ring."""
    key_tile = shape.key_tile
    queries, cache, *_ = make_pipelines(shape, parts)  # keys and values as loaded have the same operations for producers
    load_queries, load_pages = make_loads(shape, block_size, page_rows, parts)
    order, (key_range, hand_out, hand_out_end) = make_order(shape.query_tile), make_work(shape)

    @cuda.jit(device=True)
    def produce(part, issues, with_queries, query_ring, query_map, ring, cache_map, batch, work):
        """Load this thread's pages of all tiles of one ring, if it `issues`; one of the threads also hands out work and loads queries."""
        ptx.fence_proxy_tensormap_acquire(query_map)
        ptx.fence_proxy_tensormap_acquire(cache_map)
        leads = issues and with_queries and part == 0
        tile, round_number, goes_on = int32(0), int32(0), True  # a round has one item
        items = order.begin(batch.query_start, batch.context_lens)
        while goes_on:
            items, item = order.find(items, round_number, batch.query_start, batch.context_lens, batch.heads)
            goes_on = item.sequence >= 0
            if goes_on and issues:
                sequence, head = item.sequence, item.head
                token, context_len = int32(batch.query_start[sequence] + item.first_row), batch.context_lens[sequence]
                rows = int32(batch.query_start[sequence + 1] - token)
                first_position = int32(context_len - rows)
                visible_start, visible_stop, first_tile, count = key_range(first_position, context_len, batch.window)
                if leads:
                    stage = queries.producer_acquire(query_ring, queries.state(round_number))
                    hand_out(work, round_number, count, first_tile, first_position, visible_start, context_len, token, head, rows)
                    load_queries(stage, query_map, token, head)
                block_table = batch.block_tables[sequence]
                kv_head = int32(kv_head_of(head, batch.heads, batch.kv_heads))
                first_key = int32((first_tile + count) * key_tile)
                while first_key > visible_start:  # the last tile of keys first
                    first_key = int32(first_key - key_tile)
                    stage = cache.producer_acquire(ring, cache.state(tile))
                    load_pages(stage, part, cache_map, block_table, batch.num_blocks, kv_head, first_key, visible_start, visible_stop)
                    tile += 1
            if goes_on:
                round_number += 1
        if leads:
            stage = queries.producer_acquire(query_ring, queries.state(round_number))
            hand_out_end(work, round_number)
            ptx.mbarrier_arrive(stage.full)

    return produce
