"""A checkpoint of any shape with random weights and no files: speed depends on the shape, and little on the numbers.

It does depend on them a little: a GPU draws less power on zeros and then runs at a higher clock, so the weights are real noise of the size
of trained weights. Drawing billions of normal numbers would take minutes; instead a few million are drawn, repeated to the length of the
largest tensor, and every tensor is a view of that strip at an offset of its own.
"""

import functools
import math
import zlib

import ml_dtypes
import numpy as np

from minllm.models.config import ModelConfig
from minllm.models.layout import layout_of
from minllm.models.safetensors_file import TensorEntry
from minllm.runtime.host_threads import host_threads

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
STANDARD_DEVIATION = 0.02  # what Llama's matrices are initialised with
NOISE_LENGTH = 4_194_301  # a prime near 2**22, so that no row of a matrix repeats another at a power of two


class RandomCheckpoint:
    """Looks to `load_weights` like an opened checkpoint in bfloat16 that holds just what `config` asks for."""

    directory = "random weights"
    described_by = "config.json"

    def __init__(self, config: ModelConfig, seed: int = 0):
        self._shapes = layout_of(config).shapes()
        self._largest = max(math.prod(shape) for shape in self._shapes.values())
        self._period = min(NOISE_LENGTH, self._largest)
        self._seed = seed

    @functools.cached_property
    def _strip(self) -> np.ndarray:
        """Made when the first tensor is read: asking for shapes alone takes no memory."""
        noise = np.random.default_rng(self._seed).standard_normal(self._period, dtype=np.float32)
        period = (STANDARD_DEVIATION * noise).astype(BFLOAT16).view(np.uint16)  # NumPy copies its own dtypes several times faster
        strip = np.empty(self._largest + len(period), np.uint16)
        repeats = [strip[start : start + len(period)] for start in range(0, len(strip), len(period))]
        with host_threads() as threads:
            list(threads.map(lambda repeat: np.copyto(repeat, period[: len(repeat)]), repeats))
        return strip.view(BFLOAT16)

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def names(self) -> list[str]:
        """The names of all tensors."""
        return list(self._shapes)

    def stored_name(self, name: str) -> str:
        """The same name."""
        return name

    def entry(self, name: str) -> TensorEntry:
        """Shape and size of a tensor."""
        shape = self._shapes[name]
        return TensorEntry("BF16", shape, 0, math.prod(shape) * BFLOAT16.itemsize)

    def tensor(self, name: str) -> np.ndarray:
        """Noise for a matrix or a bias, and near one for the weight of a norm, the same for the same name and seed."""
        shape = self._shapes[name]
        start = zlib.crc32(name.encode()) % self._period
        values = self._strip[start : start + math.prod(shape)].reshape(shape)
        is_norm_weight = len(shape) == 1 and name.endswith("weight")
        return (values.astype(np.float32) + 1).astype(BFLOAT16) if is_norm_weight else values

    def dtype(self, quantized: bool = False) -> np.dtype:
        """The dtype of all tensors."""
        return BFLOAT16
