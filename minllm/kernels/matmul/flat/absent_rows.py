"""Rows of x that are not there: cleared once, so that nobody has to fetch them.

A tile of x has as many rows as the tensor cores' shape asks for, and often x has fewer. What of a box lies beyond the array's edge the copy
engine fills with zeros, but slowly: measured on an H200, some eight cycles for a row of 128 bytes, four times as long as for one that it
fetches, and again for every tile. So boxes end where x ends. What lies behind them in shared memory reaches only sums that are not stored;
it is set to zero before the first product, and stays zero.

Source: PTX ISA, "Async proxy": what threads have written is seen by the tensor cores after fence.proxy.async.
"""

from numba import cuda

from minllm import ptx


def make_clear_rows(stages: int, stage_bytes: int, line_bytes: int, threads: int, itemsize: int):
    """The device function with which `threads` threads clear rows of a tile in every stage of a ring; they meet after it.

    itemsize: bytes of an element of the shared array that is given.
    """
    pieces_a_row = line_bytes // 16

    @cuda.jit(device=True, forceinline=True)
    def clear_rows(memory, first_byte, rows, thread):
        """`rows` rows from byte `first_byte` on, and the same in every stage."""
        for stage in range(stages):
            for piece in range(thread, rows * pieces_a_row, threads):
                ptx.store_128(memory, (first_byte + stage * stage_bytes + 16 * piece) // itemsize, 0, 0, 0, 0)
        ptx.fence_proxy_async()

    return clear_rows
