"""The weights of a GGUF file under Hugging Face's names and in its layouts, with the interface of models/checkpoint.py."""

import ml_dtypes
import numpy as np

from minllm.errors import CheckpointError
from minllm.models.config import ModelConfig
from minllm.models.finite import all_finite
from minllm.models.gguf.gguf_file import GgufFile
from minllm.models.gguf.tensor_names import ROPE_FACTORS, Naming, file_name, hugging_face_name, is_permuted, is_transposed, unpermuted
from minllm.models.safetensors_file import TensorEntry


class GgufCheckpoint:
    """All weights of a GGUF file. Quantised ones are dequantised to float32 when they are read."""

    described_by = "its metadata"

    def __init__(self, file: GgufFile, config: ModelConfig, naming: Naming, allow_nonfinite_weights: bool = False):
        """Raises UnsupportedModelError for a tensor whose name the architecture does not have."""
        self.directory = file.path  # for errors
        self._file, self._config, self._naming = file, config, naming
        self._allow_nonfinite_weights = allow_nonfinite_weights
        skipped = {ROPE_FACTORS} if config.rope is not None and config.rope.frequency_factors else set()
        self._stored = {hugging_face_name(naming, name, file.path): name for name in file.tensors if name not in skipped}

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def names(self) -> list[str]:
        """The names of all tensors."""
        return list(self._stored)

    def stored_name(self, name: str) -> str:
        """A tensor's name in the file."""
        return self._stored.get(name) or file_name(self._naming, name)

    def entry(self, name: str) -> TensorEntry:
        """ggml's type, shape and bytes of a tensor, from the header."""
        tensor = self._file.tensors[self._stored[name]]
        shape = tensor.shape[::-1] if is_transposed(self._naming, name) else tensor.shape
        return TensorEntry(tensor.type.name, shape, tensor.begin, tensor.end)

    def tensor(self, name: str) -> np.ndarray:
        """The values of a tensor. Raises CheckpointError for NaN or infinity."""
        values = self._file.tensor(self._stored[name])
        if not self._allow_nonfinite_weights and not all_finite(values):
            raise CheckpointError(
                f"{self.directory}: tensor {self._stored[name]!r} holds NaN or infinity, which spread to the results; the file is damaged, "
                "copy it again, or load it all the same with allow_nonfinite_weights=True."
            )
        if is_permuted(self._naming, name):
            return unpermuted(values, self._config.head_dim)
        return values.T if is_transposed(self._naming, name) else values

    def blocks(self, name: str) -> np.ndarray:
        """The blocks of a quantised matrix as they are stored, of its type's structure: [outputs, blocks per row]."""
        blocks = self._file.blocks(self._stored[name])
        return unpermuted(blocks, self._config.head_dim) if is_permuted(self._naming, name) else blocks

    def dtype(self, quantized: bool = False) -> np.dtype:
        """The dtype to compute in: that of most of the bytes, or bfloat16 if most are quantised."""
        stored: dict[np.dtype, int] = {}
        for tensor in self._file.tensors.values():
            dtype = tensor.type.dtype or np.dtype(ml_dtypes.bfloat16)
            stored[dtype] = stored.get(dtype, 0) + tensor.end - tensor.begin
        return max(stored, key=stored.__getitem__)
