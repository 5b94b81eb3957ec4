"""Forms of the residual stream between two operations of a GPU, beside plain arrays and kernels/matmul/flat/deferred_norm.DeferredNorm."""

from typing import NamedTuple

from minllm.runtime.array_protocol import Array


class OwnRows(NamedTuple):
    """A residual stream [T, hidden] that is right in the rows which this rank owns (kernels/all_reduce/sequence_parallel.py)."""

    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """(T, hidden)."""
        return self.array.shape


class NormedStream(NamedTuple):
    """A residual stream with its next norm."""

    stream: Array | OwnRows  # [T, hidden]
    normalised: Array  # [T, hidden]

    @property
    def shape(self) -> tuple[int, ...]:
        """(T, hidden)."""
        return self.stream.shape
