"""The operations of a rank under tensor parallelism: those of its machine, and the communication between ranks.

    embed                 each rank looks up the tokens that it holds, zeros for the others; all-reduce     [T, hidden]
    output, down, experts each rank's GEMM gives a partial sum; all-reduce                                  [T, hidden]
    sample, greedy        each rank's largest logit and its token; all-gather                               [R] twice
    sample, mask_logits, log_probabilities, distribution, to_host     the logits; all-gather                             [R, vocab]

So a greedy step has two all-reduces per layer (but cuda_ranks.py divides the rows of long prompts), one for the embedding,
and an all-gather of 8 bytes per row. A step that samples or returns log-probabilities gathers whole rows of logits, because top-p and
penalties need the whole distribution; every rank then samples the same token from the same bits, and nothing is sent back.

Each rank computes all other operations alone, with its heads and its part of the inner width. Source: Shoeybi et al. 2019, "Megatron-LM",
section 3.
"""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from minllm.kernels.sampling.tensors import SamplingKind, SamplingTensors
from minllm.kernels.split_vocabulary.argmax import argmax_of_own_reference, argmax_of_ranks_reference
from minllm.kernels.split_vocabulary.join import join_parts_reference
from minllm.kernels.split_vocabulary.lookup import split_embedding_reference
from minllm.ops.batch import Batch, NormWeights, Routing
from minllm.ops.numpy_ops import NumpyOps
from minllm.ops.protocol import Ops
from minllm.parallel.communicator import Communicator
from minllm.parallel.grid import Grid
from minllm.parallel.split_weights import SplitEmbedding, VocabularyPart
from minllm.runtime.array_protocol import Array
from minllm.weights.linear import Linear
from minllm.weights.shard import INPUTS


class SplitLogits:
    """Logits [R, vocab] of which this rank has computed its part of the vocabulary; whole rows are gathered when they are needed."""

    def __init__(self, ops: Ops, own: Array, part: VocabularyPart, whole: Array | None = None):
        """own: float32 [R, part.size]."""
        self.ops, self.own, self.part, self.gathered = ops, own, part, whole

    @property
    def shape(self) -> tuple[int, int]:
        """(R, vocab)."""
        return self.own.shape[0], self.part.vocab_size

    def whole(self) -> Any:
        """All ranks' parts, float32 [R, vocab]. All ranks must call it."""
        if self.gathered is None:
            self.gathered = self.ops.gather_columns(self.own, self.part)
        return self.gathered

    def __getitem__(self, rows: int | slice) -> Any:
        """Some rows, still split, or one whole row."""
        if not isinstance(rows, slice):
            return self.whole()[rows]
        return SplitLogits(self.ops, self.own[rows], self.part, None if self.gathered is None else self.gathered[rows])

    def without_owner(self) -> "SplitLogits":
        """The same logits in memory of a graph (DeviceArray.without_owner): whole if the graph gathers them, else still split."""
        gathered = None if self.gathered is None else self.gathered.without_owner()
        return SplitLogits(self.ops, self.own.without_owner(), self.part, gathered)


def whole(logits: Array) -> Any:
    """The logits as one array."""
    return logits.whole() if isinstance(logits, SplitLogits) else logits


