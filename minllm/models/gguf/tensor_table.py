"""The tensor table of a GGUF file: names, shapes, types and offsets, checked against the file's size.

    entry    string name | uint32 dimensions | uint64 sizes, the innermost first | uint32 type | uint64 offset

Offsets count from the start of the data, which begins at a multiple of `general.alignment` (32 unless that key says otherwise). Each tensor
begins there or at the first multiple of the alignment after the previous tensor, as ggml's own reader requires, so none can overlap.
"""

import math
from dataclasses import dataclass

from minllm.models.gguf.block_types import BLOCK_TYPES, BlockType, refused_type
from minllm.models.gguf.value_reader import ValueReader

SMALLEST_ENTRY = 8 + 1 + 4 + 8 + 4 + 8  # bytes of the entry of a vector with a name of one letter
LONGEST_NAME = 64  # bytes, as the format defines
MOST_DIMENSIONS = 4


@dataclass(frozen=True)
class GgufTensor:
    """One tensor. shape: innermost size last, as in NumPy; begin, end: byte offsets in the file."""

    name: str
    shape: tuple[int, ...]
    type: BlockType
    begin: int
    end: int


def read_tensor_table(reader: ValueReader, count: int, alignment: int, file_bytes: int) -> dict[str, GgufTensor]:
    """{name: tensor} of `count` entries.

    Raises CheckpointError if an entry contradicts the size of the file or another entry, UnsupportedModelError for other types.
    """
    reader.require(count * SMALLEST_ENTRY, f"a header of {count:,} tensors")
    entries = [_read_entry(reader, number) for number in range(count)]
    data_start = _aligned(reader.at, alignment)
    tensors: dict[str, GgufTensor] = {}
    at = data_start
    forked = " (or its Q2_0 has blocks of 128 numbers, as a fork of llama.cpp wrote them before ggml made it 64)"
    forked = forked if any(block_type.name == "Q2_0" for _, _, block_type, _ in entries) else ""
    for name, shape, block_type, offset in sorted(entries, key=lambda entry: entry[3]):
        if name in tensors:
            raise reader.damaged(f"tensor {name!r} comes twice")
        begin = data_start + offset
        if begin != at:
            relation = "overlaps the tensor before it" if begin < at else f"leaves {begin - at:,} bytes unused before it"
            aligned = "" if offset % alignment == 0 else f" (offsets are multiples of {alignment})"
            raise reader.damaged(f"tensor {name!r} has offset {offset:,}, which {relation}{aligned}{forked}")
        end = begin + math.prod(shape) // block_type.numbers * block_type.bytes
        if end > file_bytes:
            raise reader.damaged(f"tensor {name!r} ends at byte {end:,}, and the file has {file_bytes:,}{forked}")
        tensors[name] = GgufTensor(name, shape, block_type, begin, end)
        at = _aligned(end, alignment)
    if file_bytes > at:
        raise reader.damaged(f"{file_bytes - at:,} bytes at the end belong to no tensor")
    return tensors


def _read_entry(reader: ValueReader, number: int) -> tuple[str, tuple[int, ...], BlockType, int]:
    name = reader.string(f"the name of tensor {number}")
    if not name or len(name.encode()) > LONGEST_NAME or not name.isprintable():
        raise reader.damaged(f"the name of tensor {number} is {name[:80]!r}, and names are printable and have up to {LONGEST_NAME} bytes")
    dimensions = reader.count("I", f"the dimensions of tensor {name!r}")
    if not 1 <= dimensions <= MOST_DIMENSIONS:
        raise reader.damaged(f"tensor {name!r} has {dimensions} dimensions, and a tensor has 1 to {MOST_DIMENSIONS}")
    shape = tuple(reader.count("Q", f"the shape of tensor {name!r}") for _ in range(dimensions))[::-1]
    if min(shape) < 1:
        raise reader.damaged(f"tensor {name!r} has shape {list(shape)}, and sizes are at least 1")
    kind = reader.count("I", f"the type of tensor {name!r}")
    if kind not in BLOCK_TYPES:
        raise refused_type(reader.path, name, kind)
    block_type = BLOCK_TYPES[kind]
    if shape[-1] % block_type.numbers:
        raise reader.damaged(f"tensor {name!r} has rows of {shape[-1]} numbers, and {block_type.name} has blocks of {block_type.numbers}")
    return name, shape, block_type, reader.count("Q", f"the offset of tensor {name!r}")


def _aligned(position: int, alignment: int) -> int:
    """The first multiple of the alignment that is not less than `position`."""
    return -(-position // alignment) * alignment
