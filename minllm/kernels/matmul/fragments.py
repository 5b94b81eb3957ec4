"""Fragments: the parts of x, weight and out that a warp holds in its registers for mma.sync.

mma.sync m16n8k16 multiplies A [16, 16] by B [16, 8] and adds to C [16, 8], spread over the 32 lanes of a warp. With g = lane // 4 and t =
lane % 4, a lane holds

    A   4 words of two elements: rows g and g + 8 at columns 2t and 2t + 1, the same rows at columns 2t + 8 and 2t + 9
    B   2 words: column g, rows 2t and 2t + 1, rows 2t + 8 and 2t + 9
    C   4 float32: row g at columns 2t and 2t + 1, row g + 8 at the same columns

B's columns are rows of the other matrix, because weight is multiplied transposed. Both are read along k, so the plain ldmatrix fits both.
For many rows of x, A is x and B is weight; for few rows it is the other way round, because padding to 8 wastes less than to 16 (flat.py).

Source: PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type", and "ldmatrix".
"""

from numba import cuda, uint32

from minllm import ptx
from minllm.kernels.matmul.shared_tiles import make_place_of_chunk

MULTIPLY = {"bfloat16": ptx.mma_m16n8k16_bf16, "float16": ptx.mma_m16n8k16_f16}


def make_multiply_step(warp_a_rows: int, warp_b_rows: int, tile_k: int, dtype: str):
    """The device function with which a warp multiplies 16 columns of its rows of two tiles in shared memory.

    warp_a_rows is a multiple of 16, warp_b_rows of 8.
    """
    blocks_a, blocks_b = warp_a_rows // 16, warp_b_rows // 8
    a_words, b_words = 4 * blocks_a, 2 * blocks_b
    place_of_chunk = make_place_of_chunk(tile_k)
    multiply = MULTIPLY[dtype]

    @cuda.jit(device=True, forceinline=True)
    def multiply_step(total, a_address, b_address, warp_a, warp_b, lane, step):
        """total += A's rows . B's rows over the `step`-th 16 columns of both tiles."""
        a = cuda.local.array(a_words, uint32)
        b = cuda.local.array(b_words, uint32)
        for i in range(blocks_a):
            # Lanes 0-15 give the addresses of 16 rows' left halves, lanes 16-31 of their right halves: the order of operand A's words.
            row = uint32((warp_a * blocks_a + i) * 16 + (lane & 15))
            chunk = uint32(2 * step + (lane >> 4))
            ptx.ldmatrix_x4(a, 4 * i, uint32(a_address + uint32(16) * place_of_chunk(row, chunk)))
        for j in range(blocks_b // 2):
            # Lanes 0-7 and 8-15 give rows 0-7, left and right halves, lanes 16-31 rows 8-15: operand B's words, twice.
            row = uint32(warp_b * warp_b_rows + j * 16 + (lane & 7) + ((lane >> 4) << 3))
            chunk = uint32(2 * step + ((lane >> 3) & 1))
            ptx.ldmatrix_x4(b, 4 * j, uint32(b_address + uint32(16) * place_of_chunk(row, chunk)))
        if blocks_b % 2:  # the last 8 rows
            row = uint32(warp_b * warp_b_rows + (blocks_b - 1) * 8 + (lane & 7))
            chunk = uint32(2 * step + ((lane >> 3) & 1))
            ptx.ldmatrix_x2(b, b_words - 2, uint32(b_address + uint32(16) * place_of_chunk(row, chunk)))
        for i in range(blocks_a):
            for j in range(blocks_b):
                multiply(total, 4 * (i * blocks_b + j), a, 4 * i, b, 2 * j)

    return multiply_step


def make_multiply_tiles(warp_a_rows: int, warp_b_rows: int, tile_k: int, dtype: str):
    """The device function with which a warp multiplies its rows of a tile of A and of a tile of B, both in shared memory."""
    steps = tile_k // 16
    multiply_step = make_multiply_step(warp_a_rows, warp_b_rows, tile_k, dtype)

    @cuda.jit(device=True, forceinline=True)
    def multiply_tiles(total, shared, a_word, b_word, warp_a, warp_b, lane):
        """total += A's tile . B's tile, which begin at words `a_word` and `b_word` of `shared`."""
        a_address = ptx.shared_address(shared, a_word)
        b_address = ptx.shared_address(shared, b_word)
        # Unrolled by hand: the compiler does not unroll a body this long, and each step's loads should overlap the preceding mma.sync.
        multiply_step(total, a_address, b_address, warp_a, warp_b, lane, 0)
        if steps > 1:
            multiply_step(total, a_address, b_address, warp_a, warp_b, lane, 1)
        if steps > 2:
            multiply_step(total, a_address, b_address, warp_a, warp_b, lane, 2)
            multiply_step(total, a_address, b_address, warp_a, warp_b, lane, 3)

    return multiply_tiles
