"""Records the inputs of every linear layer for a calibration text, one layer of the model at a time.

The text is cut into independent windows. Memory holds the weights of one layer and the residual stream of all windows.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

import minllm
from minllm.engine.running.batch_arrays import NewTokens, build_batch
from minllm.models.config import ModelConfig
from minllm.models.decoder import decoder_layer, embed
from minllm.models.layout import Layer
from minllm.models.model import RopeTables
from minllm.ops.batch import Array, LayerCache
from minllm.ops.numpy_ops import NumpyOps
from minllm.weights.linear import Linear

WINDOW = 512  # tokens
SAMPLED_ROWS = 16  # every 16th row of a window is kept, to measure the error of GEMM outputs


class Inputs:
    """Statistics of the inputs [tokens, inputs] of one Linear, for GPTQ, SmoothQuant and AWQ."""

    def __init__(self, inputs: int, with_hessian: bool = False):
        self.hessian = np.zeros((inputs, inputs), np.float32) if with_hessian else None  # sum of x^T x, for GPTQ
        self.largest, self.total, self.rows = np.zeros(inputs, np.float32), np.zeros(inputs, np.float64), 0
        self.sampled: list[np.ndarray] = []

    def add(self, x: np.ndarray) -> None:
        """Add rows of x [tokens, inputs] to the statistics."""
        if self.hessian is not None:
            self.hessian += x.T @ x
        magnitude = np.abs(x)
        self.largest = np.maximum(self.largest, magnitude.max(axis=0))
        self.total += magnitude.sum(axis=0)
        self.rows += len(x)
        self.sampled.append(x[::SAMPLED_ROWS])

    @property
    def mean(self) -> np.ndarray:
        """Mean magnitude of each input, float32 [inputs]."""
        return (self.total / max(1, self.rows)).astype(np.float32)


class RecordingOps(NumpyOps):
    """NumpyOps in float32 that record the inputs of the Linears in `watched`, {id(linear): Inputs}."""

    def __init__(self):
        super().__init__("float32")
        self.watched: dict[int, Inputs] = {}

    def linear(self, x: np.ndarray, linear: Linear, out_dtype: DTypeLike | None = None) -> np.ndarray:
        """The same as in NumpyOps; records x if the Linear is watched."""
        if id(linear) in self.watched:
            self.watched[id(linear)].add(x)
        return super().linear(x, linear, out_dtype)


@dataclass
class Window:
    """A window's batch, and its residual stream as the pair (x, residual) of ops/composed.py."""

    batch: Any
    x: Array
    residual: Array | None = None


class Calibration:
    """The windows of a text at the input of one layer, advanced layer by layer."""

    def __init__(self, config: ModelConfig, token_ids: list[int], weights: Any, ropes: RopeTables):
        """weights: holds the embeddings (models/layout.py)."""
        self.ops, self.ropes = RecordingOps(), ropes
        size = min(WINDOW, config.max_position_embeddings, len(token_ids))
        shape = (1, size, config.num_key_value_heads, config.head_dim)
        self.cache = LayerCache(np.zeros(shape, np.float32), np.zeros(shape, np.float32))
        self.windows = []
        for first in range(0, len(token_ids) - size + 1, size):
            batch = build_batch([NewTokens(token_ids[first : first + size], 0, [0])], [size - 1], size)
            self.windows.append(Window(batch, embed(self.ops, config, weights, batch)))

    def inputs_of(self, layer: Layer, linears: list[Linear], with_hessian: bool = False) -> list[Inputs]:
        """The inputs of `linears` in `layer`, which must be next; the windows do not advance."""
        watched = [Inputs(linear.shape[1], with_hessian) for linear in linears]
        self.ops.watched = {id(linear): one for linear, one in zip(linears, watched, strict=True)}
        for window in self.windows:
            self._through(layer, window)
        self.ops.watched = {}
        return watched

    def advance(self, layer: Layer) -> None:
        """Run the windows through a layer."""
        self.windows = [self._through(layer, window) for window in self.windows]

    def _through(self, layer: Layer, window: Window) -> Window:
        cached = dict(batch=window.batch, layer_cache=self.cache, cos_sin=self.ropes.of(layer))
        x, residual = decoder_layer(self.ops, layer, window.x, window.residual, **cached)
        return replace(window, x=x, residual=residual)


def default_text() -> str:
    """minllm's own source, in the order of file names: English and code that every installation has."""
    root = Path(minllm.__file__).parent
    return "".join(path.read_text(encoding="utf-8") for path in sorted(root.rglob("*.py")))


def spread(token_ids: list[int], count: int) -> list[int]:
    """About `count` tokens, in windows of WINDOW tokens spread evenly over a text; all tokens of a short text."""
    windows = max(1, count // WINDOW)
    if len(token_ids) <= windows * WINDOW:
        return token_ids
    starts = np.linspace(0, len(token_ids) - WINDOW, windows).astype(int)
    return [token for start in starts for token in token_ids[start : start + WINDOW]]
