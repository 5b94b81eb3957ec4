"""The eight operations of a forward pass: as NumPy equations, or as the kernels that are easiest to read.

`Equations` computes on NumPy arrays. `Kernels` launches: on a GPU for device arrays, in the simulator for NumPy arrays. Both have the same
methods and, in float32, give the same tokens.
"""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from minllm.kernels.activation.silu import silu_and_multiply, silu_and_multiply_reference
from minllm.kernels.attention.common.workspace import make_workspace
from minllm.kernels.attention.ladder import flash_attention_1
from minllm.kernels.attention.reference import attention_reference
from minllm.kernels.embedding.lookup import embedding, embedding_reference
from minllm.kernels.kv.ladder.append import append
from minllm.kernels.kv.reference import append_reference
from minllm.kernels.matmul.ladder.tiled import matmul_tiled
from minllm.kernels.matmul.reference import matmul_reference
from minllm.kernels.normalization.rms_norm import rms_norm, rms_norm_reference
from minllm.kernels.rope.ladder.rope import rope
from minllm.kernels.rope.reference import rope_reference
from minllm.kernels.sampling.argmax import argmax, argmax_reference, parts_of
from minllm.runtime.array_protocol import Array


class Equations:
    """NumPy. All arrays are on the host."""

    array = staticmethod(np.ascontiguousarray)
    zeros = staticmethod(np.zeros)

    def to_host(self, array: np.ndarray) -> np.ndarray:
        """The array itself."""
        return array

    def embedding(self, rows: np.ndarray, table: np.ndarray) -> np.ndarray:
        """table[rows]: [T, hidden]."""
        return embedding_reference(rows, table)

    def add_norm(self, x: np.ndarray, change: np.ndarray | None, weight: np.ndarray, epsilon: float) -> np.ndarray:
        """Add `change` to x, in place, and return the RMS norm of the sum."""
        if change is None:
            return rms_norm_reference(x, weight, epsilon)[0]
        normed, x[:] = rms_norm_reference(change, weight, epsilon, x)
        return normed

    def matmul(self, x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None, out_dtype: DTypeLike | None = None) -> np.ndarray:
        """x @ weight.T + bias."""
        return matmul_reference(x, weight, bias, out_dtype)

    def rope(self, x: np.ndarray, positions: np.ndarray, cos_sin: np.ndarray) -> np.ndarray:
        """The heads of x [T, heads, head_dim], rotated by their positions."""
        return rope_reference(x, positions, cos_sin)

    def append(self, *arrays: np.ndarray) -> None:
        """Write keys and values into their slots: key, value, key_cache, value_cache, slot_mapping."""
        append_reference(*arrays)

    def attention(self, *arguments: Any) -> np.ndarray:
        """query [T, heads, head_dim] over the cache; arguments as in attention_reference."""
        return attention_reference(*arguments)

    def silu_and_multiply(self, gate_up: np.ndarray) -> np.ndarray:
        """silu(gate) * up: [T, intermediate]."""
        return silu_and_multiply_reference(gate_up)

    def argmax(self, logits: np.ndarray) -> np.ndarray:
        """The likeliest token of each row; negative if there is none."""
        return argmax_reference(logits)


class Kernels:
    """The same on a GPU (`Gpu`), or in the simulator (`Simulated`); each method takes memory for its result and launches one kernel."""

    def embedding(self, rows: Array, table: Array) -> Any:
        """table[rows]: [T, hidden]."""
        out = self.empty((rows.shape[0], table.shape[1]), table.dtype)
        embedding(rows, table, out)
        return out

    def add_norm(self, x: Array, change: Array, weight: Array, epsilon: float) -> Any:
        """Add `change` to x, in place, and return the RMS norm of the sum."""
        out = self.empty(x.shape, x.dtype)
        rms_norm(x, weight, out, epsilon) if change is None else rms_norm(change, weight, out, epsilon, residual=x)
        return out

    def matmul(self, x: Array, weight: Array, bias: Array | None = None, out_dtype: DTypeLike | None = None) -> Any:
        """x @ weight.T + bias."""
        out = self.empty((x.shape[0], weight.shape[0]), x.dtype if out_dtype is None else np.dtype(out_dtype))
        matmul_tiled(x, weight, out, bias)
        return out

    def rope(self, x: Array, positions: Array, cos_sin: Array) -> Any:
        """The heads of x [T, heads, head_dim], rotated by their positions, in place."""
        rope(x, positions, cos_sin, x)
        return x

    def append(self, *arrays: Array) -> None:
        """Write keys and values into their slots: key, value, key_cache, value_cache, slot_mapping."""
        append(*arrays)

    def attention(self, query: Array, key_cache: Array, value_cache: Array, *batch: Array) -> Any:
        """query [T, heads, head_dim] over the cache, by FlashAttention-1; batch: query_start and so on, as in attention_reference."""
        out = self.empty(query.shape, query.dtype)
        shapes = flash_attention_1.workspace_shapes(query, key_cache, block_tables=batch[2])
        scratch = make_workspace(shapes, self.empty, self.zeros)
        flash_attention_1.attention(query, key_cache, value_cache, out, *batch, workspace=scratch)
        return out

    def silu_and_multiply(self, gate_up: Array) -> Any:
        """silu(gate) * up: [T, intermediate]."""
        out = self.empty((gate_up.shape[0], gate_up.shape[1] // 2), gate_up.dtype)
        silu_and_multiply(gate_up, out)
        return out

    def argmax(self, logits: Array) -> np.ndarray:
        """The likeliest token of each row, on the host; negative if there is none."""
        rows, vocab = logits.shape
        best = [self.empty((rows, parts_of(vocab)), np.dtype(dtype)) for dtype in (np.float32, np.int32)]
        out = self.empty((rows,), np.dtype(np.int32))
        argmax(logits, self.zeros((rows,), np.dtype(np.int32)), out, *best)
        return self.to_host(out)


class Simulated(Kernels):
    """The kernels in the simulator, on NumPy arrays."""

    array, empty, zeros = Equations.array, staticmethod(np.empty), Equations.zeros
    to_host = Equations.to_host


class Gpu(Kernels):
    """The kernels on the current GPU."""

    def __init__(self):
        from minllm.runtime.memory import device_memory

        memory = device_memory()
        self.array, self.empty, self.zeros = memory.array, memory.empty, memory.zeros

    def to_host(self, array: Array) -> np.ndarray:
        """A copy on the host, once all launches before it are done."""
        return array.copy_to_host()