class TensorParallel:
    """The operations that differ under tensor parallelism; a mixin in front of the machine's, in the order of base classes."""

    communicator: Communicator
    grid: Grid

    def linear(self, x: Array, linear: Linear, *arguments: Any) -> Any:
        """x @ weight.T + bias: [T, out]; partial sums are all-reduced."""
        out = super().linear(x, linear, *arguments)
        if linear.shard.axis == INPUTS and linear.shard.ranks > 1:
            self.communicator.all_reduce(out)
        return out

    def experts(self, x: Array, router: Any, gate_up: Linear, down: Linear, routing: Routing) -> Any:
        """The weighted sum of each token's chosen experts: [T, hidden]; every rank has a part of each expert's inner width."""
        out = super().experts(x, router, gate_up, down, routing)
        if down.shard.ranks > 1:
            self.communicator.all_reduce(out)
        return out

    def linear_add(self, x: Array, linear: Linear, residual: Array, next_norm: NormWeights | None = None) -> tuple[Any, Any]:
        """(linear(x), residual), with partial sums all-reduced; the next normalisation adds the two."""
        return self.linear(x, linear), residual

    def logits(self, x: Array, residual: Array, norm: NormWeights, lm_head: Linear, rows: Array, soft_cap: float = 0.0) -> Any:
        """The logits; SplitLogits if the head is split."""
        own = super().logits(x, residual, norm, lm_head, rows, soft_cap)
        if lm_head.shard.ranks == 1:
            return own
        return SplitLogits(self, own, VocabularyPart(self.vocab_size, lm_head.shard.rank, lm_head.shard.ranks))

    def sample(self, logits: Array, sampling: SamplingTensors, slots: Array) -> Any:
        """One token per row: int32 [R], the same on every rank."""
        if isinstance(logits, SplitLogits) and sampling.kind is SamplingKind.GREEDY and logits.gathered is None:
            return self.argmax_of_ranks(logits.own, logits.part, slots)
        return super().sample(whole(logits), sampling, slots)

    def mask_logits(self, logits: Array, indices: Array, masks: Array) -> Any:
        """The masked logits, whole rows gathered from all ranks."""
        return super().mask_logits(whole(logits), indices, masks)

    def log_probabilities(self, logits: Array, token_ids: Array, top: int) -> Any:
        """Log-probabilities from whole rows of logits, gathered from all ranks."""
        return super().log_probabilities(whole(logits), token_ids, top)

    def distribution(self, logits: Array, sampling: SamplingTensors, slots: Array) -> Any:
        """The distribution from whole rows of logits, gathered from all ranks."""
        return super().distribution(whole(logits), sampling, slots)

    def warmed_up(self) -> None:
        """From now on wait only seconds for peers; does nothing on a CPU."""

    def finish(self) -> None:
        """Wait for the launched work; does nothing on a CPU."""

    def disconnect(self) -> None:
        """Close this rank's communicators; does nothing on a CPU, on which they belong to the processes."""

    def fault(self) -> Any:
        """The array in which kernels record a missing peer; None on a CPU, on which waits raise an error."""
        return None

    def missing_peer(self) -> str:
        """The reason why this rank waits, for an error message; it may be waiting now, in another thread."""
        return "another rank has not come to an operation of the communicator"

    def share_row(self, logits: Array) -> None:
        """Send rank 0's row of logits, float32 [vocab], to the other ranks."""
        self.communicator.broadcast(logits)

    def copied(self, array: Array) -> Any:
        """A copy; of this rank's part of split logits."""
        return SplitLogits(self, self.copied(array.own), array.part) if isinstance(array, SplitLogits) else super().copied(array)

    def to_host(self, array: Array) -> np.ndarray:
        """The contents of an array, or of whole rows of logits."""
        return super().to_host(whole(array))


class TensorParallelNumpyOps(TensorParallel, NumpyOps):
    """A rank of the CPU engine."""

    def __init__(self, dtype: DTypeLike, communicator: Communicator, vocab_size: int):
        super().__init__(dtype)
        self.communicator, self.vocab_size = communicator, vocab_size
        self.grid = Grid(communicator.rank, communicator.world_size)

    def embed(
        self, batch: Batch, embedding: Array, position_embedding: np.ndarray | None = None, scale: float = 1.0
    ) -> np.ndarray:  # fmt: skip
        """Rows of the embedding, plus those of the positions, from the rank that holds the token: [T, hidden]."""
        if not isinstance(embedding, SplitEmbedding):
            return super().embed(batch, embedding, position_embedding, scale)
        part, positions = embedding.part, batch.positions
        out = split_embedding_reference(batch.token_ids, embedding.rows, part.first, positions, position_embedding)
        out = out.astype(self.dtype, copy=False)
        self.communicator.all_reduce(out)
        return self.scaled(out, scale)

    def argmax_of_ranks(self, own: np.ndarray, part: VocabularyPart, slots: np.ndarray) -> np.ndarray:
        """The id of each row's largest logit over all ranks: argmax_of_ranks_reference, int32 [R]."""
        values, tokens = map(self._gathered, argmax_of_own_reference(own, part.columns))
        return argmax_of_ranks_reference(values, tokens, slots, part.size)

    def gather_columns(self, own: np.ndarray, part: VocabularyPart) -> np.ndarray:
        """The columns of all ranks side by side, without padding: float32 [R, vocab]."""
        return join_parts_reference(self._gathered(own), part.vocab_size)

    def _gathered(self, array: np.ndarray) -> np.ndarray:
        """All ranks' arrays, [ranks, ...]."""
        out = np.empty((self.communicator.world_size, *array.shape), array.dtype)
        self.communicator.all_gather(np.ascontiguousarray(array), out)
        return out
