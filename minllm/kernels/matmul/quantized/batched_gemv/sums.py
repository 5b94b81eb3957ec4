"""The sums of a tile on their way to the block that writes them: by st.async, and added in the order of the parts of K.

    sums[buffer, part of K, pair, two tokens, 4]       of the pairs that a block of the cluster owns: row low of both tokens, then row high

An mbarrier of each of the two buffers tells the owner that all parts are there. So no warp passes a barrier of the cluster, whose release
would wait until all that the warp has stored is visible to the whole GPU: a quarter of the time of the kernel.

Two buffers suffice. A block sends the sums of tile i after it has those of tile i - 1 from all blocks, and each of them sent these after
all its warps had written the outputs of tile i - 2, whose buffer this is.

Source: PTX ISA, "st.async", "mapa".
"""

from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.kernels.matmul.quantized.batched_gemv.outputs import Outputs
from minllm.kernels.matmul.quantized.batched_gemv.tiling import PAIRS, BatchedGemvTiling
from minllm.tiles.pipeline import BARRIER_BYTES
from minllm.tiles.warp import WARP

BUFFERS = 2


def make_begin(tiling: BatchedGemvTiling):
    """The device function with which a block makes its mbarriers; then it arrives at the cluster's barrier."""
    buffer_bytes = tiling.sums * 4

    @cuda.jit(device=True, forceinline=True)
    def begin(barriers):
        if cuda.threadIdx.x == 0:
            for buffer in range(BUFFERS):
                barrier = uint32(ptx.shared_address(barriers, 0) + uint32(buffer * BARRIER_BYTES))
                ptx.mbarrier_init(barrier, 1)
                ptx.mbarrier_arrive_expect_tx(barrier, buffer_bytes)
            ptx.fence_mbarrier_init()

    return begin


def make_send(tiling: BatchedGemvTiling):
    """The device function with which a warp sends the sums of its part of K of the cluster's i-th tiles."""
    pairs, splits, blocks, twos, sums_of_block = tiling.pairs, tiling.splits, tiling.tokens // 8, tiling.tokens // 2, tiling.sums

    @cuda.jit(device=True, forceinline=True)
    def send(sums, barriers, i, total, rank, split, tile):
        lane, part, buffer = uint32(cuda.threadIdx.x) & uint32(WARP - 1), uint32(rank * splits + split), uint32(i) & uint32(1)
        pair = uint32(uint32(tile) * uint32(PAIRS) + (lane >> uint32(2)))
        owner, own = uint32(pair // uint32(pairs)), uint32(pair % uint32(pairs))
        place = (part * uint32(pairs) + own) * uint32(twos) + (lane & uint32(3))
        address = ptx.mapa(ptx.shared_address(sums, int32(buffer * uint32(sums_of_block) + place * uint32(4))), owner)
        barrier = ptx.mapa(uint32(ptx.shared_address(barriers, 0) + buffer * uint32(BARRIER_BYTES)), owner)
        for block in range(blocks):
            one, two, three, four = total[4 * block], total[4 * block + 1], total[4 * block + 2], total[4 * block + 3]
            ptx.st_async_v4_f32(uint32(address + uint32(64 * block)), one, two, three, four, barrier)

    return send


def make_finish(tiling: BatchedGemvTiling, outputs: Outputs, unit: float):
    """The device function with which a block adds the parts of its pairs' sums of the cluster's i-th tiles, and writes the outputs."""
    own, parts, twos, write, per_unit = tiling.pairs, tiling.parts_of_k, tiling.tokens // 2, outputs.write, 1 / unit
    items, threads, buffer_bytes, sums_of_block = tiling.tokens // 2 * tiling.pairs, tiling.threads, tiling.sums * 4, tiling.sums

    @cuda.jit(device=True, forceinline=True)
    def wait(barriers, i):
        """All threads wait for the sums; one of them prepares the barrier for the tiles after the next."""
        barrier = uint32(ptx.shared_address(barriers, 0) + (uint32(i) & uint32(1)) * uint32(BARRIER_BYTES))
        ptx.mbarrier_wait_parity(barrier, uint32(i) >> uint32(1) & uint32(1))
        if cuda.threadIdx.x == 0:
            ptx.mbarrier_arrive_expect_tx(barrier, buffer_bytes)

    @cuda.jit(device=True, forceinline=True)
    def add_parts(sums, i, item, four):
        """four = the sums of two tokens over the parts of K, in units of 1."""
        for j in range(4):
            four[j] = float32(0)
        for part in range(parts):
            first = uint32((uint32(i) & uint32(1)) * uint32(sums_of_block) + (uint32(part * own * twos) + item) * uint32(4))
            one, two, three, other = ptx.load_128(sums, first)
            four[0] += ptx.uint_as_float(one)
            four[1] += ptx.uint_as_float(two)
            four[2] += ptx.uint_as_float(three)
            four[3] += ptx.uint_as_float(other)
        for j in range(4):
            four[j] *= float32(per_unit)

    @cuda.jit(device=True, forceinline=True)
    def finish(sums, barriers, i, bias, out, rank, tile, pairs):
        wait(barriers, i)
        four, item = cuda.local.array(4, float32), int32(cuda.threadIdx.x)
        while item < items:
            mine, token = int32(uint32(item) // uint32(twos)), int32(uint32(item) % uint32(twos) * uint32(2))
            pair = int32(tile * PAIRS + rank * own + mine)
            add_parts(sums, i, uint32(item), four)
            for column in range(2):
                if token + column < int32(out.shape[0]) and pair < pairs:
                    write(bias, out, int32(token + column), pair, four[column], four[2 + column])
            item = int32(item + threads)

    return finish
