"""The matrix product of every linear layer: its equation and a ladder of kernels."""

from minllm.kernels.matmul.reference import matmul_reference

__all__ = ["matmul_reference"]
