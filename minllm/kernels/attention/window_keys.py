"""Which keys a row of queries sees, where the newest are kept in full precision and all before them as codes.

With a residual window of R keys (residual_window.py), the row at position p reads key j

    as a code            if                    j < L(p)
    in full precision    if    L(p) <= j <= p                  L(p) = floor(max(0, p + 1 - R) / GROUP) * GROUP

so that R keys at least are recent, and fewer than R + GROUP: keys become codes a whole group at a time, as scales by channel need it. L
depends on the position alone: a prompt means the same whole, in chunks or token by token. A sliding window cuts off the oldest of all.

Source: Liu et al. 2024, "KIVI", arXiv 2402.02750, section 3.2.
"""

import functools

from numba import cuda, int32

GROUP = 32  # keys that become codes together
ALL, CODES, RECENT = "all", "codes", "recent"  # parts of a row's keys


@cuda.jit(device=True)
def code_keys(position, residual_window):
    """L(position): how many of the first keys are codes for the row there."""
    return int32(int32(max(0, position + 1 - residual_window)) & -GROUP)


@functools.cache
def make_row_keys(part=ALL, residual_window=0):
    """(first_key, last_key): device functions that tell which keys of `part` a row sees."""

    @cuda.jit(device=True)
    def first_key(position, sliding_window):
        """The first key that the row at `position` sees; may be negative."""
        return int32(position - sliding_window + 1 if sliding_window > 0 else 0)

    @cuda.jit(device=True)
    def first_recent_key(position, sliding_window):
        """The same, of recent keys."""
        return max(first_key(position, sliding_window), code_keys(position, residual_window))

    @cuda.jit(device=True)
    def last_key(position):
        """The last one: its own."""
        return int32(position)

    @cuda.jit(device=True)
    def last_code(position):
        """The last one of those that are codes."""
        return int32(code_keys(position, residual_window) - 1)

    return first_recent_key if part == RECENT else first_key, last_code if part == CODES else last_key
