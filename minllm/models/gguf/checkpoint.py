"""A GGUF file's weights with Hugging Face's names and layouts, and the interface of models/checkpoint.py."""

import ml_dtypes
import numpy as np

from minllm.errors import CheckpointError
from minllm.models.config import ModelConfig
from minllm.models.finite import all_finite
from minllm.models.gguf.gguf_file import GgufFile
from minllm.models.gguf.tensor_names import ROPE_FACTORS, Naming, file_name, hugging_face_name, is_permuted, is_transposed, unpermuted
from minllm.weights.stored import TensorEntry


class GgufCheckpoint:
    """All weights of a GGUF file. `tensor` dequantises quantised weights to float32."""

    described_by = "its metadata"

    def __init__(self, file: GgufFile, config: ModelConfig, naming: Naming, allow_nonfinite_weights: bool = False):
        """Raises UnsupportedModelError if a tensor's name does not belong to the architecture."""
        self.directory = file.path  # the path that errors name
        self._file, self._config, self._naming = file, config, naming
        self.allow_nonfinite_weights = allow_nonfinite_weights
        skipped = {ROPE_FACTORS} if config.rope is not None and config.rope.frequency_factors else set()
        self._stored = {hugging_face_name(naming, name, file.path): name for name in file.tensors if name not in skipped}

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def names(self) -> list[str]:
        """Hugging Face's names of all tensors."""
        return list(self._stored)

    def stored_name(self, name: str) -> str:
        """A tensor's name in the file."""
        return self._stored.get(name) or file_name(self._naming, name)

    def entry(self, name: str) -> TensorEntry:
        """ggml's type, the shape, and the byte range of a tensor, from the header."""
        tensor = self._file.tensors[self._stored[name]]
        shape = tensor.shape[::-1] if is_transposed(self._naming, name) else tensor.shape
        return TensorEntry(tensor.type.name, shape, tensor.begin, tensor.end)

    def tensor(self, name: str) -> np.ndarray:
        """The values of a tensor. Raises CheckpointError for NaN or infinity, unless these were allowed."""
        values = self._file.tensor(self._stored[name])
        if not self.allow_nonfinite_weights and not all_finite(values):
            raise CheckpointError(
                f"{self.directory}: tensor {self._stored[name]!r} holds NaN or infinity, which spread to the results; the file is damaged, "
                "copy it again, or load it all the same with allow_nonfinite_weights=True."
            )
        if self._config.norm_offset and name.endswith("norm.weight"):
            return values - np.float32(self._config.norm_offset)
        if is_permuted(self._naming, name):
            return unpermuted(values, self._config.head_dim)
        return values.T if is_transposed(self._naming, name) else values

    def blocks(self, name: str) -> np.ndarray:
        """The stored blocks of a quantised matrix [outputs, blocks per row], with the structured dtype of its type."""
        blocks = self._file.blocks(self._stored[name])
        return unpermuted(blocks, self._config.head_dim) if is_permuted(self._naming, name) else blocks

    def dtype(self, quantized: bool = False) -> np.dtype:
        """The dtype to compute in: that of most bytes of the weights; quantised ones count as bfloat16."""
        stored: dict[np.dtype, int] = {}
        for tensor in self._file.tensors.values():
            dtype = tensor.type.dtype or np.dtype(ml_dtypes.bfloat16)
            stored[dtype] = stored.get(dtype, 0) + tensor.end - tensor.begin
        return max(stored, key=stored.__getitem__)
