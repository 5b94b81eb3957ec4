"""Tensor parallelism splits a matrix along its outputs or along its inputs; each rank loads its own part.

    column-parallel  outputs are split: each rank computes different outputs from the same x (q, k and v by heads, gate and up)
    row-parallel     inputs are split: each rank multiplies its own part of x, and the results are summed (output projection, down)

A weight is [outputs, inputs] here, so column-parallel splits its rows: the names are Megatron's, which transposes its matrices. Source:
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
        """Which of `units` heads, rows or columns along `axis` this rank holds; all if `axis` is not split.

        With more ranks than units (KV heads), several ranks hold the same unit. Raises InvalidOptionError if neither divides the other.
        """
        if axis != self.axis or self.ranks == 1:
            return range(units)
        if units % self.ranks and self.ranks % units:
            raise InvalidOptionError(f"{units} heads, rows or columns cannot be shared among {self.ranks} GPUs.")
        first = self.rank * units // self.ranks
        return range(first, first + max(1, units // self.ranks))

    @property
    def adds_bias(self) -> bool:
        """Whether this rank adds the bias: if the ranks' results are summed, only the first rank adds it."""
        return self.axis == OUTPUTS or self.rank == 0


WHOLE = Shard()
