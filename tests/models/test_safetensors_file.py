"""Headers that lie, files that are cut short, and what the safetensors library writes."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from minllm.errors import CheckpointError, UnsupportedModelError
from minllm.models.safetensors_file import SafetensorsFile

A = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
B = {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]}


def write(path: Path, header, data: bytes = bytes(32), length: int | None = None) -> Path:
    """A file with any header, true or not."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def test_values_equal_the_library(tmp_path):
    tensors = {
        "a": torch.randn(5, 7),
        "b": torch.randn(3).to(torch.bfloat16),
        "c": torch.randn(2, 1, 9).to(torch.float16),
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        "empty": torch.zeros(0, 4),
    }
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "x.safetensors")
    assert set(file.entries) == set(tensors)
    for name, expected in tensors.items():
        values = file.tensor(name)
        assert values.shape == tuple(expected.shape)
        np.testing.assert_array_equal(values.astype(np.float64), expected.double().numpy())
    assert file.tensor("b").dtype == ml_dtypes.bfloat16
    with pytest.raises(ValueError, match="read-only"):
        file.tensor("a")[0] = 0


def test_a_header_of_any_length_leaves_the_data_where_it_is(tmp_path):
    """Nothing in the format promises aligned data."""
    for padding in range(5):
        text = json.dumps({"a": A, "b": B}).encode() + b" " * padding
        data = np.arange(6, dtype=np.float32).tobytes() + np.ones(4, ml_dtypes.bfloat16).tobytes()
        file = SafetensorsFile(write(tmp_path / f"{padding}.safetensors", text, data))
        np.testing.assert_array_equal(file.tensor("a"), np.arange(6, dtype=np.float32).reshape(2, 3))
        np.testing.assert_array_equal(file.tensor("b").astype(np.float32), 1)


@pytest.mark.parametrize("dtype, size", [("F4", 3), ("F6_E2M3", 6), ("F6_E3M2", 6), ("F8_E4M3FNUZ", 6), ("F8_E5M2FNUZ", 6), ("F8_E8M0", 6)])
def test_small_floats_are_named(tmp_path, dtype, size):
    """Six, four or eight numbers; the rest of the file stays readable."""
    shape = [2, 4] if "F6" in dtype else [2, 3]
    header = {"a": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}, "b": {**A, "data_offsets": [size, size + 24]}}
    file = SafetensorsFile(write(tmp_path / "x.safetensors", header, bytes(size + 24)))
    assert file.tensor("b").shape == (2, 3)
    for read in (file.tensor,) if dtype == "F8_E8M0" else (file.tensor, file.array):
        with pytest.raises(UnsupportedModelError, match=f"tensor 'a' has dtype {dtype}, and minllm reads .*BF16.*take a checkpoint"):
            read("a")


LIES = {
    "not json": b"{'a': 1}",
    "not utf-8": b"\xff\xfe",
    "too deep": b"[" * 200_000,
    "not an object": [A],
    "duplicate name": b'{"a": ' + json.dumps(A).encode() + b', "a": ' + json.dumps(A).encode() + b"}",
    "entry no object": {"a": 3},
    "no dtype": {"a": {"shape": [2, 3], "data_offsets": [0, 24]}},
    "unknown dtype": {"a": {**A, "dtype": "F31"}, "b": B},
    "dtype a list": {"a": {**A, "dtype": ["F32"]}, "b": B},
    "negative shape": {"a": {**A, "shape": [-2, -3]}, "b": B},
    "shape of floats": {"a": {**A, "shape": [2.0, 3]}, "b": B},
    "shape of booleans": {"a": {**A, "shape": [True, 6]}, "b": B},
    "huge shape": {"a": {**A, "shape": [2**62, 2**62]}, "b": B},
    "shape against bytes": {"a": {**A, "shape": [2, 2]}, "b": B},
    "dtype against bytes": {"a": {**A, "dtype": "F16"}, "b": B},
    "half a byte": {"a": {**A, "dtype": "F4", "shape": [3, 15]}, "b": B},
    "no offsets": {"a": {"dtype": "F32", "shape": [2, 3]}},
    "one offset": {"a": {**A, "data_offsets": [0]}, "b": B},
    "offsets backwards": {"a": {**A, "data_offsets": [24, 0]}, "b": B},
    "negative offset": {"a": {**A, "data_offsets": [-24, 0]}, "b": B},
    "beyond the file": {"a": A, "b": {**B, "data_offsets": [32, 40]}},
    "overlap": {"a": A, "b": {**B, "data_offsets": [16, 24]}},
    "same bytes twice": {"a": A, "b": {**A}, "c": B},
    "gap": {"a": {"dtype": "F32", "shape": [5], "data_offsets": [0, 20]}, "b": B},
    "bytes left over": {"a": A},
}


@pytest.mark.parametrize("name", LIES)
def test_a_lying_header_is_an_error_of_ours(name, tmp_path):
    with pytest.raises(CheckpointError, match="x.safetensors"):
        SafetensorsFile(write(tmp_path / "x.safetensors", LIES[name]))


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 100_000_001, 10_000, 0])
def test_an_absurd_header_length(length, tmp_path):
    with pytest.raises(CheckpointError, match="x.safetensors"):
        SafetensorsFile(write(tmp_path / "x.safetensors", {"a": A, "b": B}, length=length))


def test_a_file_cut_anywhere(tmp_path):
    whole = write(tmp_path / "whole", {"a": A, "b": B}).read_bytes()
    path = tmp_path / "x.safetensors"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match="x.safetensors"):
            SafetensorsFile(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(CheckpointError, match="1 bytes at the end"):
        SafetensorsFile(path)


@settings(deadline=None, max_examples=60)
@given(position=st.integers(0, 10_000), value=st.integers(0, 255))
def test_one_wrong_byte_never_escapes_as_another_error(position, value, tmp_path_factory):
    """Whatever one byte becomes, the file is either refused by us or still a consistent one."""
    path = tmp_path_factory.mktemp("fuzz") / "x.safetensors"
    content = bytearray(write(path, {"a": A, "b": B}).read_bytes())
    content[position % (len(content) - 32)] = value
    path.write_bytes(content)
    try:
        file = SafetensorsFile(path)
        for name in file.entries:
            file.tensor(name)
    except CheckpointError:
        pass


def test_integers_are_no_weights(tmp_path):
    file = SafetensorsFile(write(tmp_path / "x.safetensors", {"a": {"dtype": "I32", "shape": [6], "data_offsets": [0, 24]}, "b": B}))
    with pytest.raises(CheckpointError, match="dtype I32"):
        file.tensor("a")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(CheckpointError, match="x.safetensors is missing"):
        SafetensorsFile(tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="cannot be read"):
        SafetensorsFile(tmp_path)
