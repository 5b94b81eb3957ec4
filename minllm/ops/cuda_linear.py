"""Linear layers on a GPU, alone and in a feed-forward. The format of a Linear provides its GEMM kernels (weights/format.py)."""

from collections.abc import Callable
from typing import Any

import numpy as np

from minllm.kernels.activation.gelu import gelu
from minllm.kernels.activation.silu import silu_and_multiply
from minllm.kernels.elementwise.gelu_and_multiply import gelu_and_multiply
from minllm.kernels.matmul.quantized.rows import QuantizedRows
from minllm.ops.arguments import check_gated_activation, gelu_approximation
from minllm.ops.batch import Array, NormWeights
from minllm.ops.cuda_base import CudaBase
from minllm.weights.linear import Linear

MOST_ROWS_FUSED = 1  # maximum rows of x for a GEMV fused with norm and residual


class CudaLinear(CudaBase):
    """Part of CudaOps."""

    def linear(self, x: Array, linear: Linear) -> Array:
        """x @ weight.T + bias: [T, out]."""
        return self._matmul(x, linear, self.dtype)

    def gated_mlp(self, x: Array, gate_up: Linear, down: Linear, activation: str) -> Array:
        """down(activation(gate(x)) * up(x)): [T, hidden]."""
        return self.linear(self.activated(x, gate_up, down, activation), down)

    def activated(self, x: Array, gate_up: Linear, down: Linear, activation: str) -> Any:
        """activation(gate(x)) * up(x), [T, intermediate]; QuantizedRows of that if down's variant multiplies codes."""
        check_gated_activation(activation)
        if activation == "gelu_tanh":
            activated = self.empty((x.shape[0], gate_up.shape[0] // 2), self.dtype)
            gelu_and_multiply(self.linear(x, gate_up), activated, self.stream)
            return activated
        launch_gated = self._gated_launcher(x, gate_up)
        if launch_gated is not None:
            activated = self.empty((x.shape[0], gate_up.shape[0] // 2), self.dtype)
            launch_gated(self._rows_for(x, gate_up), gate_up.weight, activated, self.stream)
            return activated
        both = self.linear(x, gate_up)  # [T, 2 * intermediate]
        quantise = down.format.kernels.gated_activations.get(self._matmul_variant(both, down))
        if quantise is not None and not {"matmul", "silu_and_multiply"} & self.own.keys():
            return quantise(both, self.empty, self.stream)
        activated = self.empty((x.shape[0], gate_up.shape[0] // 2), self.dtype)
        self._launcher("silu_and_multiply", silu_and_multiply)(both, activated, self.stream)
        return activated

    def mlp(self, x: Array, up: Linear, down: Linear, activation: str) -> Array:
        """down(gelu(up(x))): [T, hidden]."""
        approximation = gelu_approximation(activation)
        hidden = self.linear(x, up)  # [T, intermediate]
        gelu(hidden, hidden, approximation, self.stream)
        return self.linear(hidden, down)

    def _matmul(self, x: Array, linear: Linear, out_dtype: np.dtype, out: Array | None = None) -> Array:
        out = self.empty((x.shape[0], linear.shape[0]), out_dtype) if out is None else out
        own = self.own.get(linear.format.own_stage or "")
        if own is not None and own.takes(x.shape[0]):
            own.launch(x, linear.weight, out, linear.bias, self.stream)
            return out
        kernels, variant = linear.format.kernels, self._matmul_variant(x, linear)
        x = self._rows_for(x, linear)
        if variant in kernels.workspaces:
            workspace = kernels.workspaces[variant](x, linear.weight, self.empty)
            kernels.variants[variant](x, linear.weight, out, linear.bias, self.stream, workspace=workspace)
        else:
            kernels.variants[variant](x, linear.weight, out, linear.bias, self.stream)
        return out

    def _rows_for(self, x: Array, linear: Linear) -> Array:
        """The input of the linear's variant: x, or QuantizedRows of x if the variant multiplies codes."""
        quantise = linear.format.kernels.activations.get(self._matmul_variant(x, linear))
        return x if quantise is None or isinstance(x, QuantizedRows) else quantise(x, self.empty, self.stream)

    def _gated_launcher(self, x: Array, gate_up: Linear) -> Any:
        """The launcher of the gate and up GEMM fused with the activation; None if the format has none for these arrays."""
        if gate_up.bias is not None or {"matmul", "silu_and_multiply"} & self.own.keys():
            return None
        return gate_up.format.kernels.gated(self._matmul_variant(x, gate_up), x, gate_up.weight, self.dtype)

    def _fused(
        self, launcher: Callable | None, x: Array, residual: Array, linear: Linear, norm: NormWeights | None = None
    ) -> Callable | None:  # fmt: skip
        """`launcher`, the format's GEMV fused with the norm before it and the residual addition after it, if it can be used, else None.

        The stream is then a single array.
        """
        asked = self.variants.get("matmul", "gemv") == "gemv" and not {"matmul", "rms_norm", "silu_and_multiply"} & self.own.keys()
        one_stream = x.shape[0] <= MOST_ROWS_FUSED and residual is None
        known = asked and one_stream and launcher is not None and (norm is None or norm.kind == "rms_norm")
        return launcher if known and linear.format.kernels.fits_normed(x, linear.weight) else None

    def _matmul_variant(self, x: Array, linear: Linear) -> str:
        """The requested GEMM variant if the format has it and it supports this number of rows, else the best for this shape and GPU."""
        kernels, name = linear.format.kernels, self.variants.get("matmul")
        if name is None or name not in kernels.variants or x.shape[0] > kernels.most_rows.get(name, x.shape[0]):
            return kernels.choose(x, linear.weight)
        return name
