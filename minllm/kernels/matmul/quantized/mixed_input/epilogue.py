"""Epilogue of the persistent mixed-input GEMM: outputs leave by TMA while the next tile is multiplied.

wgmma leaves a warp 16 rows of weight: of each 8 tokens, lane 4 g + t has tokens 2 t and 2 t + 1 of rows g and g + 8. In out the rows of
weight are columns, and neighbours there must be neighbours in memory. So a consumer adds the bias, or multiplies silu(gate) and up, in
registers, and stores 8x8 tiles to shared memory transposed, swizzled as TMA reads them. One thread then issues the TMA store of a batch of
tokens, which skips what lies outside out.

Source: PTX ISA, "stmatrix" (.trans), "cp.async.bulk.tensor"; N. Shazeer, "GLU Variants Improve Transformer", 2020 (SwiGLU).
"""

from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.kernels.activation.sigmoid import sigmoid
from minllm.kernels.matmul.output_tiles import PACK
from minllm.kernels.matmul.quantized.mixed_input.tiling import MixedInputTiling
from minllm.tiles import warpgroup
from minllm.tiles.unrolled import unrolled


def make_store_tile(tiling: MixedInputTiling, dtype: str, gated: bool):
    """Return the device function with which a consumer stores the sums of its rows to out, 16-bit floats of `dtype`."""
    tokens, columns = tiling.store_box(gated)
    row_bytes, pack = 2 * columns, PACK[dtype]
    row_pieces, rows_across_the_banks = row_bytes // 16, 128 // row_bytes
    batch_bytes = tokens * row_bytes

    @cuda.jit(device=True, forceinline=True)
    def address_of(staging, token, piece):
        """The shared address of 8 outputs of a token: the piece-th 16 bytes of its row."""
        swizzled = uint32(piece) ^ (uint32(token) // uint32(rows_across_the_banks) & uint32(row_pieces - 1))
        return uint32(staging + uint32(token * row_bytes) + swizzled * uint32(16))

    @cuda.jit(device=True, forceinline=True)
    def lay_down(block, sums, at, biases, staging, warp, lane, words):
        """Write 16 tokens of the warp's 16 outputs; gated, of its 8: silu(gate) * up, from the sums of rows g and g + 8."""
        if gated:
            for i in range(2):
                first, second = sums[at + 4 * i], sums[at + 4 * i + 1]
                words[i] = pack(first * sigmoid(first) * sums[at + 4 * i + 2], second * sigmoid(second) * sums[at + 4 * i + 3])
            ptx.stmatrix_x2_trans(address_of(staging, 16 * block + (lane & 15), warp), words, 0)
        else:
            for i in range(4):
                bias = biases[0] if i % 2 == 0 else biases[1]
                words[i] = pack(sums[at + 2 * i] + bias, sums[at + 2 * i + 1] + bias)
            token = 16 * block + (lane >> 4) * 8 + (lane & 7)
            ptx.stmatrix_x4_trans(address_of(staging, token, 2 * warp + (lane >> 3 & 1)), words, 0)

    @cuda.jit(device=True, forceinline=True)
    def store_batch(batch, sums, biases, out_map, staging, token, column, barrier, thread):
        """Store the batch-th part of the tile's tokens, once the outputs before have left shared memory."""
        words, warp, lane = cuda.local.array(4, uint32), thread >> 5, thread & 31
        if thread == 0:
            ptx.cp_async_bulk_wait_group_read_0()
        warpgroup.sync(barrier)
        for block in range(tokens // 16):
            lay_down(block, sums, (batch * tokens + 16 * block) // 2, biases, staging, warp, lane, words)
        ptx.fence_proxy_async()
        warpgroup.sync(barrier)
        if thread == 0:
            ptx.cp_async_bulk_tensor_2d_global_shared(out_map, column, int32(token + batch * tokens), staging)
            ptx.cp_async_bulk_commit_group()

    store_batches = unrolled(store_batch, tiling.batches)

    @cuda.jit(device=True, forceinline=True)
    def bias_of(bias, column):
        """The bias of a column; the last one beyond the edge, because outputs there are not stored."""
        return float32(0) if bias is None else float32(bias[uint32(min(int32(column), int32(bias.shape[0] - 1)))])

    @cuda.jit(device=True, forceinline=True)
    def store_tile(sums, bias, out_map, staging, token, column, consumer, thread):
        """out[token : + tokens, column : + columns] of the block = the sums; consumer, thread: the warpgroup, and the thread in it."""
        column, row = int32(column + consumer * columns), (thread >> 5) * 16 + (thread >> 2 & 7)
        biases = bias_of(bias, column + row), bias_of(bias, column + row + 8)
        here = uint32(staging + uint32(consumer * batch_bytes))
        store_batches(sums, biases, out_map, here, token, column, 1 + consumer, thread)

    return store_tile
