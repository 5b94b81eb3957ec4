"""A block's loop over its run of tiles: the frame of all split tensor-core kernels.

    begin the plan, start filling the rings
    for each head of the run, or part of a head:
        for each tile:  start copying a later tile, wait for this one, S = K q, mask, P = softmax S, O += V P
        merge the warps' states; write the output, or a part of it, which the last block of the head merges

Every warp has a ring of tiles in shared memory that continues across the end of a head, so that memory is not idle while a head is
finished, and no warp waits for another within a head. Everything else is a parameter, a NamedTuple of device functions: the plan (plan.py),
the source of the tiles, the matmuls, the softmax, and the merge (merge_parts.py).
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from numba import cuda, float32, int32, uint32

from minllm.kernels.attention.split_tensor_core.block_sizes import head_tiles_of
from minllm.kernels.attention.split_tensor_core.merge_parts import WarpStates, make_write_zeros, pitch_of
from minllm.kernels.attention.split_tensor_core.plan import quotient
from minllm.ptx import cp_async_wait_group_0, prefetch_l2, shared_address
from minllm.runtime.array_protocol import Array


class Ring(NamedTuple):
    """A warp's ring of stages, and the warp's position in it. Addresses are shared-memory addresses, in bytes."""

    words: Array  # the block's dynamic shared memory as uint32
    start: int  # address of `words`
    base: int  # address of this warp's ring
    stage: int  # address of the oldest tile
    free: int  # address of the stage that is filled next
    parity: int  # parity of the oldest tile's mbarrier
    warp: int
    lane: int
    blocks: Array  # int32: entries of a block table that the source has looked up


class Pipeline(NamedTuple):
    """The fields of a Ring that change from tile to tile."""

    stage: int
    free: int
    parity: int


class Heads(NamedTuple):
    """The query heads of one head of the line (plan.py)."""

    row: int  # row of query and out
    first: int
    left: int  # number of heads from `first` on; a group's last tile may have fewer than the others


class Span(NamedTuple):
    """The tiles of one head that a block takes."""

    tiles: int
    position: int  # position of this warp's first key
    visible: tuple[int, int]  # (first, one past the last) visible key


class Source(NamedTuple):
    """Device functions that load tiles. `ahead` is a Cursor, or what `aim` computes from it."""

    setup: Callable  # (ring): prepare a warp's ring
    aim: Callable  # (cursor, batch, ring) -> ahead
    fetch: Callable  # (ahead, ring, batch, cache) -> ahead: start copying a tile to ring.free
    wait: Callable  # (ring, position, visible): wait until the oldest tile has arrived; its first key is at `position`
    release: Callable  # (ring): called when the lanes have read the oldest tile
    stage_bytes: int  # from one stage to the next
    ring_bytes: int  # from one warp's ring to the next
    produce: Callable | None = None  # (cursor, ring, batch, cache): the loop of a producer warp, if the source has one
    lookups: int = 1  # elements of ring.blocks


class Products(NamedTuple):
    """The matmuls of a tile. `operands` and `state` are NamedTuples of register arrays."""

    load_query: Callable  # (operands, query, heads, lane): start loading query heads
    prepare: Callable  # (operands, state, cursor, cache, lane): convert the loaded query heads to operands
    score: Callable  # (scores, operands, ring): S = K q
    mask: Callable  # (scores, position, visible, lane): set scores of invisible keys to -inf
    multiply_values: Callable  # (state, scores, ring): O += V P
    score_count: int  # elements of `scores`


class Softmax(NamedTuple):
    """Online softmax over tiles of scores."""

    clear: Callable  # (state, phi, running, cursor, heads, scale, ring): set the state before the first tile
    fold: Callable  # (scores, state, operands, running, scale, ring): replace scores by weights, and update the state
    share: Callable  # (state, operands, states, heads, ring): write a warp's state to shared memory
    failed: Callable | None = None  # (state, states, heads): whether this thread has found invalid weights (unified_maximum.py)


@functools.cache
def make_steps(group, head_dim, shape, source, products, softmax):
    """(open_ring, heads_of, fill, take_tiles): the steps of a walk, for blocks of a SplitShape and groups of `group` query heads."""
    head_tiles, heads_here = head_tiles_of(group, head_dim)
    threads, tile, stages = 32 * shape.warps, shape.tile, shape.stages
    stage_bytes, warp_bytes, score_count = source.stage_bytes, source.ring_bytes, products.score_count
    all_stages = stages * stage_bytes

    @cuda.jit(device=True)
    def at(ring, pipeline):
        """The ring at the position of a Pipeline. Loops carry only the Pipeline; the fixed fields stay in registers."""
        return Ring(ring.words, ring.start, ring.base, pipeline.stage, pipeline.free, pipeline.parity, ring.warp, ring.lane, ring.blocks)

    @cuda.jit(device=True)
    def filling(ring, i):
        """The Pipeline with the oldest tile in stage 0 that fills stage i next."""
        return Pipeline(ring.base, uint32(ring.base + i * stage_bytes), uint32(0))

    @cuda.jit(device=True)
    def open_ring(block_tables, blocks):
        """Set up and return this warp's ring. All blocks together prefetch the block tables to L2, one line per thread."""
        words = cuda.shared.array(0, uint32, alignment=1024)
        warp, lane = quotient(cuda.threadIdx.x, 32), int32(uint32(cuda.threadIdx.x) % uint32(32))
        start = uint32(shared_address(words, 0))
        base = uint32(start + warp * warp_bytes)
        entry = uint32((cuda.blockIdx.x * threads + cuda.threadIdx.x) * 32)
        if entry < block_tables.shape[0] * block_tables.shape[1]:
            prefetch_l2(block_tables, entry)
        ring = Ring(words, start, base, base, base, uint32(0), warp, lane, blocks)
        source.setup(ring)
        return ring

    @cuda.jit(device=True)
    def heads_of(cursor, batch):
        """The query Heads of the cursor's head."""
        kv_head = quotient(cursor.head, head_tiles)
        head_tile = int32(cursor.head - kv_head * head_tiles)
        first, left = int32(kv_head * group + head_tile * heads_here), int32(min(heads_here, group - head_tile * heads_here))
        return Heads(batch.query_start[uint32(cursor.sequence)], first, left)

    @cuda.jit(device=True)
    def fill(ahead, ring, batch, cache):
        """Start copying the first tiles, one fewer than the ring holds. Returns (ahead, pipeline)."""
        for i in range(stages - 1):
            ahead = source.fetch(ahead, at(ring, filling(ring, i)), batch, cache)
        return ahead, filling(ring, stages - 1)

    @cuda.jit(device=True)
    def take_tiles(span, operands, state, running, ahead, ring, pipeline, batch, cache, scale):
        """Fold the tiles of a Span into the state. Returns (ahead, pipeline)."""
        scores = cuda.local.array(score_count, float32)
        position = span.position
        for _ in range(span.tiles):
            here = at(ring, pipeline)
            ahead = source.fetch(ahead, here, batch, cache)
            source.wait(here, position, span.visible)
            products.score(scores, operands, here)
            products.mask(scores, position, span.visible, ring.lane)
            softmax.fold(scores, state, operands, running, scale, here)
            products.multiply_values(state, scores, here)
            source.release(here)
            position = int32(position + tile)
            after, parity = uint32(here.stage + stage_bytes), here.parity
            if after == uint32(ring.base + all_stages):
                after, parity = ring.base, uint32(parity ^ 1)
            pipeline = Pipeline(after, here.stage, parity)
        return ahead, pipeline

    return open_ring, heads_of, fill, take_tiles


