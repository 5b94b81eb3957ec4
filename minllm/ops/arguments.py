"""Checks that all implementations of Ops share: the dtype of activations, and the activation of a feed-forward."""

from typing import Any

import ml_dtypes
import numpy as np

from minllm.errors import KernelArgumentError

DTYPES = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
GELU_APPROXIMATIONS = {"gelu": "none", "gelu_tanh": "tanh"}  # activation -> `approximate` of kernels/activation/gelu.py


def activation_dtype(dtype: Any, machine: str) -> np.dtype:
    """The dtype of activations, from a name or a NumPy dtype. Raises KernelArgumentError, naming `machine`, for any other."""
    found = DTYPES.get(dtype) if isinstance(dtype, str) else np.dtype(dtype)
    if found not in DTYPES.values():
        raise KernelArgumentError(f"{machine} computes in {', '.join(DTYPES)}, not in {dtype}.")
    return found


def check_gated_activation(activation: str) -> None:
    """Raises KernelArgumentError unless the activation is silu, the only one of gated feed-forwards."""
    if activation != "silu":
        raise KernelArgumentError(f"a gated feed-forward takes the activation silu, not {activation}")


def gelu_approximation(activation: str) -> str:
    """The `approximate` argument for the GELU of a feed-forward without a gate. Raises KernelArgumentError for other activations."""
    if activation not in GELU_APPROXIMATIONS:
        raise KernelArgumentError(f"a feed-forward without a gate takes {' or '.join(GELU_APPROXIMATIONS)}, not {activation}")
    return GELU_APPROXIMATIONS[activation]
