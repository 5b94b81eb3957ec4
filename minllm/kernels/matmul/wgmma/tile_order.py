"""The order in which tiles of the output are computed, so that those computed at the same time read the same rows of x and weight.

The machine works on some hundred neighbouring tiles of this order at once, and what one of them has fetched from memory the others
find in the L2 cache. A square of tiles needs the fewest rows: 64 tiles in a row need 1 + 64 strips of x and weight, 8 x 8 need 8 + 8.
"""

from numba import cuda, int32, uint32


def make_tile_order(group: int):
    """The device function that gives a tile's (row, column): groups of `group` rows of tiles, each group walked down its rows first."""

    @cuda.jit(device=True)
    def tile_at(number, tiles_m, tiles_n):
        # In 32 bits: a division of 64 takes ten times as long.
        tiles_in_a_group = uint32(group * tiles_n)
        group_number = uint32(number) // tiles_in_a_group
        inside = uint32(uint32(number) - group_number * tiles_in_a_group)
        first = uint32(group_number * uint32(group))
        height = uint32(min(uint32(tiles_m - first), uint32(group)))  # the last group may be lower
        column = inside // height
        return int32(first + inside - column * height), int32(column)

    return tile_at
