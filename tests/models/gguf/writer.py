"""Writes GGUF files as ggml's docs/gguf.md describes them, independently of the reader."""

import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

NUMBER_TYPES = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "u8": 10, "i8": 11, "f8": 12}
F32, F16, Q4_0, Q4_1, Q8_0 = 0, 1, 2, 3, 8


class Stored(NamedTuple):
    """A tensor as bytes: ggml's type, the shape with the innermost size last, the bytes."""

    type: int
    shape: tuple[int, ...]
    data: bytes


def float32(values: Any) -> Stored:
    """A tensor of float32 numbers."""
    values = np.ascontiguousarray(values, np.float32)
    return Stored(F32, values.shape, values.tobytes())


def string(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(item: Any) -> bytes:
    """A value with its type before it: ints become uint32, floats float32, lists of texts arrays, NumPy arrays arrays of their dtype."""
    if isinstance(item, bool):
        return struct.pack("<I?", 7, item)
    if isinstance(item, int):
        return struct.pack("<II", 4, item)
    if isinstance(item, float):
        return struct.pack("<If", 6, item)
    if isinstance(item, str):
        return struct.pack("<I", 8) + string(item)
    if isinstance(item, list):
        return struct.pack("<IIQ", 9, 8, len(item)) + b"".join(map(string, item))
    if isinstance(item, np.ndarray):
        return struct.pack("<IIQ", 9, NUMBER_TYPES[item.dtype.str[1:]], len(item)) + item.tobytes()
    assert isinstance(item, bytes), item  # type and value, as they should stand in the file
    return item


def gguf_bytes(metadata: dict[str, Any], tensors: dict[str, Stored], version: int = 3) -> bytes:
    """The file. `general.alignment` in the metadata counts."""
    alignment = metadata.get("general.alignment", 32)
    parts = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(metadata))]
    parts += [string(key) + value(item) for key, item in metadata.items()]
    data = b""
    for name, (kind, shape, raw) in tensors.items():
        parts.append(string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, len(data)))
        data += raw + bytes(-len(raw) % alignment)
    header = b"".join(parts)
    return header + bytes(-len(header) % alignment) + data


def write_gguf(path: Path, metadata: dict[str, Any], tensors: dict[str, Stored], version: int = 3) -> Path:
    """The file at a path."""
    path.write_bytes(gguf_bytes(metadata, tensors, version))
    return path
