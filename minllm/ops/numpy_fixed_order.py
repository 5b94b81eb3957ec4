"""NumPy operations with the same bits for a token alone and in any batch: `batch_invariant=True` on a CPU.

BLAS chooses its blocks, and with them the order of its sums, by the shape of both matrices. So every operation that sums over elements,
GEMM, norm and attention, is computed here one token at a time: every token has the same shapes, and so the same sums. The other
operations work on each element by itself, and sampling on each row.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import DTypeLike

from minllm.ops.batch import AttentionConfig, Batch, LayerCache, NormWeights, Routing
from minllm.ops.numpy_ops import NumpyOps
from minllm.weights.linear import Linear


class FixedOrderNumpyOps(NumpyOps):
    """Implements `ops.protocol.Ops`; the results of a token depend on its sequence alone, bit for bit."""

    def add_norm(self, x: np.ndarray, residual: np.ndarray | None, norm: NormWeights) -> tuple[np.ndarray, np.ndarray]:
        """(normalised, residual) of x + residual: [T, hidden] both."""
        if len(x) <= 1:
            return super().add_norm(x, residual, norm)
        residuals = [None] * len(x) if residual is None else rows_of(residual)
        found = [super(FixedOrderNumpyOps, self).add_norm(row, of_row, norm) for row, of_row in zip(rows_of(x), residuals, strict=True)]
        normalised, residual = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return normalised, residual

    def linear(self, x: np.ndarray, linear: Linear, out_dtype: DTypeLike | None = None) -> np.ndarray:
        """x @ weight.T + bias: [T, out], in x's dtype unless `out_dtype` is given."""
        if len(x) <= 1:
            return super().linear(x, linear, out_dtype)
        return np.concatenate([super(FixedOrderNumpyOps, self).linear(row, linear, out_dtype) for row in rows_of(x)])

    def experts(self, x: np.ndarray, router: np.ndarray, gate_up: Linear, down: Linear, routing: Routing) -> np.ndarray:
        """The weighted sum of each token's chosen experts: [T, hidden]."""
        if len(x) <= 1:
            return super().experts(x, router, gate_up, down, routing)
        experts = super().experts
        return np.concatenate([experts(row, router, gate_up, down, routing) for row in rows_of(x)])

    def attention(self, query: np.ndarray, layer_cache: LayerCache, batch: Batch, attention_config: AttentionConfig) -> np.ndarray:
        """Causal attention over the cached context of each sequence, one token at a time: [T, heads * head_dim]."""
        starts = np.asarray(batch.query_start)
        owners = np.repeat(np.arange(batch.num_sequences), np.diff(starts))  # the sequence of each token
        behind = starts[owners + 1] - 1 - np.arange(len(owners))  # number of tokens after each in the same sequence
        context_lens = np.maximum(np.asarray(batch.context_lens)[owners] - behind, 0)
        tables, each = np.asarray(batch.block_tables)[owners], np.arange(len(owners) + 1, dtype=np.int32)
        alone = replace(batch, query_start=each, context_lens=context_lens.astype(np.int32), block_tables=tables)
        return super().attention(query, layer_cache, alone, attention_config)


def rows_of(array: np.ndarray) -> list[np.ndarray]:
    """Each row, [1, width], as a separate array, so that all rows have the same alignment."""
    return [row[None].copy() for row in array]
