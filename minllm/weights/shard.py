"""Tensor parallelism cuts a matrix along its outputs or along its inputs; each rank loads its own part.

    column-parallel  outputs are cut: every rank computes other outputs of the same x (q, k and v by heads, gate and up)
    row-parallel     inputs are cut: every rank multiplies its own part of x, and the results add up (output projection, down)

A weight is [outputs, inputs] here, so column-parallel cuts its rows: the names are Megatron's, whose matrices are transposed. Source:
Shoeybi et al. 2019, "Megatron-LM", section 3.
"""

from typing import NamedTuple

from minllm.errors import InvalidOptionError

OUTPUTS, INPUTS = 0, 1  # axes of a weight


class Shard(NamedTuple):
    """The part of a Linear that GPU `rank` of `ranks` holds; axis is OUTPUTS or INPUTS."""

    axis: int = OUTPUTS
    rank: int = 0
    ranks: int = 1

    def part(self, units: int, axis: int) -> range:
        """Those of `units` heads, rows or columns along `axis` that this rank holds: all along the other axis.

        If there are more ranks than units (KV heads), each unit is held by several. InvalidOptionError if neither divides the other.
        """
        if axis != self.axis or self.ranks == 1:
            return range(units)
        if units % self.ranks and self.ranks % units:
            raise InvalidOptionError(f"{units} heads, rows or columns cannot be shared among {self.ranks} GPUs.")
        first = self.rank * units // self.ranks
        return range(first, first + max(1, units // self.ranks))

    @property
    def adds_bias(self) -> bool:
        """Whether this rank adds the bias: of ranks whose results are summed, only the first does."""
        return self.axis == OUTPUTS or self.rank == 0


WHOLE = Shard()
