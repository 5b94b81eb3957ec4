"""Checks that all implementations of Ops share: the dtype of activations, and the activation of a feed-forward."""

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike

from minllm.errors import KernelArgumentError

DTYPES = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
GELU_APPROXIMATIONS = {"gelu": "none", "gelu_tanh": "tanh"}  # activation -> `approximate` of kernels/activation/gelu.py

GATED_ACTIVATIONS = ("silu", "gelu_tanh")


def activation_dtype(dtype: DTypeLike, machine: str) -> np.dtype:
    """The dtype of activations, from a name or a NumPy dtype. Raises KernelArgumentError, naming `machine`, for any other."""
    found = DTYPES.get(dtype) if isinstance(dtype, str) else np.dtype(dtype)
    if found is None or found not in DTYPES.values():
        raise KernelArgumentError(f"{machine} computes in {', '.join(DTYPES)}, not in {dtype}.")
    return found


def check_gated_activation(activation: str) -> None:
    """Raises KernelArgumentError unless a gated feed-forward has this activation."""
    if activation not in GATED_ACTIVATIONS:
        raise KernelArgumentError(f"a gated feed-forward takes the activation {' or '.join(GATED_ACTIVATIONS)}, not {activation}")


def gelu_approximation(activation: str) -> str:
    """The `approximate` argument for the GELU of a feed-forward without a gate. Raises KernelArgumentError for other activations."""
    if activation not in GELU_APPROXIMATIONS:
        raise KernelArgumentError(f"a feed-forward without a gate takes {' or '.join(GELU_APPROXIMATIONS)}, not {activation}")
    return GELU_APPROXIMATIONS[activation]
