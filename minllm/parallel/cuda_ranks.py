"""A rank's operations on a GPU: CudaOps, with the communication between ranks launched on the same stream.

Kernels and the communicator's operations run in stream order, so the host waits for nothing. If one sequence decodes, rank 0's partial sums
contain the residual, and the all-reduce gives the residual stream itself; so GEMVs fused with the norm before them (ops/cuda_ops.py) are
used as on one GPU: five kernels and two all-reduces per layer, for which GEMVs of plain weights send their sums themselves
(kernels/all_reduce/gemv_low_latency.py). With more rows the residual stays apart, and the kernel of the all-reduce adds it and computes the
next norm (a NormedStream). Ranks divide the many rows of a prompt: each adds and normalises its own
(kernels/all_reduce/sequence_parallel.py), and has the residual of those alone (OwnRows).
"""

import contextlib
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from minllm.kernels.sampling.argmax import parts_of
from minllm.kernels.split_vocabulary.argmax import argmax_of_own, argmax_of_ranks
from minllm.kernels.split_vocabulary.join import join_parts
from minllm.kernels.split_vocabulary.lookup import split_embedding
from minllm.ops.batch import Batch, NormWeights
from minllm.ops.cuda_linear import MOST_ROWS_FUSED
from minllm.ops.cuda_ops import CudaOps
from minllm.ops.streams import NormedStream, OwnRows
from minllm.parallel.communicator import Communicator
from minllm.parallel.grid import Grid
from minllm.parallel.peer_communicator import PeerCommunicator
from minllm.parallel.pipeline import PipelineStage
from minllm.parallel.split_weights import SplitEmbedding, VocabularyPart
from minllm.parallel.tensor_parallel import TensorParallel
from minllm.runtime.array_protocol import Array
from minllm.weights.linear import Linear
from minllm.weights.shard import INPUTS


