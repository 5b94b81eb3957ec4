"""Tiles of the output of a GEMM: the order in which they are computed, and how their elements are stored.

The GPU works on some hundred consecutive tiles at once, and the operands that one of them has fetched from memory are in L2 for the others.
A square of tiles needs the fewest rows of x and weight: 64 tiles in a row need 1 + 64 strips of them, 8 x 8 need 8 + 8.
"""

from numba import cuda, float32, int32, uint32

from minllm import ptx

PACK = {"bfloat16": ptx.pack_bf16x2, "float16": ptx.pack_f16x2}


def make_tile_order(group: int):
    """The device function that gives a tile's (row, column): groups of `group` rows of tiles, each group walked down its rows first."""

    @cuda.jit(device=True)
    def tile_at(number, tiles_m, tiles_n):
        # In 32 bits: a 64-bit division takes ten times as long.
        tiles_in_a_group = uint32(group * tiles_n)
        group_number = uint32(number) // tiles_in_a_group
        inside = uint32(uint32(number) - group_number * tiles_in_a_group)
        first = uint32(group_number * uint32(group))
        height = uint32(min(uint32(tiles_m - first), uint32(group)))  # the last group may be lower
        column = inside // height
        return int32(first + inside - column * height), int32(column)

    return tile_at


def make_store_pair(pairs: str | None):
    """The device function that stores two neighbouring outputs.

    pairs: their dtype if one aligned store can hold both, else None.
    """
    pack = PACK.get(pairs)

    @cuda.jit(device=True)
    def store_pair(out, row, column, low, high):
        if row < out.shape[0] and column < out.shape[1]:
            if pairs == "float32":
                ptx.store_64(out, row * out.shape[1] + column, ptx.float_as_uint(float32(low)), ptx.float_as_uint(float32(high)))
            elif pairs is not None:
                ptx.store_32(out, row * out.shape[1] + column, pack(low, high))
            else:
                out[row, column] = low
                if column + 1 < out.shape[1]:
                    out[row, column + 1] = high

    return store_pair
