"""The sums of a tile on their way to the block that writes them: through distributed shared memory, in the order of the parts of K.

    sums[part of K, token, row of a pair, pair]     of the pairs that a block of the cluster owns; two such buffers, for two tiles
"""

from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.kernels.matmul.quantized.batched_gemv.outputs import Outputs
from minllm.kernels.matmul.quantized.batched_gemv.tiling import PAIRS, BatchedGemvTiling
from minllm.tiles.warp import WARP


def make_send(tiling: BatchedGemvTiling):
    """The device function with which a warp sends the sums of its part of K."""
    pairs, splits, blocks, tokens = tiling.pairs, tiling.splits, tiling.tokens // 8, tiling.tokens

    @cuda.jit(device=True, forceinline=True)
    def send(sums, buffer, total, rank, split, tile):
        lane, part = uint32(cuda.threadIdx.x) & uint32(WARP - 1), uint32(rank * splits + split)
        pair = uint32(uint32(tile) * uint32(PAIRS) + (lane >> uint32(2)))
        owner, own = uint32(pair // uint32(pairs)), uint32(pair % uint32(pairs))
        token = uint32(part * uint32(tokens) + (lane & uint32(3)) * uint32(2))
        first = ptx.shared_address(sums, int32(uint32(buffer) + token * uint32(2 * pairs) + own))
        address = ptx.mapa(first, owner)
        for block in range(blocks):
            for row in range(2):
                for column in range(2):
                    place = uint32(address + uint32(4 * ((8 * block + column) * 2 * pairs + row * pairs)))
                    ptx.st_shared_cluster_f32(place, total[4 * block + 2 * row + column])

    return send


def make_finish(tiling: BatchedGemvTiling, outputs: Outputs, unit: float):
    """The device function with which a block adds the parts of its pairs' sums, and writes the outputs."""
    own, parts, tokens, write, per_unit = tiling.pairs, tiling.parts_of_k, tiling.tokens, outputs.write, 1 / unit
    items, stride, threads = tokens * tiling.pairs, tiling.tokens * 2 * tiling.pairs, tiling.threads

    @cuda.jit(device=True, forceinline=True)
    def add_parts(sums, first):
        """The sum over the parts of K of the number at `first`, in units of 1."""
        value = float32(0)
        for part in range(parts):
            value += sums[uint32(first + part * stride)]
        return value * float32(per_unit)

    @cuda.jit(device=True, forceinline=True)
    def finish(sums, buffer, bias, out, rank, tile, pairs):
        item = int32(cuda.threadIdx.x)
        while item < items:
            token, mine = int32(uint32(item) // uint32(own)), int32(uint32(item) % uint32(own))
            pair = int32(tile * PAIRS + rank * own + mine)
            if token < int32(out.shape[0]) and pair < pairs:
                place = int32(buffer + token * 2 * own + mine)
                write(bias, out, token, pair, add_parts(sums, place), add_parts(sums, int32(place + own)))
            item = int32(item + threads)

    return finish
