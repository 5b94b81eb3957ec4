"""Which heads, keys and groups a lane has where quantised keys and values are multiplied (split_quantized.py).

mma leaves two neighbouring columns of a row of products with a lane: columns 2 t and 2 t + 1, t = lane % 4. A column is not bound to be
the head of the same number, and this is how they are bound:

    column c of a tile of eight heads is head c // 2 + 4 * (c % 2): a lane has heads t and t + 4
    where a block has no more than four heads, both columns belong to head t: a lane has one head, no lane has none, and the exponentials
    of softmax are computed once each

Two columns for one head can do more than repeat each other. Where keys are integers, one holds the upper and one the lower half of the
query (code_query.py). And weights of values that have several groups take along the scales of the first half of the groups in one
column, and those of the second half in the other (code_tile.py).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class CodeLanes:
    """heads: that a lane has; columns: tiles of 8 heads; halves: heads that a lane has of each of these, 1 or 2.

    shared: whether the two columns of a head share its groups; lane_groups: groups of values that a lane's column has.
    """

    heads: int
    columns: int
    halves: int
    shared: bool
    lane_groups: int

    @property
    def parts(self):
        """How many of a lane's two columns hold something of their own."""
        return 2 if self.halves == 2 or self.shared else 1


def lanes_of(kv_format, heads_here):
    """The CodeLanes of a block of `heads_here` query heads."""
    columns, halves = -(-heads_here // 8), 1 if heads_here <= 4 else 2
    shared = halves == 1 and kv_format.groups % 2 == 0
    return CodeLanes(columns * halves, columns, halves, shared, kv_format.groups // 2 if shared else kv_format.groups)