@functools.cache
def make_walk(group, head_dim, shape, plan, source, products, softmax, merge, load_early, zeros_early=False):
    """walk(query, cache, batch, out, lse, parts, operands, state, phi, scale), a device function for blocks of a SplitShape.

    phi: the unified maximum (ladder/unified_maximum.py); other softmaxes ignore it. load_early: load the queries of the next head while the
    tiles of this head are computed. zeros_early: write rows without keys before the first tile arrives, not at the end.
    """
    warps, keys, tile, turns = shape.warps, shape.keys, shape.tile, shape.turns
    _, heads_here = head_tiles_of(group, head_dim)
    state_shape, out_shape = (turns, warps, heads_here), (turns, warps, heads_here, pitch_of(head_dim))
    write_zeros = make_write_zeros(head_dim, 32 * warps, plan.visible_keys)
    open_ring, heads_of, fill, take_tiles = make_steps(group, head_dim, shape, source, products, softmax)
    produce, failed, synchronize, lookups = source.produce, softmax.failed, merge.synchronize, source.lookups
    has_producer, guarded = produce is not None, failed is not None

    @cuda.jit(device=True)
    def finish_part(states, cursor, cut, line, parts, arrived, out, lse, heads, scale):
        """Write this block's part of a head to memory; the last block to do so merges all parts."""
        slot = uint32(2 * cuda.blockIdx.x + (0 if line == cut.line else 1))
        merge.write_part(states, parts, slot, heads, scale)
        first_slot, count = plan.parts_of_head(cursor, cut, line)
        if merge.arrive(parts, first_slot, arrived) == count - 1:
            merge.merge_parts(parts, first_slot, count, out, lse, heads, scale)

    @cuda.jit(device=True)
    def walk(query, cache, batch, out, lse, parts, operands, state, phi, scale):
        all_max = cuda.shared.array(state_shape, float32)
        all_sum = cuda.shared.array(state_shape, float32)
        all_out = cuda.shared.array(out_shape, float32)
        arrived = cuda.shared.array(1, int32)
        # The block's run of the line, and the first tiles on their way.
        ring = open_ring(batch.block_tables, cuda.local.array(lookups, int32))
        now, cut = plan.begin(batch)
        if has_producer:
            cuda.syncthreads()  # all rings' barriers are made
            if ring.warp == warps:
                produce(now, ring, batch, cache)
                return
        ahead, pipeline = fill(source.aim(now, batch, ring), ring, batch, cache)
        if zeros_early:
            write_zeros(out, lse, batch)
        line, turn = cut.line, uint32(0)
        rescued = False  # whether these tiles are computed again with the running maximum
        if load_early and now.left > 0:
            products.load_query(operands, query, heads_of(now, batch), ring.lane)
        while now.left > 0:  # a head, or a part of one
            # The queries of this head, and those of the next one while this head's tiles are computed.
            heads, tiles = heads_of(now, batch), int32(min(now.left, now.tiles - now.tile))
            position = int32((now.first + now.tile) * tile + ring.warp * keys)
            span = Span(tiles, position, plan.visible_keys(now.sequence, batch))
            softmax.clear(state, phi, rescued, now, heads, scale, ring)
            if not load_early:
                products.load_query(operands, query, heads, ring.lane)
            products.prepare(operands, state, now, cache, ring.lane)
            following = plan.advance(now, tiles, batch)
            if load_early and following.left > 0:
                products.load_query(operands, query, heads_of(following, batch), ring.lane)
            ahead, pipeline = take_tiles(span, operands, state, rescued, ahead, ring, pipeline, batch, cache, scale)

            # The states of the warps meet in shared memory.
            states = WarpStates(all_max[turn], all_sum[turn], all_out[turn])
            softmax.share(state, operands, states, heads, ring)
            synchronize()
            if guarded:
                if not rescued and cuda.syncthreads_or(failed(state, states, heads)):
                    rescued = True
                    cp_async_wait_group_0()  # tiles fetched ahead are discarded and fetched again
                    cuda.syncwarp()
                    ahead, pipeline = fill(now, ring, batch, cache)
                    if load_early:
                        products.load_query(operands, query, heads, ring.lane)
                    continue
                rescued = False
            # The output of a whole head, or a part of it, to memory.
            if tiles == now.tiles:
                merge.write_whole(states, out, lse, heads, scale)
            else:
                finish_part(states, now, cut, line, parts, arrived, out, lse, heads, scale)
            if turns == 2:  # the next head's states go to the other buffer, which no thread reads
                turn = uint32(1 - turn)
            else:
                synchronize()  # all threads have read the shared states
            line = int32(line + tiles)
            now = following
        if not zeros_early:
            write_zeros(out, lse, batch)

    return walk