class TensorParallelCudaOps(TensorParallel, CudaOps):
    """A rank of the GPU engine. `communicator` must be set before a forward. options: those of CudaOps."""

    world: Communicator  # all ranks; `communicator` has those of this rank's stage

    def __init__(self, dtype: DTypeLike, grid: Grid, vocab_size: int, hidden_size: int, **options: Any):
        super().__init__(dtype, **options)
        self.grid, self.vocab_size, self.hidden_size = grid, vocab_size, hidden_size
        self.links: list[Any] = []  # NCCL communicators and the memory of peers, for disconnect()

    def embed(self, batch: Batch, embedding: Array, position_embedding: Array | None = None, scale: float = 1.0) -> Any:
        """Rows of the embedding, plus those of the positions, from the rank that holds the token: [T, hidden]."""
        if not isinstance(embedding, SplitEmbedding):
            return super().embed(batch, embedding, position_embedding, scale)
        out = self.empty((batch.token_ids.shape[0], self.hidden_size), self.dtype)
        positions = None if position_embedding is None else batch.positions
        split_embedding(batch.token_ids, embedding.rows, embedding.part.first, out, positions, position_embedding, self.stream)
        self.communicator.all_reduce(out)
        return self.scaled(out, scale)

    def linear_add(self, x: Array, linear: Linear, residual: Array, next_norm: NormWeights | None = None) -> tuple[Any, Any]:
        """The residual stream, as a pair, after adding linear(x).

        For one row of x (residual + linear(x), None), of which rank 0 adds the residual. For a few rows, and for rows that the ranks
        divide, (a NormedStream, None); if the ranks divide them and no layer follows, (residual + linear(x), None). Else (linear(x),
        residual).
        """
        shard = linear.shard
        if shard.axis != INPUTS or shard.ranks == 1:
            return CudaOps.linear_add(self, x, linear, residual, next_norm)
        if (launcher := self._fused(linear.format.kernels.normed_linear, x, None, linear)) is not None:
            out, own_residual = self.empty(residual.shape, self.dtype), residual if shard.rank == 0 else None
            if not self._sent_by_gemv(x, linear, own_residual, out):
                launcher(x, linear.weight, out, linear.bias, self.stream, residual=own_residual)
                self.communicator.all_reduce(out)
            return out, None
        if (partial_sums := self._partial_sums(residual, next_norm)) is not None:
            self._matmul(x, linear, self.dtype, partial_sums)
            return self._divided_rows(residual, next_norm), None
        partial = self._matmul(x, linear, self.dtype)
        if next_norm is not None and (normalised := self._reduced_and_normed(partial, residual, next_norm)) is not None:
            return NormedStream(residual, normalised), None
        self.communicator.all_reduce(partial)
        return partial, residual

    def normed_gated_mlp(
        self, x: Array, residual: Array, norm: NormWeights, gate_up: Linear, down: Linear, *, activation: str,
        next_norm: NormWeights | None = None,
    ) -> tuple[Any, Any]:  # fmt: skip
        """Norm and feed-forward; linear_add adds up the ranks' sums."""
        if x.shape[0] <= MOST_ROWS_FUSED or down.shard.ranks == 1:
            return super().normed_gated_mlp(x, residual, norm, gate_up, down, activation=activation, next_norm=next_norm)
        normalised, residual = self.normed_rows(x, residual, norm, gate_up)
        return self.linear_add(self.activated(normalised, gate_up, down, activation), down, residual, next_norm)

    def _sent_by_gemv(self, x: Array, linear: Linear, residual: Array | None, out: Array) -> bool:
        """out = the sum of all ranks' linear(x) + residual, sent by the GEMV. False, and nothing done, if that cannot send it."""
        if not linear.format.is_plain or not isinstance(self.communicator, PeerCommunicator):
            return False
        return self.communicator.gemv_all_reduce(x, linear.weight, linear.bias, residual, out)

    def _partial_sums(self, residual: Array | OwnRows, norm: NormWeights | None) -> Any:
        """Where a GEMM stores partial sums if the ranks divide their rows, else None. norm: the next one; None after the last layer."""
        if not isinstance(self.communicator, PeerCommunicator) or "rms_norm" in self.own:
            return None
        divides = isinstance(residual, OwnRows) if norm is None else norm.kind == "rms_norm"
        return self.communicator.partial_sums(*residual.shape, self.dtype) if divides else None

    def _divided_rows(self, residual: Array | OwnRows, norm: NormWeights | None) -> Any:
        """The stream after adding the ranks' partial sums: a NormedStream of OwnRows; without a norm all rows, [T, hidden]."""
        own = residual.array if isinstance(residual, OwnRows) else residual
        if norm is None:
            return self.communicator.norm_of_partial_sums(own, None, 0.0)
        return NormedStream(OwnRows(own), self.communicator.norm_of_partial_sums(own, norm.weight, norm.epsilon))

    def _reduced_and_normed(self, partial: Array, residual: Array, norm: NormWeights) -> Any:
        """Adds the sum of all ranks' `partial` to the residual, in place; returns its norm. None, and nothing done, if no kernel can."""
        of_one_row = partial.shape[0] <= MOST_ROWS_FUSED  # the GEMVs that follow compute its norm
        if of_one_row or norm.kind != "rms_norm" or "rms_norm" in self.own or not isinstance(self.communicator, PeerCommunicator):
            return None
        out = self.empty(residual.shape, self.dtype)
        return out if self.communicator.reduce_and_norm(partial, residual, norm.weight, norm.epsilon, out) else None

    def argmax_of_ranks(self, own: Array, part: VocabularyPart, slots: Array) -> Any:
        """The id of each row's largest logit over all ranks: argmax_of_ranks_reference, int32 [R]."""
        rows, count = own.shape[0], parts_of(part.size)
        values, tokens = self.empty((rows, count), np.float32), self.empty((rows, count), np.int32)
        argmax_of_own(own, part.columns, values, tokens, self.stream)
        values, tokens, out = self._gathered(values), self._gathered(tokens), self.empty((rows,), np.int32)
        argmax_of_ranks(values, tokens, slots, part.size, out, self.stream)
        return out

    def gather_columns(self, own: Array, part: VocabularyPart) -> Any:
        """The columns of all ranks side by side, without padding: float32 [R, vocab]."""
        out = self.empty((own.shape[0], part.vocab_size), np.float32)
        join_parts(self._gathered(own), out, self.stream)
        return out

    def to_host(self, array: Array) -> np.ndarray:
        """The contents of an array. Raises DeviceError if a kernel of this rank has given up waiting for a peer."""
        found = super().to_host(array)
        if (fault := self.fault()) is not None:
            self.communicator.check(super().to_host(fault))
        return found

    def warmed_up(self) -> None:
        """From now on wait only seconds for peers: none of them compiles any more."""
        if isinstance(self.communicator, PeerCommunicator):
            self.communicator.is_warm = True

    def finish(self) -> None:
        """Wait for the launched work. An error of the device is ignored: reading the results has raised it."""
        if self.core_stream is not None:
            with contextlib.suppress(Exception):
                self.core_stream.sync()

    def disconnect(self) -> None:
        """Close this rank's communicators and the memory of peers, when nothing uses them, without waiting for peers, which may have ended.

        Python's garbage collector must not: freeing memory waits for this GPU's kernels, and these may by then be those of the next engine,
        which wait for a peer that waits for this rank's host.
        """
        for one in self.links:
            one.close()

    def fault(self) -> Any:
        """uint32 [1] in which kernels between peers record a missing peer; None if there are no such kernels."""
        return self.communicator.fault if isinstance(self.communicator, PeerCommunicator) else None

    def missing_peer(self) -> str:
        """The reason why this rank waits: the missing peer that a kernel has recorded, if there is one."""
        if isinstance(self.communicator, PeerCommunicator) and (reason := self.communicator.why_faulty()):
            return reason
        return super().missing_peer()

    def _gathered(self, array: Array) -> Any:
        """All ranks' arrays, [ranks, ...]."""
        out = self.empty((self.communicator.world_size, *array.shape), array.dtype)
        self.communicator.all_gather(array, out)
        return out


class PipelineCudaOps(PipelineStage, TensorParallelCudaOps):
    """A rank of a stage of the GPU engine. `world` must be set before a forward."""
