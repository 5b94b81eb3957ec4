"""Tiles in shared memory, in the layout that TMA writes and wgmma reads.

A tile [rows, columns] of 16-bit elements consists of panels of swizzle / 2 columns, one after another. A row of a panel has `swizzle`
bytes; TMA permutes its 16-byte chunks (the swizzle), so that the same chunk of eight rows lies in eight different groups of banks. One TMA
box fills a panel, or some of its rows. Tiles begin at multiples of ALIGNMENT.

PTX ISA, "Asynchronous warpgroup level matrix shared memory layout"; CUDA driver API, "cuTensorMapEncodeTiled".
"""

from typing import NamedTuple

from numba import cuda, uint32

from minllm import ptx

ALIGNMENT = 1024  # bytes: eight rows of 128, after which the swizzle repeats


class SharedTile(NamedTuple):
    """A tile [rows, columns] of 16-bit elements; swizzle, in bytes, is 128, 64 or 32."""

    rows: int
    columns: int
    swizzle: int = 128

    @property
    def panel_columns(self) -> int:
        """Columns per panel."""
        return self.swizzle // 2

    @property
    def panels(self) -> int:
        """Panels per tile; columns of the last panel beyond those of the tile hold zeros."""
        return -(-self.columns // self.panel_columns)

    @property
    def panel_bytes(self) -> int:
        """Bytes from one panel to the next."""
        return self.rows * self.swizzle

    @property
    def bytes(self) -> int:
        """Bytes of the tile."""
        return self.panels * self.panel_bytes


@cuda.jit(device=True, forceinline=True)
def first_tile_address(memory):
    """The first shared address in the dynamic shared array `memory` at which a tile may begin."""
    return uint32((ptx.shared_address(memory, 0) + uint32(ALIGNMENT - 1)) & uint32(0xFFFFFFFF ^ (ALIGNMENT - 1)))


def make_clear_rows(stages: int, stage_bytes: int, row_bytes: int, threads: int, itemsize: int):
    """The device function with which `threads` threads clear rows of a tile in every stage of a ring; they must synchronise after it.

    It clears rows that are never loaded. TMA fills the part of a box beyond an array's edge with zeros, but slowly: about eight cycles per
    row of 128 bytes on an H200, four times as long as for a row that it loads, and again for every tile. So boxes end at the end of the
    array, and the rows after it are cleared once. itemsize: bytes per element of the shared array passed as `memory`.
    """
    chunks = row_bytes // 16

    @cuda.jit(device=True, forceinline=True)
    def clear_rows(memory, first_byte, rows, thread):
        """Clear `rows` rows from byte `first_byte` on, in every stage."""
        for stage in range(stages):
            for chunk in range(thread, rows * chunks, threads):
                ptx.store_128(memory, (first_byte + stage * stage_bytes + 16 * chunk) // itemsize, 0, 0, 0, 0)
        ptx.fence_proxy_async()  # makes the threads' writes visible to the tensor cores

    return clear_rows
