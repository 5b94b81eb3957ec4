"""The operations of CudaOps in a dry run: they choose and launch the same kernels on arrays without contents (runtime/dry_run.py)."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from minllm.ops.batch import Array
from minllm.ops.cuda_ops import CudaOps
from minllm.runtime.device import current_device
from minllm.runtime.dry_run import Addresses
from minllm.runtime.memory import DeviceMemory


class DryRun(CudaOps):
    """The methods that a dry run overrides; a mixin in front of the operations in the order of base classes."""

    def assume_gpu(self) -> None:
        """Allocate addresses in place of memory, on the assumed GPU."""
        self.device_addresses = Addresses()
        self.memory, self.capability = DeviceMemory(self.device_addresses, caching=False), current_device().compute_capability

    def array(self, host_array: np.ndarray) -> Any:
        """An array of this shape and dtype."""
        return self.empty(host_array.shape, host_array.dtype)

    def weight(self, host_array: np.ndarray) -> Any:
        """An array of this shape."""
        return self.empty(host_array.shape, self.dtype)

    def stacked_weight(self, parts: Sequence[np.ndarray]) -> Any:
        """An array of the shape of the parts stacked by rows."""
        return self.empty((sum(map(len, parts)), *parts[0].shape[1:]), self.dtype)

    def uploads(self) -> Any:
        """A context for making many weights; does nothing here."""
        return contextlib.nullcontext()

    def to_host(self, array: Array) -> np.ndarray:
        """Zeros of the array's shape and dtype."""
        return np.zeros(array.shape, array.dtype)


class DryRunOps(DryRun):
    """CudaOps of the assumed GPU."""

    def __init__(self, dtype: DTypeLike = "bfloat16", kernel_variants: Mapping[str, Any] | None = None):
        super().__init__(dtype, kernel_variants, simulated=True)
        self.assume_gpu()
