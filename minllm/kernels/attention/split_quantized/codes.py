"""From 8- and 4-bit codes to operands of tensor cores, in registers: which heads, groups and channels a lane holds.

ldmatrix moves 16-bit elements. A lane receives words of four bytes, or eight nibbles, in place of two 16-bit numbers: for K, with rows
loaded as they are, neighbouring channels of one key; for V, which ldmatrix transposes, the same few channels of two keys. Any channel may
go to any row or column of mma, if queries and output use the same order: so every word becomes operands in place, without any exchange
between lanes.

integers.py multiplies integer keys as integers. Values are multiplied by weights, which are fractions, and are therefore converted to
float16, as are keys that are 8-bit floats (floats.py); float16 holds all codes exactly. A byte below a byte of zeros is the float16 code *
2**-24: float16's denormal numbers are integers times 2**-24, and tensor cores multiply them like any others. Factors like 2**24 cost
nothing: they are included in the scales of whole matmuls (softmax.py).

The accumulator of mma gives a lane two neighbouring columns of a row: columns 2 t and 2 t + 1, t = lane % 4. Columns map to heads:

    column c of a tile of eight heads is head c // 2 + 4 * (c % 2): a lane has heads t and t + 4
    if a block has at most four heads, both columns belong to head t: a lane has one head, and computes each exponential of softmax once

The two columns of one head can differ: by the halves of an integer query, or by the groups of their weights' scales (products.py).
"""

from dataclasses import dataclass
from typing import NamedTuple

from minllm.runtime.array_protocol import Array

EXPONENT_BITS, TWO_EXPONENTS = 0x7F800000, 0x7F000000  # float32: the bits of 2**e are TWO_EXPONENTS minus the bits of 2**-e


@dataclass(frozen=True)
class CodeLanes:
    """The heads and groups that a lane holds."""

    heads: int  # per lane
    columns: int  # tiles of 8 heads
    halves: int  # heads per lane and tile, 1 or 2
    shared: bool  # whether the two columns of a head share its groups
    lane_groups: int  # groups of values per column

    @property
    def parts(self):
        """2 if a lane's two columns of accumulators differ, else 1."""
        return 2 if self.halves == 2 or self.shared else 1

    @property
    def zero_tiles(self):
        """mma instructions that multiply weights and zeros, for 16 keys and 8 heads; each covers two of a lane's groups."""
        return -(-self.lane_groups // 2)


def lanes_of(kv_format, heads_here):
    """The CodeLanes for a block of `heads_here` query heads."""
    columns, halves = -(-heads_here // 8), 1 if heads_here <= 4 else 2
    shared = halves == 1 and kv_format.groups % 2 == 0
    return CodeLanes(columns * halves, columns, halves, shared, kv_format.groups // 2 if shared else kv_format.groups)


class QueryOperands(NamedTuple):
    """Query heads in registers."""

    fragments: Array  # uint32: B operands; floats: [columns, steps of 16 channels, 2], integers: [a lane's heads, words of 4 channels]
    loaded: Array  # uint32: the queries of the next head of the line, as in memory
    units: Array  # float32 [a lane's heads]: factors on the scores
    sums: Array  # float32 [groups, a lane's heads]: for integers, sum(q) in the same units
