"""Sums of a tile, added in the order of the parts of K: among the warps of a block, or of a cluster.

    one row of x    sums[buffer, warp, row of the tile]      the first warp of a tile writes its outputs after a block barrier
    several rows    sums[buffer, part of K, pair, two tokens, 4]       of the pairs that a block owns: row low of both tokens, then row high

In a cluster they are sent by st.async to the block that writes them. Each of the two buffers has one mbarrier that tells its block that
all parts have arrived, and one that tells it that all blocks of the cluster have emptied theirs. So no warp waits at a block barrier, or at
a cluster barrier: its release would wait until all stores of the warp are visible to the whole GPU, which took a quarter of the kernel's
time. The warps take turns in adding the parts of a tile and writing its outputs.

Source: PTX ISA, "st.async", "mapa", "mbarrier".
"""

from collections.abc import Callable
from typing import NamedTuple

from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.quantized.tensor_core_gemv.outputs import Outputs
from minllm.kernels.matmul.quantized.tensor_core_gemv.tiling import BUFFERS, PAIRS, TILE_ROWS, TensorCoreGemvTiling
from minllm.tiles.pipeline import BARRIER_BYTES
from minllm.tiles.warp import ALL_LANES, WARP

BARRIER_WORDS = 2 * BUFFERS * BARRIER_BYTES // 4


def make_add_in_block(tiling: TensorCoreGemvTiling):
    """Return the device function: lane i < 8 of a tile's first warp gets the sums of rows i and i + 8 over its warps.

    All threads of the block must call it.
    """
    splits, sums_of_block = tiling.splits, tiling.warps * TILE_ROWS

    @cuda.jit(device=True, forceinline=True)
    def add_in_block(sums, i, warp, split, low, high):
        lane, value = int32(int32(cuda.threadIdx.x) & (WARP - 1)), float32(0)
        first = int32((i & 1) * sums_of_block + warp * TILE_ROWS)
        if lane & 3 == 0:
            sums[uint32(first + (lane >> 2))] = low
            sums[uint32(first + (lane >> 2) + PAIRS)] = high
        cuda.syncthreads()
        if split > 0:
            return float32(0), float32(0)
        for part in range(splits):
            value += sums[uint32(first + part * TILE_ROWS + (lane & (TILE_ROWS - 1)))]
        return value, cuda.shfl_xor_sync(ALL_LANES, value, PAIRS)

    return add_in_block


class Buffer(NamedTuple):
    """The buffer of the i-th tiles: its number, shared addresses of its mbarriers, and the phase parity of `full`."""

    number: int
    full: int
    empty: int
    phase: int


