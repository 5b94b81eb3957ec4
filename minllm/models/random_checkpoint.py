"""A checkpoint of any shape with random weights and no files, for speed measurements.

Speed depends mainly on the shape, and slightly on the values: a GPU draws less power on zeros and then runs at a higher clock, so the
weights are noise with the magnitude of trained weights. Drawing billions of normal numbers would take minutes; instead a few million are
drawn and repeated to the length of the largest tensor, and every tensor is a view of that strip at its own offset.
"""

import functools
import math
import zlib

import ml_dtypes
import numpy as np

from minllm.models.config import ModelConfig
from minllm.models.layout import layout_of
from minllm.runtime.host_threads import host_threads
from minllm.weights.stored import TensorEntry

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
STANDARD_DEVIATION = 0.02  # that of the initial values of Llama's matrices
NOISE_LENGTH = 4_194_301  # a prime near 2**22, so that rows with power-of-two lengths do not repeat


class RandomCheckpoint:
    """StoredWeights in bfloat16 with exactly the tensors that `config` requires."""

    directory = "random weights"
    described_by = "config.json"
    allow_nonfinite_weights = False

    def __init__(self, config: ModelConfig, seed: int = 0):
        self._shapes = layout_of(config).shapes()
        self._largest = max(math.prod(shape) for shape in self._shapes.values())
        self._period = min(NOISE_LENGTH, self._largest)
        self._seed = seed

    @functools.cached_property
    def _strip(self) -> np.ndarray:
        """Noise for the largest tensor plus one period; made when the first tensor is read, as shapes need none."""
        noise = np.random.default_rng(self._seed).standard_normal(self._period, dtype=np.float32)
        period = (STANDARD_DEVIATION * noise).astype(BFLOAT16).view(np.uint16)  # NumPy copies uint16 several times faster than bfloat16
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
        """The name itself."""
        return name

    def entry(self, name: str) -> TensorEntry:
        """Dtype, shape and bytes of a tensor."""
        shape = self._shapes[name]
        return TensorEntry("BF16", shape, 0, math.prod(shape) * BFLOAT16.itemsize)

    def tensor(self, name: str) -> np.ndarray:
        """Noise for matrices and biases, one plus noise for weights of norms; the same for the same name and seed."""
        shape = self._shapes[name]
        start = zlib.crc32(name.encode()) % self._period
        values = self._strip[start : start + math.prod(shape)].reshape(shape)
        is_norm_weight = len(shape) == 1 and name.endswith("weight")
        return (values.astype(np.float32) + 1).astype(BFLOAT16) if is_norm_weight else values

    def dtype(self, quantized: bool = False) -> np.dtype:
        """The dtype of all tensors."""
        return BFLOAT16
