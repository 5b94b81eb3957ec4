"""The key-value pairs of a GGUF file, such as "llama.block_count": hyperparameters, tokenizer, licence.

    pair    string key | uint32 type | value
    array   uint32 type of the items | uint64 count | the items

Numbers become Python numbers, arrays of numbers NumPy arrays, arrays of strings lists; of arrays of arrays, which no model needs, only the
length is kept. A float32 becomes the float that prints the same:
1e-5, as the model's maker wrote it, and not 9.999999747378752e-06.
"""

from typing import Any, NamedTuple

import numpy as np

from minllm.models.gguf.value_reader import ValueReader

NUMBER_CODES = {  # GGUF's number of a type -> the code of the struct module
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
FLOAT32, STRING, ARRAY = 6, 8, 9
SMALLEST_PAIR = 8 + 1 + 4 + 1  # bytes: the length of the key, a key of one letter, the type, a value of one byte
LONGEST_KEY = 65535  # bytes, as the format defines
SMALLEST_ARRAY = 4 + 8  # bytes: the type of the items and their count
DEEPEST_ARRAY = 8  # levels of arrays in arrays


class NestedArray(NamedTuple):
    """An array of `length` arrays, whose items are not kept."""

    length: int


def read_metadata(reader: ValueReader, count: int) -> dict[str, Any]:
    """{key: value} of the next `count` pairs. Raises CheckpointError if they are damaged or a key occurs twice."""
    reader.require(count * SMALLEST_PAIR, f"a header of {count:,} keys")
    metadata: dict[str, Any] = {}
    for number in range(count):
        key = reader.string(f"the name of key {number}")
        if not key or len(key) > LONGEST_KEY or not key.isprintable():
            raise reader.damaged(f"the name of key {number} is {key[:60]!r}, and names are printable and have up to {LONGEST_KEY} bytes")
        if key in metadata:
            raise reader.damaged(f"the key {key!r} comes twice")
        metadata[key] = _read_value(reader, key)
    return metadata


def _read_value(reader: ValueReader, key: str) -> Any:
    kind = reader.count("I", f"the type of key {key!r}")
    if kind == ARRAY:
        return _read_array(reader, key)
    return _read_single(reader, kind, key)


def _read_single(reader: ValueReader, kind: int, key: str) -> Any:
    what = f"the value of key {key!r}"
    if kind == STRING:
        return reader.string(what)
    if kind not in NUMBER_CODES:
        raise reader.damaged(f"key {key!r} has type {kind}, and types go from 0 to 12")
    value = reader.number(NUMBER_CODES[kind], what)
    return float(str(np.float32(value))) if kind == FLOAT32 else value


def _read_array(reader: ValueReader, key: str, depth: int = 1) -> np.ndarray | list[str] | NestedArray:
    kind, count = reader.count("I", f"the type of array {key!r}"), reader.count("Q", f"the length of array {key!r}")
    what = f"array {key!r} of {count:,} items"
    if kind == STRING:
        reader.require(8 * count, what)
        return [reader.string(f"item {item} of array {key!r}") for item in range(count)]
    if kind == ARRAY:
        if depth == DEEPEST_ARRAY:
            raise reader.damaged(f"array {key!r} holds arrays in more than {DEEPEST_ARRAY} levels")
        reader.require(SMALLEST_ARRAY * count, what)
        for _ in range(count):
            _read_array(reader, key, depth + 1)
        return NestedArray(count)
    if kind not in NUMBER_CODES:
        raise reader.damaged(f"array {key!r} has items of type {kind}, and types go from 0 to 12")
    return reader.numbers(np.dtype("<" + NUMBER_CODES[kind]), count, what)