@cuda.jit(device=True, forceinline=True)
def buffer_of(barriers, i):
    """Return the Buffer for the sums of a cluster's i-th tiles."""
    number = uint32(i) % uint32(BUFFERS)
    full = uint32(ptx.shared_address(barriers, 0) + number * uint32(BARRIER_BYTES))
    return Buffer(number, full, uint32(full + uint32(BUFFERS * BARRIER_BYTES)), uint32(i) // uint32(BUFFERS) & uint32(1))


def make_begin(tiling: TensorCoreGemvTiling):
    """begin(barriers): a block initialises its mbarriers, before it arrives at the cluster barrier."""
    buffer_bytes, cluster = tiling.sums * 4, tiling.cluster

    @cuda.jit(device=True, forceinline=True)
    def begin(barriers):
        if cuda.threadIdx.x == 0:
            for i in range(BUFFERS):
                buffer = buffer_of(barriers, i)
                ptx.mbarrier_init(buffer.full, 1)
                ptx.mbarrier_init(buffer.empty, cluster)
                ptx.mbarrier_arrive_expect_tx(buffer.full, buffer_bytes)
            ptx.fence_mbarrier_init()

    return begin


def make_send(tiling: TensorCoreGemvTiling, first_word: int):
    """Return the device function that sends a warp's sums of the i-th tiles; buffers: memory[first_word :]."""
    pairs, splits, blocks, twos, sums_of_block = tiling.pairs, tiling.splits, tiling.tokens // 8, tiling.tokens // 2, tiling.sums

    @cuda.jit(device=True, forceinline=True)
    def send(memory, barriers, i, total, rank, split, tile):
        lane, part, buffer = uint32(cuda.threadIdx.x) & uint32(WARP - 1), uint32(rank * splits + split), buffer_of(barriers, i)
        if i >= BUFFERS:
            ptx.mbarrier_wait_parity(buffer.empty, buffer.phase ^ uint32(1))
        pair = uint32(uint32(tile) * uint32(PAIRS) + (lane >> uint32(2)))
        owner, own = uint32(pair // uint32(pairs)), uint32(pair % uint32(pairs))
        place = uint32(((part * uint32(pairs) + own) * uint32(twos) + (lane & uint32(3))) * uint32(4) + uint32(first_word))
        address = ptx.mapa(ptx.shared_address(memory, int32(buffer.number * uint32(sums_of_block) + place)), owner)
        full = ptx.mapa(buffer.full, owner)
        for block in range(blocks):
            one, two, three, four = total[4 * block], total[4 * block + 1], total[4 * block + 2], total[4 * block + 3]
            ptx.st_async_v4_f32(uint32(address + uint32(64 * block)), one, two, three, four, full)

    return send


def make_finish(tiling: TensorCoreGemvTiling, outputs: Outputs, first_word: int):
    """Return the device function: a warp adds the parts of the i-th tiles and writes its block's outputs."""
    own, parts, twos, prepare, write = tiling.pairs, tiling.parts_of_k, tiling.tokens // 2, outputs.prepare, outputs.write
    items, buffer_bytes, sums_of_block, cluster = tiling.tokens // 2 * tiling.pairs, tiling.sums * 4, tiling.sums, tiling.cluster
    rounds = ceil_div(items, WARP)
    held = 4 * rounds

    @cuda.jit(device=True, forceinline=True)
    def add_parts(memory, buffer, item, totals, at):
        """totals[at : at + 4] = the sums of a pair and two tokens over all parts of K."""
        for j in range(4):
            totals[at + j] = float32(0)
        for part in range(parts):
            first = uint32(buffer.number * uint32(sums_of_block) + (uint32(part * own * twos) + item) * uint32(4) + uint32(first_word))
            one, two, three, four = ptx.load_128(memory, first)
            totals[at] += ptx.uint_as_float(one)
            totals[at + 1] += ptx.uint_as_float(two)
            totals[at + 2] += ptx.uint_as_float(three)
            totals[at + 3] += ptx.uint_as_float(four)

    @cuda.jit(device=True, forceinline=True)
    def release(buffer):
        """Rearm `full`, and tell all blocks of the cluster that the warp has read the buffer."""
        lane = int32(cuda.threadIdx.x) & (WARP - 1)
        cuda.syncwarp()
        if lane == 0:
            ptx.mbarrier_arrive_expect_tx(buffer.full, buffer_bytes)
        cuda.syncwarp()
        if lane < cluster:
            ptx.mbarrier_arrive_relaxed_cluster(ptx.mapa(buffer.empty, uint32(lane)))

    @cuda.jit(device=True, forceinline=True)
    def finish(memory, barriers, i, is_used_again, arrays, m, rank, tile, pairs):
        totals, buffer, lane = cuda.local.array(held, float32), buffer_of(barriers, i), uint32(cuda.threadIdx.x) & uint32(WARP - 1)
        ptx.mbarrier_wait_parity(buffer.full, buffer.phase)
        for r in range(rounds):
            item = uint32(lane + uint32(r * WARP))
            if item < uint32(items):
                add_parts(memory, buffer, item, totals, 4 * r)
        if is_used_again:
            release(buffer)
        for r in range(rounds):
            item = uint32(lane + uint32(r * WARP))
            pair, token = int32(tile * PAIRS + rank * own + int32(item // uint32(twos))), int32(item % uint32(twos) * uint32(2))
            for column in range(2):
                if item < uint32(items) and pair < pairs and token + column < m:
                    row = int32(token + column)
                    write(arrays, prepare(arrays, int32(0), row, pair), row, pair, totals[4 * r + column], totals[4 * r + 2 + column])

    return finish


class ClusterSums(NamedTuple):
    """The device functions that add up sums in a cluster."""

    begin: Callable  # (barriers)
    send: Callable  # (memory, barriers, i, total, rank, split, tile)
    finish: Callable  # (memory, barriers, i, is_used_again, arrays, m, rank, tile, pairs)


def make_cluster_sums(tiling: TensorCoreGemvTiling, outputs: Outputs, first_word: int) -> ClusterSums:
    """Return the ClusterSums whose buffers begin at memory[first_word]."""
    return ClusterSums(make_begin(tiling), make_send(tiling, first_word), make_finish(tiling, outputs, first_word))
