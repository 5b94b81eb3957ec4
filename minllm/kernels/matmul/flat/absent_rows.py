"""Clear the rows that a tile of x has beyond the last row of x, so that TMA does not have to.

A tile of x has the row count of the tensor cores' shape, and often x has fewer rows. TMA (the Tensor Memory Accelerator) fills the part of
a box beyond the array's edge with zeros, but slowly: on an H200 some eight cycles per row of 128 bytes, four times as long as loading
one, and again for every tile. So boxes end where x ends. The absent rows only reach sums that are not stored; they are set to zero in
shared memory once, before the first multiplication, and stay zero.

Source: PTX ISA, "Async proxy": after fence.proxy.async the tensor cores see what threads have written.
"""

from numba import cuda

from minllm import ptx


def make_clear_rows(stages: int, stage_bytes: int, line_bytes: int, threads: int, itemsize: int):
    """The device function with which `threads` threads clear rows of a tile in every stage of a ring; synchronise after it.

    itemsize: element size of the given shared array, in bytes.
    """
    pieces_per_row = line_bytes // 16

    @cuda.jit(device=True, forceinline=True)
    def clear_rows(memory, first_byte, rows, thread):
        """Clear `rows` rows from byte `first_byte` on, and the same rows in every stage."""
        for stage in range(stages):
            for piece in range(thread, rows * pieces_per_row, threads):
                ptx.store_128(memory, (first_byte + stage * stage_bytes + 16 * piece) // itemsize, 0, 0, 0, 0)
        ptx.fence_proxy_async()

    return clear_rows
