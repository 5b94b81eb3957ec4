"""A warp's loop over the tiles of a head, and the ring of tiles that feeds it.

    for each tile:  start copying a later tile, wait for this one, S = K q, mask, P = softmax S, O += V P

Every warp has a ring of tiles in shared memory of its own, so that no warp waits for another within a head. What fills the ring, the
matmuls and the softmax are parameters, NamedTuples of device functions.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from numba import cuda, float32, int32, uint32

from minllm.kernels.attention.split_tensor_core.block_sizes import head_tiles_of
from minllm.kernels.attention.split_tensor_core.plan import quotient
from minllm.ptx import prefetch_l2, shared_address
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
    """Device functions that load tiles."""

    setup: Callable  # (ring): prepare a warp's ring
    fetch: Callable  # (ahead, ring, batch, cache) -> ahead: start copying the tile at the Cursor `ahead` to ring.free, and advance
    wait: Callable  # (ring, position, visible): wait until the oldest tile has arrived; its first key is at `position`
    release: Callable  # (ring): called when the lanes have read the oldest tile
    stage_bytes: int  # from one stage to the next
    ring_bytes: int  # from one warp's ring to the next


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

    clear: Callable  # (state, phi, running): set the state before the first tile
    fold: Callable  # (scores, state, operands, running, scale, ring): replace scores by weights, and update the state
    share: Callable  # (state, operands, states, heads, ring): write a warp's state to shared memory
    failed: Callable | None = None  # (state, states, heads): whether this thread has found invalid weights (unified_maximum.py)


@functools.cache
def make_steps(group, head_dim, shape, source, products, softmax):
    """(open_ring, heads_of, fill, take_tiles): device functions for blocks of a SplitShape and groups of `group` query heads."""
    head_tiles, heads_here = head_tiles_of(group, head_dim)
    threads, tile, stages = 32 * shape.warps, shape.tile, shape.stages
    stage_bytes, warp_bytes, score_count = source.stage_bytes, source.ring_bytes, products.score_count
    all_stages = stages * stage_bytes

    @cuda.jit(device=True)
    def at(ring, pipeline):
        """The ring at the position of a Pipeline. Loops carry only the Pipeline; the fixed fields stay in registers."""
        return Ring(ring.words, ring.start, ring.base, pipeline.stage, pipeline.free, pipeline.parity, ring.warp, ring.lane)

    @cuda.jit(device=True)
    def filling(ring, i):
        """The Pipeline with the oldest tile in stage 0 that fills stage i next."""
        return Pipeline(ring.base, uint32(ring.base + i * stage_bytes), uint32(0))

    @cuda.jit(device=True)
    def open_ring(block_tables):
        """Set up and return this warp's ring. All blocks together prefetch the block tables to L2, one line per thread."""
        words = cuda.shared.array(0, uint32, alignment=1024)
        warp, lane = quotient(cuda.threadIdx.x, 32), int32(uint32(cuda.threadIdx.x) % uint32(32))
        start = uint32(shared_address(words, 0))
        base = uint32(start + warp * warp_bytes)
        entry = uint32((cuda.blockIdx.x * threads + cuda.threadIdx.x) * 32)
        if entry < block_tables.shape[0] * block_tables.shape[1]:
            prefetch_l2(block_tables, entry)
        ring = Ring(words, start, base, base, base, uint32(0), warp, lane)
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
