"""The operations of a stage of a pipeline: those of its ranks, and what crosses between stages.

    embed      the first stage looks up tokens; every other receives hidden states from the stage before    [T, hidden]
    logits     the last stage multiplies by the head; every other sends its hidden states to the next       [T, hidden]
    sample     the last stage chooses tokens and sends them to all, whose slots move on                     [R]

A forward over a stage's own layers (models/decoder.py) is thus one stage's share, unchanged. Stages work at the same time on the
micro-batches of a step (engine/ranks/rank_runner.py). Source: Huang et al. 2019, "GPipe", section 2.
"""

from typing import Any

import numpy as np

from minllm.kernels.sampling.log_probabilities import LogProbabilities
from minllm.ops.protocol import Batch, NormWeights
from minllm.parallel.communicator import Communicator
from minllm.parallel.grid import Grid
from minllm.parallel.tensor_parallel import TensorParallelNumpyOps
from minllm.weights.linear import Linear


class LogitsElsewhere:
    """Logits [R, vocab] that another stage computes: nothing can be read here, and what is written is ignored."""

    def __init__(self, rows: int, vocab_size: int):
        self.shape = rows, vocab_size

    def __getitem__(self, rows: int | slice) -> "LogitsElsewhere":
        return LogitsElsewhere(len(range(self.shape[0])[rows]) if isinstance(rows, slice) else 1, self.shape[1])

    def __setitem__(self, rows: Any, values: Any) -> None:
        pass

    def copy_from_host(self, host: np.ndarray) -> None:
        """Ignored."""


class PipelineStage:
    """What a stage's operations do differently from those of a rank that has all layers, which follow in the order of base classes."""

    grid: Grid
    world: Communicator  # of all ranks; `communicator` is that of the stage
    hidden_size: int

    def embed(self, batch: Batch, embedding: Any, position_embedding: Any = None) -> Any:
        """[T, hidden]: looked up, or received."""
        if self.grid.is_first:
            return super().embed(batch, embedding, position_embedding)
        x = self.empty((batch.token_ids.shape[0], self.hidden_size), self.dtype)
        self.world.recv(x, self.grid.previous)
        return x

    def logits(self, x: Any, residual: Any, norm: NormWeights, lm_head: Linear, rows: Any) -> Any:
        """The head's scores in the last stage; from the others, the sum x + residual [T, hidden] goes to the next."""
        if self.grid.is_last:
            return super().logits(x, residual, norm, lm_head, rows)
        _, total = self.add_norm(x, residual, norm)
        self.world.send(total, self.grid.next)
        return LogitsElsewhere(total.shape[0] if rows is None else rows.shape[0], self.vocab_size)

    def sample(self, logits: Any, sampling: Any, slots: Any) -> Any:
        """One token per row: int32 [R], chosen in the last stage."""
        tokens = super().sample(logits, sampling, slots) if self.grid.is_last else self.empty(slots.shape, np.int32)
        self.world.broadcast(tokens, source=0)
        return tokens

    def log_probabilities(self, logits: Any, token_ids: Any, top: int) -> Any:
        """Those of the last stage; elsewhere arrays that nobody reads."""
        if self.grid.is_last:
            return super().log_probabilities(logits, token_ids, top)
        return LogProbabilities.allocate(self.empty, logits.shape[0], top)

    def to_host(self, array: Any) -> np.ndarray:
        """The contents of an array; zeros for logits that are elsewhere."""
        return np.zeros(array.shape, np.float32) if isinstance(array, LogitsElsewhere) else super().to_host(array)

    def share_row(self, logits: Any) -> None:
        """Give rank 0's row to the other ranks of the last stage."""
        if self.grid.is_last:
            super().share_row(logits)


class PipelineNumpyOps(PipelineStage, TensorParallelNumpyOps):
    """A rank of a stage of the CPU engine."""

    def __init__(self, dtype: Any, grid: Grid, world: Communicator, stage: Communicator, vocab_size: int, hidden_size: int):
        super().__init__(dtype, stage, vocab_size)
        self.grid, self.world, self.hidden_size = grid, world, hidden_size
