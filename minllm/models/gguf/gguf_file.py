"""One GGUF file: every byte of the header is checked, and the data is memory-mapped.

    "GGUF" | uint32 version | uint64 tensors | uint64 keys | the keys with their values | the table of tensors | padding | data

Files come from untrusted uploads, so every size in the header is compared with the size of the file before it is used.
"""

from pathlib import Path

import numpy as np

from minllm.errors import CheckpointError, UnsupportedModelError
from minllm.models.gguf.metadata import read_metadata
from minllm.models.gguf.tensor_table import read_tensor_table
from minllm.models.gguf.value_reader import ValueReader
from minllm.models.json_files import refuse_special_file

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # 3 also allows big-endian files; 1 had counts of 32 bits and lived for a week
DEFAULT_ALIGNMENT, LARGEST_ALIGNMENT = 32, 1 << 20


class GgufFile:
    """A GGUF file opened for reading. metadata: {key: value}; tensors: {name: GgufTensor}."""

    def __init__(self, path: Path | str):
        """Raises CheckpointError for a missing or damaged file, UnsupportedModelError for other versions or types."""
        self.path = Path(path)
        self._bytes = _mapped(self.path)
        reader = ValueReader(self.path, self._bytes)
        tensors, keys = _read_start(reader)
        self.metadata = read_metadata(reader, keys)
        self.tensors = read_tensor_table(reader, tensors, self._alignment(), len(self._bytes))

    def tensor(self, name: str) -> np.ndarray:
        """The numbers of a tensor: a read-only view of the file if they are plain, else dequantised to float32."""
        tensor = self.tensors[name]
        return tensor.type.dequantize(self._bytes[tensor.begin : tensor.end]).reshape(tensor.shape)

    def blocks(self, name: str) -> np.ndarray:
        """The stored blocks of a quantised matrix [rows, blocks per row], with the structured dtype of its type."""
        tensor = self.tensors[name]
        return self._bytes[tensor.begin : tensor.end].view(np.dtype(tensor.type.block)).reshape(tensor.shape[0], -1)

    def _alignment(self) -> int:
        value = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(value) is not int or not 8 <= value <= LARGEST_ALIGNMENT or value & (value - 1):
            raise CheckpointError(
                f"{self.path} says general.alignment = {value!r}, and it must be a power of two from 8 to {LARGEST_ALIGNMENT}; "
                "the file is damaged, copy it again."
            )
        return value


def is_gguf(path: Path) -> bool:
    """Whether a path is a file with the suffix .gguf or with GGUF's magic bytes."""
    if not path.is_file():
        return False
    if path.suffix == ".gguf":
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _mapped(path: Path) -> np.ndarray:
    """The memory-mapped bytes of a file, uint8. Raises CheckpointError if it cannot be read or is not GGUF."""
    try:
        refuse_special_file(path)
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
        if magic != MAGIC:
            raise CheckpointError(f"{path} is not a GGUF file, which begins with the letters GGUF: copy it from the model's source again.")
        return np.memmap(path, np.uint8, mode="r").view(np.ndarray)
    except FileNotFoundError:
        raise CheckpointError(f"There is no file {path}: give the path of a GGUF file.") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error


def _read_start(reader: ValueReader) -> tuple[int, int]:
    """(number of tensors, number of keys). Raises UnsupportedModelError for other versions."""
    reader.number("I", "the magic number")
    version = reader.count("I", "the version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        kind = "big-endian" if swapped else f"of version {version}"
        raise UnsupportedModelError(
            f"{reader.path} is a GGUF file {kind}, and minllm reads the little-endian versions {' and '.join(map(str, VERSIONS))}: "
            "take a newer file of the model, or convert it again with llama.cpp."
        )
    return reader.count("Q", "the number of tensors"), reader.count("Q", "the number of keys")
