"""Fragments: the pieces of x, weight and out that a warp holds in its registers for the tensor cores.

mma.sync m16n8k16 multiplies A [16, 16] by B [16, 8] and adds to C [16, 8], spread over the 32 lanes of a warp. With g = lane // 4 and t =
lane % 4, a lane holds

    A   4 words of two elements: rows g and g + 8 at columns 2t and 2t + 1, the same rows at columns 2t + 8 and 2t + 9
    B   2 words: column g, rows 2t and 2t + 1, rows 2t + 8 and 2t + 9
    C   4 float32: row g at columns 2t and 2t + 1, row g + 8 at the same

A is 16 rows of x, and B is 8 rows of weight: B's columns are weight's rows, because weight is multiplied transposed. Both are read along
k, so the plain ldmatrix fits both.

Source: PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type", and "ldmatrix".
"""

from numba import cuda, uint32

from minllm import ptx
from minllm.kernels.matmul.shared_tiles import PACK, make_place_of_chunk

MULTIPLY = {"bfloat16": ptx.mma_m16n8k16_bf16, "float16": ptx.mma_m16n8k16_f16}


def make_multiply_tiles(warp_m_rows: int, warp_n_rows: int, tile_k: int, dtype: str):
    """The device function with which a warp multiplies its rows of a tile of x and of a tile of weight, both in shared memory."""
    blocks_m = warp_m_rows // 16  # of 16 x 16, operand A
    pairs_n = warp_n_rows // 16  # of two 16 x 8, operand B
    blocks_n = 2 * pairs_n
    x_words, weight_words = 4 * blocks_m, 4 * pairs_n
    steps = tile_k // 16
    place_of_chunk = make_place_of_chunk(tile_k)
    multiply = MULTIPLY[dtype]

    @cuda.jit(device=True, forceinline=True)
    def multiply_step(total, x_address, weight_address, warp_m, warp_n, lane, step):
        """total += the products of 16 columns of k, the `step`-th of the tiles."""
        x_fragments = cuda.local.array(x_words, uint32)
        weight_fragments = cuda.local.array(weight_words, uint32)
        for i in range(blocks_m):
            # Lanes 0-15 bring the addresses of 16 rows' left halves, lanes 16-31 of their right halves: the order of operand A's words.
            row = uint32((warp_m * blocks_m + i) * 16 + (lane & 15))
            chunk = uint32(2 * step + (lane >> 4))
            ptx.ldmatrix_x4(x_fragments, 4 * i, uint32(x_address + uint32(16) * place_of_chunk(row, chunk)))
        for j in range(pairs_n):
            # Lanes 0-7 and 8-15 bring rows 0-7, left and right halves, lanes 16-31 rows 8-15: operand B's words, twice.
            row = uint32((warp_n * pairs_n + j) * 16 + (lane & 7) + ((lane >> 4) << 3))
            chunk = uint32(2 * step + ((lane >> 3) & 1))
            ptx.ldmatrix_x4(weight_fragments, 4 * j, uint32(weight_address + uint32(16) * place_of_chunk(row, chunk)))
        for i in range(blocks_m):
            for j in range(blocks_n):
                multiply(total, 4 * (i * blocks_n + j), x_fragments, 4 * i, weight_fragments, 2 * j)

    @cuda.jit(device=True, forceinline=True)
    def multiply_tiles(total, shared, x_word, weight_word, warp_m, warp_n, lane):
        """total += x tile . weight tile, which begin at words `x_word` and `weight_word` of `shared`."""
        x_address = ptx.shared_address(shared, x_word)
        weight_address = ptx.shared_address(shared, weight_word)
        # Written out: the compiler does not unroll a body this long, and a step's loads should overlap the products of the step before.
        multiply_step(total, x_address, weight_address, warp_m, warp_n, lane, 0)
        if steps > 1:
            multiply_step(total, x_address, weight_address, warp_m, warp_n, lane, 1)
        if steps > 2:
            multiply_step(total, x_address, weight_address, warp_m, warp_n, lane, 2)
            multiply_step(total, x_address, weight_address, warp_m, warp_n, lane, 3)

    return multiply_tiles


def make_store_pair(dtype: str, paired: bool):
    """The device function that stores two neighbouring outputs; `paired` where they are of `dtype` and share an aligned word."""
    pack = PACK[dtype]

    @cuda.jit(device=True)
    def store_pair(out, row, column, low, high):
        if row < out.shape[0] and column < out.shape[1]:
            if paired:
                ptx.store_32(out, row * out.shape[1] + column, pack(low, high))
            else:
                out[row, column] = low
                if column + 1 < out.shape[1]:
                    out[row, column + 1] = high

    return store_pair
