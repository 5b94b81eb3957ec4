"""A safetensors file: validates the whole header and memory-maps the data.

The format (https://github.com/huggingface/safetensors, "Format"): 8 bytes of little-endian length N, N bytes of JSON that map each tensor's
name to dtype, shape and data_offsets [begin, end), and then the data, which the tensors cover without gap or overlap. Files are untrusted
input, so nothing in the header is used before it has been checked against the size of the file.
"""

import json
import math
from pathlib import Path
from typing import Any, TypeGuard

import ml_dtypes
import numpy as np

from minllm.errors import CheckpointError, UnsupportedModelError
from minllm.models.json_files import refuse_special_file
from minllm.weights.stored import TensorEntry

LARGEST_HEADER = 100_000_000  # bytes; the limit of the format's own library
ITEM_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
}
NUMPY_DTYPES = {"F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16)}
TAKE_ANOTHER = "take a checkpoint of the model in bfloat16, or in a quantised format that loads"
CODE_DTYPES = {  # dtypes of codes and zero points of quantised weights
    **{name: np.dtype(f"<{name[0].lower()}{ITEM_BITS[name] // 8}") for name in ("I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64")},
    **{"F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn), "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2)},
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}


class SafetensorsFile:
    """A safetensors file opened for reading.

    `entries` maps names to TensorEntry; `tensor(name)` returns the values.
    """

    def __init__(self, path: Path):
        """Raises CheckpointError if the file is missing or truncated, or if its header does not fit it."""
        self.path = path
        try:
            refuse_special_file(path)
            size = path.stat().st_size
            with path.open("rb") as file:
                header_bytes = _header_length(path, file.read(8), size)
                header = file.read(header_bytes)
            self.entries = _parse_header(path, header, size - 8 - header_bytes)
            self._bytes = np.memmap(path, np.uint8, mode="r")
        except FileNotFoundError:
            raise CheckpointError(f"{path.name} is missing from {path.parent}; copy it from where the model came from.") from None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from error
        self._data_start = 8 + header_bytes

    def tensor(self, name: str) -> np.ndarray:
        """The values of a tensor, a read-only view of the mapped file: float64, float32, float16 or bfloat16.

        Raises UnsupportedModelError for any other dtype.
        """
        return self._read(name, NUMPY_DTYPES, "weights that config.json does not call quantised")

    def array(self, name: str) -> np.ndarray:
        """The same for tensors that may also hold codes of a quantised weight, as integers or 8-bit floats."""
        return self._read(name, NUMPY_DTYPES | CODE_DTYPES, "tensors of a quantised weight")

    def _read(self, name: str, dtypes: dict[str, np.dtype], what: str) -> np.ndarray:
        entry = self.entries[name]
        if entry.dtype not in dtypes:
            raise UnsupportedModelError(
                f"{self.path}: tensor {name!r} has dtype {entry.dtype}, and minllm reads {what} in {', '.join(dtypes)}: {TAKE_ANOTHER}."
            )
        dtype = dtypes[entry.dtype]
        data = self._bytes[self._data_start + entry.begin : self._data_start + entry.end]
        return data.view(np.ndarray).view(dtype).reshape(entry.shape)


def _header_length(path: Path, first: bytes, size: int) -> int:
    if len(first) < 8:
        raise CheckpointError(f"{path} is {size} bytes long, too short for a safetensors file; the download was cut short, copy it again.")
    length = int.from_bytes(first, "little")
    if length > LARGEST_HEADER:
        raise CheckpointError(f"{path} claims a header of {length} bytes, over the limit of {LARGEST_HEADER}: not a safetensors file.")
    if 8 + length > size:
        raise CheckpointError(f"{path} claims a header of {length} bytes and is {size} bytes long; it was cut short, copy it again.")
    return length


def _parse_header(path: Path, header: bytes, data_bytes: int) -> dict[str, TensorEntry]:
    try:
        content = json.loads(header.decode("utf-8"), object_pairs_hook=lambda pairs: _unique(path, pairs))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the header is not valid JSON ({error}); the file is damaged, copy it again.") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: the header must be a JSON object, and is a {type(content).__name__}.")
    content.pop("__metadata__", None)
    entries = {name: _parse_entry(path, name, value) for name, value in content.items()}
    _check_coverage(path, entries, data_bytes)
    return entries


def _unique(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise CheckpointError(f"{path}: the header has {twice!r} twice; the file is damaged.")
    return content


def _parse_entry(path: Path, name: str, value: object) -> TensorEntry:
    """One header entry. Raises CheckpointError if its number of bytes does not match its dtype and shape."""

    def wrong(what: str) -> CheckpointError:
        return CheckpointError(f"{path}: tensor {name!r} {what}; the header is damaged or lies, copy the file again.")

    if not isinstance(value, dict):
        raise wrong("is not described by an object")
    dtype, shape, offsets = (value.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in ITEM_BITS:
        raise wrong(f"has the unknown dtype {dtype!r}")
    if not _are_counts(shape):
        raise wrong(f"has shape {shape!r}, not a list of whole numbers from 0")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise wrong(f"has data_offsets {offsets!r}, not a [begin, end] in order")
    bits = math.prod(shape) * ITEM_BITS[dtype]
    if 8 * (offsets[1] - offsets[0]) != bits:
        raise wrong(f"takes {-(-bits // 8)} bytes as {dtype} of shape {shape}, and its data_offsets hold {offsets[1] - offsets[0]}")
    return TensorEntry(dtype, tuple(shape), offsets[0], offsets[1])


def _are_counts(values: object) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values)


def _check_coverage(path: Path, entries: dict[str, TensorEntry], data_bytes: int) -> None:
    """Raises CheckpointError unless the tensors cover the data from the first byte to the last without gap or overlap."""
    at = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.end > data_bytes:
            raise CheckpointError(
                f"{path}: tensor {name!r} ends at byte {entry.end} of the data, and the file has {data_bytes}; "
                "it was cut short, copy it again."
            )
        if entry.begin != at:
            relation = "overlaps the tensor before it" if entry.begin < at else f"leaves {entry.begin - at} bytes unused before it"
            raise CheckpointError(f"{path}: tensor {name!r} {relation}; the header is damaged or lies, copy the file again.")
        at = entry.end
    if at != data_bytes:
        raise CheckpointError(f"{path}: {data_bytes - at} bytes at the end belong to no tensor; the file is damaged, copy it again.")
