"""The base of all operations on a GPU: its arrays, one stream, and the kernels requested instead of the fastest ones."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from minllm.errors import KernelArgumentError
from minllm.kernels.all_reduce.choice import names as all_reduce_names
from minllm.kernels.arguments import FLOAT_DTYPES
from minllm.kernels.attention.variants import QUANTIZED
from minllm.kernels.attention.variants import VARIANTS as ATTENTION_VARIANTS
from minllm.kernels.matmul.variants import VARIANTS as MATMUL_VARIANTS
from minllm.ops.arguments import activation_dtype
from minllm.ops.composed import ComposedOps
from minllm.ops.own_kernels import own_kernels
from minllm.weights.format import WeightFormat

if TYPE_CHECKING:
    from minllm.runtime.memory import DeviceMemory


class CudaBase(ComposedOps):
    """Part of CudaOps: arrays, the stream, and the choice of kernels."""

    def __init__(
        self, dtype: DTypeLike = "bfloat16", kernel_variants: Mapping[str, Any] | None = None, simulated: bool = False,
        allocation: str | None = None, pinned: bool = True,
    ):  # fmt: skip
        """dtype: of weights, activations and KV cache. simulated: run the kernels in the simulator, on NumPy arrays, without a GPU.
        allocation: how device memory is allocated, see runtime/memory.py. pinned: whether results are read through page-locked memory.
        """
        self.dtype, self.pinned = activation_dtype(dtype, "CudaOps"), pinned
        self.own = own_kernels(kernel_variants or {})
        self.variants = check_variants({stage: name for stage, name in (kernel_variants or {}).items() if stage not in self.own})
        self.memory: DeviceMemory | None = None  # the next three are None in the simulator
        self.core_stream: Any = None
        self.stream: Any = None
        self.capability: tuple[int, int] | None = None
        self.counts: dict[tuple[int, ...], Any] = {}
        self.uploader: Any = None  # set while many weights are made
        if not simulated:
            from minllm.runtime.device import current_device
            from minllm.runtime.memory import device_memory
            from minllm.runtime.stream import compute_stream, stream_handle

            self.memory, self.core_stream = device_memory(allocation), compute_stream()
            self.capability = current_device().compute_capability
            self.stream = stream_handle(self.core_stream)

    @property
    def own_stages(self) -> tuple[str, ...]:
        """The stages that run the user's own kernels."""
        return tuple(self.own)

    def array(self, host_array: np.ndarray) -> Any:
        """A copy on the device."""
        host = np.ascontiguousarray(host_array)
        return host.copy() if self.memory is None else self.memory.array(host)

    def to_host(self, array: Any) -> np.ndarray:
        """A NumPy copy; waits for the kernels launched before."""
        return array.copy() if self.memory is None else array.copy_to_host()

    def copied(self, array: Any) -> Any:
        """A copy on the device, in stream order."""
        if self.memory is None:
            return array.copy()
        from minllm.runtime.stream import copy_later

        out = self.empty(array.shape, array.dtype)
        copy_later(array, out, self.core_stream)
        return out

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        """An array with unspecified contents."""
        return np.empty(shape, dtype) if self.memory is None else self.memory.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
        """An array of zeros."""
        return np.zeros(shape, dtype) if self.memory is None else self.memory.zeros(shape, dtype)

    def weight(self, host_array: np.ndarray) -> Any:
        """A copy on the device, C-contiguous, rounded to the activations' dtype."""
        return self.array(host_array.astype(self.dtype, copy=False)) if self.uploader is None else self._upload([host_array])

    @contextlib.contextmanager
    def uploads(self) -> Iterator[None]:
        """A context within which weights are copied through page-locked buffers."""
        if self.memory is None:
            yield
            return
        from minllm.runtime.upload import Uploader

        with Uploader(self.core_stream) as self.uploader:
            try:
                yield
            finally:
                self.uploader = None

    def stacked_weight(self, parts: Sequence[np.ndarray]) -> Any:
        """The weight of the matrices stacked by rows."""
        return super().stacked_weight(parts) if self.uploader is None else self._upload(parts)

    def encoded(self, weight_format: WeightFormat, parts: Sequence[np.ndarray]) -> Any:
        """The weight in a quantised format, encoded on the GPU where the format has a kernel for it."""
        dtype = parts[0].dtype
        known = dtype in FLOAT_DTYPES and all(part.dtype == dtype for part in parts)
        if self.uploader is None or not (weight_format.encodes_on_gpu and known):
            return super().encoded(weight_format, parts)
        return weight_format.encode_on(self, self._upload(parts, dtype))

    def _upload(self, parts: Sequence[np.ndarray], dtype: DTypeLike | None = None) -> Any:
        """The parts stacked by rows in one device array of `dtype`, by default the activations'."""
        array, first = self.empty((sum(map(len, parts)), *parts[0].shape[1:]), dtype or self.dtype), 0
        for part in parts:
            self.uploader.copy(array[first : first + len(part)], part)
            first += len(part)
        return array

    def device_memory(self) -> tuple[int, int]:
        """(free, total) bytes of the GPU; memory that the pool has cached counts as free."""
        if self.memory is None:
            raise KernelArgumentError("the simulator computes in the host's memory: it has no memory of a GPU")
        self.memory.trim()
        return self.memory.memory.info()

    def _launcher(self, stage: str, launcher: Any) -> Any:
        """The launcher of a stage: the user's own, or else `launcher`."""
        return self.own[stage].launch if stage in self.own else launcher


def check_variants(variants: Mapping[str, str]) -> dict[str, str]:
    """The overrides as a dictionary. Raises KernelArgumentError for an unknown stage or name."""
    attention = [*ATTENTION_VARIANTS.names(), *ATTENTION_VARIANTS.names(QUANTIZED)]
    known = {"matmul": MATMUL_VARIANTS.names(), "attention": attention, "all_reduce": all_reduce_names()}
    for stage, name in variants.items():
        if stage not in known:
            raise KernelArgumentError(f"kernel_variants names the stage {stage!r}; it may name {', '.join(known)}")
        if name not in known[stage]:
            raise KernelArgumentError(f"there is no {stage} kernel {name!r}; there are {', '.join(known[stage])}")
    return dict(variants)
