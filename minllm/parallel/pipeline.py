"""The operations of a pipeline stage: those of its ranks, and the communication between stages.

    embed      the first stage looks up tokens; every other receives hidden states from the previous one    [T, hidden]
    logits     the last stage multiplies by the head; every other sends its hidden states to the next       [T, hidden]
    sample     the last stage chooses tokens and sends them to all ranks, which advance their slots         [R]

So the unchanged forward (models/decoder.py) over a stage's own layers computes the stage's share. Stages work at the same time on different
micro-batches of a step (engine/ranks/rank_runner.py). Source: Huang et al. 2019, "GPipe", section 2.
"""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from minllm.kernels.sampling.log_probabilities import LogProbabilities
from minllm.kernels.sampling.tensors import SamplingTensors
from minllm.ops.batch import Batch, NormWeights
from minllm.parallel.communicator import Communicator
from minllm.parallel.grid import Grid
from minllm.parallel.tensor_parallel import TensorParallelNumpyOps
from minllm.runtime.array_protocol import Array
from minllm.weights.linear import Linear


class LogitsElsewhere:
    """Logits [R, vocab] that another stage computes: they cannot be read here, and writes are ignored."""

    def __init__(self, rows: int, vocab_size: int):
        self.shape = rows, vocab_size

    def __getitem__(self, rows: int | slice) -> "LogitsElsewhere":
        return LogitsElsewhere(len(range(self.shape[0])[rows]) if isinstance(rows, slice) else 1, self.shape[1])

    def __setitem__(self, rows: Array, values: object) -> None:
        pass

    def copy_from_host(self, host: np.ndarray) -> None:
        """Ignored."""

    def without_owner(self) -> "LogitsElsewhere":
        """Itself: it has no memory."""
        return self


class PipelineStage:
    """The operations that differ in a stage; a mixin in front of those of a rank with all layers, in the order of base classes."""

    grid: Grid
    world: Communicator  # all ranks; `communicator` has the ranks of the stage
    hidden_size: int

    def embed(self, batch: Batch, embedding: Array, position_embedding: Array | None = None, scale: float = 1.0) -> Any:
        """[T, hidden]: looked up, or received."""
        if self.grid.is_first:
            return super().embed(batch, embedding, position_embedding, scale)
        x = self.empty((batch.token_ids.shape[0], self.hidden_size), self.dtype)
        self.world.recv(x, self.grid.previous)
        return x

    def logits(self, x: Array, residual: Array, norm: NormWeights, lm_head: Linear, rows: Array, soft_cap: float = 0.0) -> Any:
        """The logits in the last stage; the others send the sum x + residual, [T, hidden], to the next stage."""
        if self.grid.is_last:
            return super().logits(x, residual, norm, lm_head, rows, soft_cap)
        total = x if residual is None else self.add_norm(x, residual, norm)[1]
        self.world.send(total, self.grid.next)
        return LogitsElsewhere(total.shape[0] if rows is None else rows.shape[0], self.vocab_size)

    def sample(self, logits: Array, sampling: SamplingTensors, slots: Array) -> Any:
        """One token per row: int32 [R], chosen in the last stage."""
        tokens = super().sample(logits, sampling, slots) if self.grid.is_last else self.empty(slots.shape, np.int32)
        self.world.broadcast(tokens, source=0)
        return tokens

    def mask_logits(self, logits: Array, indices: Array, masks: Array) -> Any:
        """The masked logits in the last stage; the others have none."""
        return super().mask_logits(logits, indices, masks) if self.grid.is_last else logits

    def log_probabilities(self, logits: Array, token_ids: Array, top: int) -> Any:
        """Log-probabilities in the last stage; in the others arrays that are never read."""
        if self.grid.is_last:
            return super().log_probabilities(logits, token_ids, top)
        return LogProbabilities.allocate(self.empty, logits.shape[0], top)

    def to_host(self, array: Array) -> np.ndarray:
        """The contents of an array; zeros for logits of another stage."""
        return np.zeros(array.shape, np.float32) if isinstance(array, LogitsElsewhere) else super().to_host(array)

    def copied(self, array: Array) -> Any:
        """A copy; of logits of another stage themselves."""
        return array if isinstance(array, LogitsElsewhere) else super().copied(array)

    def share_row(self, logits: Array) -> None:
        """Send rank 0's row of logits to the other ranks of the last stage."""
        if self.grid.is_last:
            super().share_row(logits)


class PipelineNumpyOps(PipelineStage, TensorParallelNumpyOps):
    """A rank of a stage of the CPU engine."""

    def __init__(self, dtype: DTypeLike, grid: Grid, world: Communicator, stage: Communicator, vocab_size: int, hidden_size: int):
        super().__init__(dtype, stage, vocab_size)
        self.grid, self.world, self.hidden_size = grid, world, hidden_size
