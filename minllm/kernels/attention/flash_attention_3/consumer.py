"""The consumers of FlashAttention-3: warpgroups that own 64 query rows each and loop over the tiles of keys.

An iteration starts two GEMMs, the scores of this tile of keys and the output of the tile before, and computes the softmax of the scores
while the second GEMM is in flight:

    tensor cores   Q K_j^T | P_(j-1) V_(j-1) |
    threads                | softmax of S_j  | rescale the output, round P_j

This hides half of the softmax. The warpgroups also alternate by named barriers (ping-pong): one starts its two GEMMs after the other has
started its own, so that one computes exponentials while the other multiplies (Shah et al., arXiv 2407.08608, sections 3.1 and 3.2).

The loop does not stop between work items: the first scores of an item are computed together with the last output of the item before, and
that item's rows are divided and stored in the same iteration. Prompts of a few tiles would otherwise fill and drain this pipeline all the
time.
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.kernels.attention.flash_attention_3.rows import Rows
from minllm.kernels.attention.flash_attention_3.tiles import make_pipelines
from minllm.kernels.attention.flash_attention_3.work import COUNT, STOP_TILE, WORK_SLOTS, WORK_WORDS
from minllm.tiles.warpgroup import uniform

FIRST_TURN = 2  # the named barrier for the first consumer's turn on the tensor cores; the other consumers' follow


class Shared(NamedTuple):
    """Arrays in shared memory."""

    words: Any  # all of dynamic shared memory, uint32
    sums: Any  # sums of weights, float32
    work: Any  # descriptions of work items, int32


class Parts(NamedTuple):
    """What a consumer consists of beside its loop: both GEMMs, as Wgmma, and device functions."""

    scores: Any  # S [64, key_tile] = Q K^T
    output: Any  # O [64, head_dim] += P V
    load_queries: Any  # load_queries(query, rows, ring, state, shared, item, own, scale): those held in registers, and release their stage
    left_of: Any  # left_of(query, ring, state, first_row_bytes): the left operand of Q K^T
    clear_unseen: Any  # clear_unseen(ring, shared, at, tile, first_key, own): clears rows of a tile of V that no query row sees
    start_rows: Any  # the rest: rows.py, half_rows.py
    weigh_tile: Any
    rescale: Any
    pack_weights: Any
    store_rows: Any


@functools.cache
def make_turns(consumers):
    """(wait_for_turn, pass_turn): device functions by which consumers alternate on the tensor cores (named-barrier hand-off)."""

    @cuda.jit(device=True)
    def wait_for_turn(consumer):
        """Wait until the consumer before has started its GEMMs."""
        if consumers > 1:
            ptx.bar_sync(FIRST_TURN + consumer, 256)

    @cuda.jit(device=True)
    def pass_turn(consumer):
        """Let the next consumer start its GEMMs."""
        if consumers > 1:
            ptx.bar_arrive(FIRST_TURN + (consumer + 1 if consumer + 1 < consumers else 0), 256)

    return wait_for_turn, pass_turn


@functools.cache
def make_consume(shape, parts):
    """consume: the device function of a consumer warpgroup with these Parts."""
    key_tile, in_registers, rows_bytes = shape.key_tile, shape.queries_in_registers, 64 * shape.swizzle
    score_count, weight_count, out_count, query_count = key_tile // 2, shape.weight_registers, shape.head_dim // 2, shape.query_registers
    queries, cache, _, values, _ = make_pipelines(shape)
    score_gemm, output_gemm, load_queries, left_of, clear_unseen, *softmax = parts
    start_rows, weigh_tile, rescale, pack_weights, store_rows = softmax
    wait_for_turn, pass_turn = make_turns(1 if shape.codes else shape.consumers)  # consumers of codes do not alternate

    @cuda.jit(device=True, forceinline=True)
    def start_scores(scores, query, rings, item, state, consumer):
        """Start S = Q K^T."""
        query_rows = left_of(query, rings.queries, queries.state(item), consumer * rows_bytes)
        score_gemm.multiply(scores, query_rows, score_gemm.right(cache.stage(rings.keys, state).tiles), 0)

    @cuda.jit(device=True, forceinline=True)
    def start_output(acc, weights, rings, state, more):
        """Wait for the tile of V and start O += P V, or O = P V if `more` is 0."""
        values.consumer_wait(rings.values, state)
        output_gemm.multiply(acc, weights, output_gemm.right(values.stage(rings.values, state).tiles), more)

    @cuda.jit(device=True, forceinline=True)
    def store_item(acc, shared, out, item, own):
        """Store the rows of a work item. `opaque` hides own and item: the compiler would keep addresses made of them over the loop."""
        opaque = cuda.local.array(2, int32)
        opaque[0], opaque[1] = own, item
        ptx.keep_registers(opaque, 2)
        store_rows(acc, shared, out, opaque[1], opaque[0])

    @cuda.jit(device=True, forceinline=True)
    def start_item(query, rows, rings, shared, item, own, scale):
        """Initialise the state of an item's rows, and load their queries."""
        start_rows(rows)
        load_queries(query, rows, rings.queries, queries.state(item), shared, item, own, scale)

    @cuda.jit(device=True, forceinline=True)
    def release_operands(rings, item, state, left):
        """Release the keys once their scores are complete, and after the item's last tile its queries."""
        cache.consumer_release(rings.keys, state)
        if not in_registers and left == 0:
            queries.consumer_release(rings.queries, queries.state(item))

    @cuda.jit(device=True, forceinline=True)
    def first_scores(query, scores, rows, rings, shared, left, consumer, own, scale):
        """Compute the scores of the first tile of all, for which there is no output GEMM to overlap."""
        start_item(query, rows, rings, shared, 0, own, scale)
        cache.consumer_wait(rings.keys, cache.state(0))
        start_scores(scores, query, rings, 0, cache.state(0), consumer)
        score_gemm.wait(scores)
        release_operands(rings, 0, cache.state(0), left)

    @cuda.jit(device=True)
    def consume(rings, shared, out, own, scale, window):
        """Compute a warpgroup's 64 rows of every work item: out = (sum of weights times values) / (sum of weights)."""
        consumer = uniform(int32(own // 128))
        query = cuda.local.array(query_count, uint32)
        scores = cuda.local.array(score_count, float32)
        weights = cuda.local.array(weight_count, uint32)
        acc = cuda.local.array(out_count, float32)
        rows = Rows(
            cuda.local.array(2, float32), cuda.local.array(2, float32), cuda.local.array(2, float32), cuda.local.array(2, float32),
            cuda.local.array(2, float32),
        )  # fmt: skip

        item, at, tile = int32(0), int32(0), int32(0)  # current item; index of its description in shared.work; tiles consumed so far
        queries.consumer_wait(rings.queries, queries.state(0))
        left = shared.work[COUNT]  # remaining tiles of the item; below 0 after the last item
        if left > 0:
            # The last tile of an item's keys is taken first: it contains the diagonal.
            left, first_key = int32(left - 1), int32((shared.work[STOP_TILE] - 1) * key_tile)
            first_scores(query, scores, rows, rings, shared, left, consumer, own, scale)
            from_origins = weigh_tile(scores, rows, False, shared, at, item, first_key, consumer, own, scale, window)
            pack_weights(scores, weights)
            clear_unseen(rings.values, shared, at, tile, first_key, own)
            more = int32(0)  # 1 if the accumulator already holds a part of the output of the weights' item

            while True:
                begins = left == 0  # whether the next item begins with this tile
                if begins:
                    item = int32(item + 1)
                    queries.consumer_wait(rings.queries, queries.state(item))
                    at = int32(WORK_WORDS * (item & (WORK_SLOTS - 1)))
                    left = shared.work[at + COUNT]
                    if left < 0:
                        break
                    first_key, from_origins = int32(shared.work[at + STOP_TILE] * key_tile), False
                    start_item(query, rows, rings, shared, item, own, scale)
                left, first_key = int32(left - 1), int32(first_key - key_tile)
                before, now = cache.state(tile), cache.state(tile + 1)
                tile = int32(tile + 1)
                cache.consumer_wait(rings.keys, now)
                wait_for_turn(consumer)
                start_scores(scores, query, rings, item, now, consumer)
                start_output(acc, weights, rings, before, more)
                pass_turn(consumer)
                ptx.wgmma_wait_group_1()
                ptx.keep_registers(scores, score_count)
                release_operands(rings, item, now, left)
                from_origins = weigh_tile(scores, rows, from_origins, shared, at, item, first_key, consumer, own, scale, window)
                output_gemm.wait(acc)
                ptx.keep_registers(weights, weight_count)  # the GEMM that has just completed read them
                values.consumer_release(rings.values, before)
                if begins:
                    store_item(acc, shared, out, int32(item - 1), own)
                else:
                    rescale(acc, rows)
                more = int32(0 if begins else 1)
                pack_weights(scores, weights)
                if begins or left == 0:
                    clear_unseen(rings.values, shared, at, tile, first_key, own)

            start_output(acc, weights, rings, cache.state(tile), more)
            output_gemm.wait(acc)
            store_item(acc, shared, out, int32(item - 1), own)

    return consume
