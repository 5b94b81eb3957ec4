"""The stage of a rank: ranks of one stage share its layers by tensor parallelism, and stages follow each other in a pipeline.

    pipeline_parallel_size=2, tensor_parallel_size=2       stage 0, layers 0 to n/2 - 1: ranks 2 and 3
                                                           stage 1, layers n/2 to n - 1: ranks 0 and 1

Rank 0 is in the last stage, because it schedules: logits are computed there, and only token ids go back to the other stages.
"""

from typing import NamedTuple

from minllm.errors import InvalidOptionError


class Grid(NamedTuple):
    """A rank among `tensor` ranks in each of `pipeline` stages."""

    rank: int
    tensor: int = 1
    pipeline: int = 1

    @property
    def stage(self) -> int:
        """The number of the rank's stage, in the order of layers."""
        return self.pipeline - 1 - self.rank // self.tensor

    @property
    def is_first(self) -> bool:
        """Whether the rank's stage looks up the embedding."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether the rank's stage computes logits."""
        return self.stage == self.pipeline - 1

    @property
    def tensor_rank(self) -> int:
        """The rank's number among the ranks of its stage."""
        return self.rank % self.tensor

    @property
    def stage_ranks(self) -> range:
        """All ranks of the rank's stage."""
        first = self.rank - self.tensor_rank
        return range(first, first + self.tensor)

    @property
    def next(self) -> int:
        """The rank of the next stage to which this rank sends hidden states."""
        return self.rank - self.tensor

    @property
    def previous(self) -> int:
        """The rank of the previous stage from which this rank receives hidden states."""
        return self.rank + self.tensor

    def layers(self, num_layers: int) -> range:
        """The layers of the rank's stage. Raises InvalidOptionError if stages would have different numbers of layers."""
        check_stages(num_layers, self.pipeline)
        each = num_layers // self.pipeline
        return range(self.stage * each, (self.stage + 1) * each)


def check_stages(num_layers: int, stages: int) -> None:
    """Raise InvalidOptionError unless the stages of a pipeline can have equal numbers of layers."""
    if num_layers % stages:
        allowed = ", ".join(str(one) for one in range(1, num_layers + 1) if num_layers % one == 0)
        raise InvalidOptionError(f"pipeline_parallel_size={stages} does not divide the model's {num_layers} layers: take one of {allowed}.")
