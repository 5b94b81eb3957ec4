"""The keys that a query row reads: all up to its own or, with a residual window, only codes or only recent keys.

With a residual window (residual_window/reference.py) the row at position p reads keys before L(p) as codes, and keys from L(p) on in full
precision. A kernel reads one of the two parts (residual_window.py merges them). A sliding window cuts off the oldest keys of either.
"""

import functools

from numba import cuda, int32

from minllm.kernels.quantization.groups import TOKEN_GROUP
from minllm.runtime.kernel import check

ALL, CODES, RECENT = "all", "codes", "recent"  # the keys of a row that a kernel reads


def check_window(residual_window, kv_format=None):
    """Raise KernelArgumentError if the window is not whole groups, or is 0 although kv_format quantises keys by channel."""
    whole = residual_window >= 0 and residual_window % TOKEN_GROUP == 0
    check(whole, f"residual_window is {residual_window}; it must be 0 (none) or a multiple of {TOKEN_GROUP} keys")
    if kv_format and kv_format.keys_by_channel:
        check(residual_window > 0, f"{kv_format.name} keeps its newest keys as they are: residual_window must be {TOKEN_GROUP} or more")


@cuda.jit(device=True)
def code_keys(position, residual_window):
    """L(position): the number of first keys that the row at `position` reads as codes."""
    return int32(int32(max(0, position + 1 - residual_window)) & -TOKEN_GROUP)


@functools.cache
def make_row_keys(part=ALL, residual_window=0):
    """(first_key, last_key): device functions for the first and last key of `part` that a row sees."""

    @cuda.jit(device=True)
    def first_key(position, sliding_window):
        """The first key that the row at `position` sees; may be negative."""
        return int32(position - sliding_window + 1 if sliding_window > 0 else 0)

    @cuda.jit(device=True)
    def first_recent_key(position, sliding_window):
        """The first recent key that the row at `position` sees."""
        return max(first_key(position, sliding_window), code_keys(position, residual_window))

    @cuda.jit(device=True)
    def last_key(position):
        """The last key that the row at `position` sees: its own."""
        return int32(position)

    @cuda.jit(device=True)
    def last_code(position):
        """The last key that the row at `position` reads as codes."""
        return int32(code_keys(position, residual_window) - 1)

    return first_recent_key if part == RECENT else first_key, last_code if part == CODES else last_key
